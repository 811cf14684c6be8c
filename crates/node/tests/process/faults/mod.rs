//! The same fault again and again, on five nodes with three copies (three nodes, where the head has to lead), while two clients use a gateway of its own: one
//! reads and writes and remembers all it was told, and one writes 4 KiB durably all the time, for the stalls.
//!
//! What must be right is asserted. How long the stalls were is printed, and beside it how long they may be at most.

mod all_nodes;
mod device;
mod figures;
mod machine;
mod many_moves;
mod many_volumes;
mod nodes;
mod plane;
mod prober;
mod rig;
mod shorter;
mod standing;
mod two_away;
