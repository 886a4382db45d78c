//! Raft for Tidemark: the only crate that names openraft.
//!
//! [`start`] brings up one group on this node and returns its [`Handle`]; nothing of openraft shows outside.
//!
//! **Invariant**: the segment log is the only write-ahead log. State is committed to the database without a sync
//! and replayed from the log after a crash.

mod barrier;
mod convert;
mod database;
pub mod environment;
pub mod error;
mod files;
mod group;
mod handle;
mod identity;
pub mod log;
mod machine;
pub mod network;
pub mod snapshot;
pub mod types;
pub mod vfs;

pub use convert::{log_id_from_record, log_id_to_record};
pub use group::{Options, Retention, Timing, start};
pub use handle::{Handle, Leadership, MemberStatus, Proposal, Role, Status};
pub use identity::{Identity, cluster_id};
pub use machine::{Digests, Progress};
pub use openraft_rt_tokio::TokioRuntime;

/// The runtime of simulations: tokio with a seeded generator for everything that consensus draws at random.
pub type SimulatedRuntime = openraft_rt::deterministic_rng::DeterministicRng<TokioRuntime>;
