//! What only a leader does, and how other nodes reach it.
//!
//! `router → sequencer` on the leader, `router → forwarder ⇒ accept → sequencer` from another node.

mod accept;
mod clock;
mod fair_queue;
mod forwarder;
mod router;
mod sequencer;
mod work;

pub use accept::accept;
pub use router::Router;
pub use sequencer::{Options as SequencerOptions, Sequencer, SequencerStats};
pub use work::{Answer, SubmitError, Work};
