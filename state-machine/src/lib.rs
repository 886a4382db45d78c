//! What a replica computes: a pure, deterministic function from (state, entry) to one atomic batch of writes.

mod outcome;

pub use outcome::Outcome;
