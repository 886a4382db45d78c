//! Raft for Tidemark: the only crate that names openraft.

pub mod log;
pub mod types;
pub mod vfs;
