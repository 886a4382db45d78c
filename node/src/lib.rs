//! The Tidemark server and the `tidemark` command.
//!
//! [`node::Node`] is one node: a Raft group, the API over it, and the listeners. It can be embedded; the command
//! is a thin layer over it and over the client that users have too.

pub mod api;
pub mod cli;
pub mod config;
pub mod leader;
pub mod node;
pub mod telemetry;

/// The version of this release.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
