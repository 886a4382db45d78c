//! Everything that happened, in order, with its simulated time. Two runs of one seed have equal traces.

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tidemark_storage::Position;
use tokio::time::Instant;

use crate::history::{AppliedEntry, Election};

/// One step of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Simulated time since the start.
    pub at: Duration,
    /// What happened.
    pub what: What,
}

/// What a step is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A message reached its target.
    Delivered {
        /// The sender.
        from: u64,
        /// The receiver.
        to: u64,
        /// What kind of message.
        kind: &'static str,
    },
    /// A message was lost, with the connection that it was sent on.
    Lost {
        /// The sender.
        from: u64,
        /// The receiver.
        to: u64,
        /// What kind of message.
        kind: &'static str,
    },
    /// A node leads.
    Elected(Election),
    /// A node applied entries up to this one.
    Applied(AppliedEntry),
    /// A client was told that its append is at this position.
    Acknowledged {
        /// The append's last event.
        event_id: String,
        /// Its position.
        position: Position,
    },
    /// A client gave an append up, or was refused.
    NotAcknowledged {
        /// The append's last event.
        event_id: String,
        /// Why.
        why: String,
    },
    /// A client read so many events.
    Read {
        /// From this node.
        node: u64,
        /// How many.
        events: usize,
    },
    /// Something was broken or repaired.
    Fault(String),
    /// The digest of a node at the end.
    Digest {
        /// The node.
        node: u64,
        /// Its digest.
        digest: Vec<u8>,
    },
}

/// Where steps are noted. Clones are the same trace.
#[derive(Clone, Debug)]
pub struct Trace {
    start: Instant,
    steps: Arc<Mutex<Vec<Step>>>,
}

impl Trace {
    /// A trace that begins now.
    pub fn begin() -> Self {
        Self { start: Instant::now(), steps: Arc::default() }
    }

    /// Simulated time since the start.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Notes a step that happens now.
    pub fn note(&self, what: What) {
        let step = Step { at: self.now(), what };
        self.steps.lock().push(step);
    }

    /// All steps so far.
    pub fn steps(&self) -> Vec<Step> {
        self.steps.lock().clone()
    }
}

/// The hash of a trace, to compare runs of different processes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TraceHash([u8; 32]);

impl TraceHash {
    /// The hash of these steps.
    pub fn of(steps: &[Step]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for step in steps {
            hasher.update(format!("{step:?}\n").as_bytes());
        }
        Self(*hasher.finalize().as_bytes())
    }
}

impl fmt::Display for TraceHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TraceHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
