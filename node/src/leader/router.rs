//! Takes work to whoever leads, and waits out a change of leaders within the caller's deadline.

use std::time::Duration;

use tidemark_proto::{ApiError, LeaderHint, LimitKind};
use tidemark_raft::{Handle, Leadership, environment::Environment};
use tokio::{sync::watch, time::Instant};

use super::{
    forwarder::Forwarder,
    sequencer::Sequencer,
    work::{Answer, SubmitError, Work},
};

/// Any node takes any request; this is how it gets to the leader.
pub struct Router {
    raft: Handle,
    leadership: watch::Receiver<Leadership>,
    sequencer: Sequencer,
    forwarder: Forwarder,
}

/// A node that was wrong about the leader looks again after this long, or when it learns of a change.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

impl Router {
    /// A router to the group behind `raft`, whose local sequencer is `sequencer`.
    pub fn new(raft: Handle, environment: Environment, sequencer: Sequencer) -> Self {
        let leadership = raft.leadership();
        Self { forwarder: Forwarder::new(raft.clone(), environment), raft, leadership, sequencer }
    }

    /// The local sequencer.
    pub fn sequencer(&self) -> &Sequencer {
        &self.sequencer
    }

    /// Submits `work` to the leader and waits for its answer.
    ///
    /// # Errors
    ///
    /// [`ApiError`]; only `OutcomeUnknown` means that something may have been written.
    pub async fn submit(&self, work: Work, deadline: Instant) -> Result<Answer, ApiError> {
        let mut leadership = self.leadership.clone();
        loop {
            let current = *leadership.borrow_and_update();
            let submitted = match current {
                Leadership::Ready { .. } => self.sequencer.submit(work.clone(), deadline).await,
                Leadership::Following { leader } => {
                    self.forwarder.submit(leader, work.clone(), deadline).await
                }
                Leadership::Preparing | Leadership::Unknown => Err(SubmitError::NotLeader),
            };
            match submitted {
                Ok(answer) => return Ok(answer),
                Err(SubmitError::NotLeader) => {}
                Err(error) => return Err(api_error(error)),
            }
            if Instant::now() >= deadline {
                return Err(self.no_leader(current));
            }
            let look_again = deadline.min(Instant::now() + LOOK_AGAIN);
            tokio::select! {
                changed = leadership.changed() => if changed.is_err() { return Err(ApiError::Stopping) },
                () = tokio::time::sleep_until(look_again) => {}
            }
        }
    }

    fn no_leader(&self, leadership: Leadership) -> ApiError {
        match leadership {
            Leadership::Following { leader } => ApiError::NotLeader {
                leader: Some(LeaderHint {
                    node_id: leader,
                    address: self.raft.contacts().client_address(leader).unwrap_or_default(),
                }),
            },
            Leadership::Ready { .. } | Leadership::Preparing | Leadership::Unknown => ApiError::NoQuorum,
        }
    }
}

pub(super) fn api_error(error: SubmitError) -> ApiError {
    match error {
        SubmitError::NotLeader => ApiError::NotLeader { leader: None },
        SubmitError::QueueFull { limit, maximum, actual } => {
            ApiError::LimitExceeded { limit: limit.to_owned(), maximum, actual, kind: LimitKind::Queue }
        }
        SubmitError::TooLarge { limit, maximum, actual } => {
            ApiError::LimitExceeded { limit: limit.to_owned(), maximum, actual, kind: LimitKind::Size }
        }
        SubmitError::Expired => ApiError::DeadlineExceeded,
        SubmitError::Unknown(cause) => ApiError::OutcomeUnknown { cause },
        SubmitError::Stopping => ApiError::Stopping,
    }
}
