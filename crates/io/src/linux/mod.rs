//! Linux implementations.
