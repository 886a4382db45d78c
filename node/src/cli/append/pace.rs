//! A steady rate of events.

use std::{num::NonZeroU32, time::Duration};

use tokio::time::Instant;

/// How much of a delay is made up for by going faster afterwards. Without a bound, a failover of some seconds would
/// be followed by a burst as fast as the cluster can take it.
const CATCH_UP: Duration = Duration::from_millis(200);

/// Tells when the next events are due.
#[derive(Debug)]
pub struct Pace {
    per_second: NonZeroU32,
    due: Instant,
}

impl Pace {
    /// Begins at `now`.
    pub fn new(per_second: NonZeroU32, now: Instant) -> Self {
        Self { per_second, due: now }
    }

    /// When the next `events` may go; counts them as gone.
    pub fn next(&mut self, events: usize, now: Instant) -> Instant {
        let start = self.due.max(now.checked_sub(CATCH_UP).unwrap_or(now));
        self.due = start + Duration::from_secs_f64(events as f64 / f64::from(self.per_second.get()));
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_spread_evenly() {
        let start = Instant::now();
        let mut pace = Pace::new(NonZeroU32::new(1000).unwrap(), start);
        let due: Vec<u128> = (0..4).map(|_| (pace.next(100, start) - start).as_millis()).collect();
        assert_eq!(due, [0, 100, 200, 300]);
    }

    #[test]
    fn a_long_delay_is_not_followed_by_a_long_burst() {
        let start = Instant::now();
        let mut pace = Pace::new(NonZeroU32::new(1000).unwrap(), start);
        pace.next(100, start);
        let late = start + Duration::from_secs(5);
        let immediate = (0..100).take_while(|_| pace.next(100, late) <= late).count();
        assert_eq!(immediate, 3, "200 ms are made up for at 100 events per 100 ms, and one batch is due now");
    }
}
