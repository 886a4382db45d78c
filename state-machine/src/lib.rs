//! What a replica computes: a pure, deterministic function from (state, entry) to one atomic batch of writes.
//!
//! [`StateMachine::begin`] opens a chunk over the applied state, [`ChunkBuilder::apply`] takes the commands of
//! its entries in log order, and [`ChunkBuilder::finish`] gives the one batch that holds everything they wrote,
//! together with the applied log id, the membership, the clock and the last event id. [`read`] and [`digest`]
//! answer from a snapshot of that state.
//!
//! **Invariant**: nothing here reads a clock, a random number, the environment or the network, and nothing
//! iterates in hash order. The only inputs are the state and the entries, so that replicas stay equal byte for
//! byte; `clippy.toml` bans the rest.

mod apply;
pub mod boundary;
pub mod chunk;
pub mod command;
pub mod digest;
pub mod fault;
mod idempotency;
pub mod outcome;
pub mod read;
mod state;
pub mod stored_event;
pub mod write_id;

pub use boundary::{Boundary, BoundaryState};
pub use chunk::{Chunk, ChunkBuilder, StateMachine};
pub use command::Command;
pub use digest::StateDigest;
pub use fault::Fault;
pub use idempotency::RecordedSave;
pub use outcome::{AppendOutcome, AppendRejection, CreateBoundaryOutcome, CreateBoundaryRejection, Outcome};
pub use stored_event::Event;
pub use write_id::WriteId;
