//! Turns requests into what the node works with, or says what is wrong with them: which field and why.
//!
//! Everything that depends on the request alone is checked here, once, before a request takes an id or a place in a
//! queue. What depends on the state (boundaries, idempotency, observations) is decided where that state is.

mod boundary;
mod digest;
mod event;
mod field;
mod read;
mod save;

#[cfg(test)]
mod tests;

pub use boundary::boundary_definition;
pub use digest::{idempotency_key_hash, request_digest};
pub use read::{ReadLevel, ValidRead, get_events};
pub use save::{ValidSave, save};
