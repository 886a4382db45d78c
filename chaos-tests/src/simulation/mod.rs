//! A whole cluster in one process and one thread, on simulated time, network, disks and clocks.
//!
//! One number, the seed, decides everything: two runs of a seed have the same trace. Consensus, log, state machine,
//! sequencer, router and API are the real ones.
//!
//! **Invariant**: nothing in a simulation reads a real clock, draws an unseeded number or starts a thread.

mod client;
mod cluster;
mod executor;
mod nemesis;
mod network;
mod node;
mod outside;
mod panics;
mod run;
mod snapshot;
mod stub;
mod trace;

pub use run::{Failure, Run, Summary, run};
pub use snapshot::snapshot_catch_up;
pub use trace::{Step, TraceHash, What};
