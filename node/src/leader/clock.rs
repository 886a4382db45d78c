//! The leader's clock: one wall reading at the start of a leadership, advanced by the monotonic clock.
//!
//! A jump of the wall clock on a running leader changes nothing, and stamps never go back.

use std::{sync::Arc, time::Duration};

use tidemark_raft::environment::Clock;

pub(super) struct LeaderClock {
    clock: Arc<dyn Clock>,
    start_ms: u64,
    started: Duration,
    last_ms: u64,
}

impl LeaderClock {
    /// A clock for a new leadership, not before the applied clock.
    pub(super) fn start(clock: Arc<dyn Clock>, applied_ms: u64) -> Self {
        let start_ms = clock.wall_ms().max(applied_ms);
        Self { start_ms, started: clock.monotonic(), last_ms: start_ms, clock }
    }

    /// The stamp of the next entry, milliseconds since 1970.
    pub(super) fn stamp(&mut self) -> u64 {
        let elapsed = self.clock.monotonic().saturating_sub(self.started);
        let now = self.start_ms + u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX / 4);
        self.last_ms = self.last_ms.max(now);
        self.last_ms
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[derive(Default)]
    struct TestClock {
        wall: AtomicU64,
        monotonic: AtomicU64,
    }

    impl Clock for TestClock {
        fn wall_ms(&self) -> u64 {
            self.wall.load(Ordering::Relaxed)
        }

        fn monotonic(&self) -> Duration {
            Duration::from_millis(self.monotonic.load(Ordering::Relaxed))
        }
    }

    #[test]
    fn the_first_stamp_is_not_before_the_applied_clock() {
        let clock = Arc::new(TestClock::default());
        clock.wall.store(1_000, Ordering::Relaxed);
        assert_eq!(LeaderClock::start(clock.clone(), 5_000).stamp(), 5_000);
        assert_eq!(LeaderClock::start(clock, 500).stamp(), 1_000);
    }

    #[test]
    fn a_jump_of_the_wall_clock_changes_nothing_while_leading() {
        let clock = Arc::new(TestClock::default());
        clock.wall.store(1_000, Ordering::Relaxed);
        let mut leader = LeaderClock::start(clock.clone(), 0);
        clock.wall.store(999_999, Ordering::Relaxed);
        clock.monotonic.store(7, Ordering::Relaxed);
        assert_eq!(leader.stamp(), 1_007);
        clock.wall.store(1, Ordering::Relaxed);
        assert_eq!(leader.stamp(), 1_007);
    }
}
