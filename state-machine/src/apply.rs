//! Dispatches a command to the function that applies it.
//!
//! **Invariant**: each of these is total and deterministic. What a request can do wrong is an outcome; an error
//! means that the state or the log is damaged.

mod append_batch;
mod create_boundary;
mod digest;
mod tick;

use crate::{command::Command, fault::Fault, outcome::Outcome, state::State};

/// Applies `command` to `state`.
pub(crate) fn apply(state: &mut State<'_>, command: &Command) -> Result<Outcome, Fault> {
    match command {
        Command::AppendBatch(batch) => append_batch::apply(state, batch),
        Command::Tick(tick) => Ok(tick::apply(state, tick)),
        Command::CreateBoundary(create) => create_boundary::apply(state, create),
        Command::Digest(digest) => Ok(digest::apply(digest)),
    }
}
