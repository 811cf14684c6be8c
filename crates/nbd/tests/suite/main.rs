//! The NBD server as a client sees it: bytes in, bytes out.

mod common;
mod handshake;
mod hostile;
mod transmission;
