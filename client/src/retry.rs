//! When an attempt failed: whether to try again, and after what pause.

use std::time::Duration;

use tidemark_proto::{ApiError, Retry};
use tokio::time::{Instant, sleep_until};

use crate::error::Error;

/// The first pause; each further one is twice as long.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
/// Short enough that a save lands soon after an election, which takes about a second.
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// Why an attempt at one node gave no answer to hand out.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Failure {
    /// The node did not get the request.
    NotSent(ApiError),
    /// The request went out, and no answer came back.
    Lost(ApiError),
    /// The node answered with an error.
    Refused(ApiError),
}

impl Failure {
    pub(crate) fn error(&self) -> &ApiError {
        match self {
            Self::NotSent(error) | Self::Lost(error) | Self::Refused(error) => error,
        }
    }
}

/// The attempts of one call.
pub(crate) struct Attempts {
    deadline: Instant,
    failed: u32,
    may_be_written: MayBeWritten,
    last: Option<ApiError>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MayBeWritten {
    No,
    Yes,
}

impl Attempts {
    pub(crate) fn until(deadline: Instant) -> Self {
        Self { deadline, failed: 0, may_be_written: MayBeWritten::No, last: None }
    }

    /// When the next attempt ends, at most so long from now; none when the time is up.
    pub(crate) fn next_deadline(&self, attempt_timeout: Duration) -> Option<Instant> {
        let now = Instant::now();
        (now < self.deadline).then(|| self.deadline.min(now + attempt_timeout))
    }

    /// Waits before the next attempt, or returns a final answer as an error.
    pub(crate) async fn pause_after(&mut self, failure: Failure) -> Result<(), ApiError> {
        let pause = self.next_pause(failure)?;
        if !pause.is_zero() {
            sleep_until(self.deadline.min(Instant::now() + pause)).await;
        }
        Ok(())
    }

    fn next_pause(&mut self, failure: Failure) -> Result<Duration, ApiError> {
        match failure {
            Failure::NotSent(error) => self.last = Some(error),
            Failure::Lost(error) => {
                self.may_be_written = MayBeWritten::Yes;
                self.last = Some(error);
            }
            Failure::Refused(error) => {
                match error.retryable() {
                    Retry::Never => return Err(error),
                    Retry::AtOnce => {}
                    // The first repeat of the others goes at once to another node; here that would not help.
                    Retry::AfterBackoff => self.failed = self.failed.max(1),
                    Retry::WithIdempotencyKey => self.may_be_written = MayBeWritten::Yes,
                }
                self.last = Some(error);
            }
        }
        let pause = pause(self.failed);
        self.failed += 1;
        Ok(pause)
    }

    /// What to tell the caller of a save when the time is up.
    pub(crate) fn save_out_of_time(self, idempotency_key: String) -> Error {
        match self.may_be_written {
            MayBeWritten::Yes => Error::OutcomeUnknown { idempotency_key },
            MayBeWritten::No => Error::Unavailable { last: self.last },
        }
    }

    /// What to tell the caller of anything that may be repeated freely when the time is up.
    pub(crate) fn out_of_time(self) -> Error {
        Error::Unavailable { last: self.last }
    }
}

/// With jitter of up to half, so that thousands of saves that failed together do not come back together.
fn pause(failed: u32) -> Duration {
    if failed == 0 {
        return Duration::ZERO;
    }
    let full = PAUSE_FIRST.saturating_mul(1 << (failed - 1).min(10)).min(PAUSE_MAX);
    full.mul_f64(rand::random_range(0.5..=1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemark_proto::UnknownCause;

    fn attempts() -> Attempts {
        Attempts::until(Instant::now())
    }

    #[test]
    fn the_first_repeat_is_immediate_and_later_ones_wait_longer_up_to_a_limit() {
        let mut attempts = attempts();
        let lost = || Failure::Lost(ApiError::Stopping);
        assert_eq!(attempts.next_pause(lost()), Ok(Duration::ZERO));
        let mut longest = PAUSE_FIRST;
        for _ in 0..40 {
            let pause = attempts.next_pause(lost()).expect("a lost attempt is repeated");
            assert!(pause >= longest / 2 && pause <= longest, "{pause:?} of {longest:?}");
            longest = (longest * 2).min(PAUSE_MAX);
        }
    }

    #[test]
    fn a_full_queue_is_not_tried_again_at_once() {
        let full = ApiError::LimitExceeded {
            limit: "queue_requests".to_owned(),
            maximum: 1,
            actual: 2,
            kind: tidemark_proto::LimitKind::Queue,
        };
        let pause = attempts().next_pause(Failure::Refused(full));
        assert!(pause.is_ok_and(|pause| pause >= PAUSE_FIRST / 2));
    }

    #[test]
    fn a_final_answer_ends_the_attempts() {
        let conflict = ApiError::IdempotencyKeyReused;
        assert_eq!(attempts().next_pause(Failure::Refused(conflict.clone())), Err(conflict));
    }

    #[test]
    fn a_save_that_never_left_is_not_called_unknown() {
        let mut attempts = attempts();
        attempts.next_pause(Failure::NotSent(ApiError::Stopping)).expect("it is repeated");
        attempts.next_pause(Failure::Refused(ApiError::NoQuorum)).expect("it is repeated");
        let error = attempts.save_out_of_time("k".to_owned());
        assert_eq!(error, Error::Unavailable { last: Some(ApiError::NoQuorum) });
    }

    #[test]
    fn a_save_stays_unknown_after_a_later_attempt_was_refused() {
        let unknown = ApiError::OutcomeUnknown { cause: UnknownCause::Stopping };
        for first in [Failure::Lost(ApiError::Stopping), Failure::Refused(unknown)] {
            let mut attempts = attempts();
            attempts.next_pause(first).expect("it is repeated");
            attempts.next_pause(Failure::Refused(ApiError::NoQuorum)).expect("it is repeated");
            let error = attempts.save_out_of_time("k".to_owned());
            assert_eq!(error, Error::OutcomeUnknown { idempotency_key: "k".to_owned() });
        }
    }
}
