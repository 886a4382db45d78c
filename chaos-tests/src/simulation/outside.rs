//! Clocks and random numbers of a simulated node.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tidemark_raft::environment::{Clock, Random};
use tokio::time::Instant;

/// Wall time at the start of every simulation, milliseconds since 1970: some day in 2025.
const EPOCH_MS: i64 = 1_750_000_000_000;

/// A node's clock: simulated time with the node's own error.
#[derive(Clone, Debug)]
pub struct SimulatedClock {
    start: Instant,
    /// How far the wall clock is ahead; negative: behind.
    skew_ms: Arc<AtomicI64>,
    /// How much faster than time both clocks run, in parts per million.
    drift_ppm: i32,
}

impl SimulatedClock {
    /// A clock that starts now.
    pub fn new(skew_ms: i64, drift_ppm: i32) -> Self {
        Self { start: Instant::now(), skew_ms: Arc::new(AtomicI64::new(skew_ms)), drift_ppm }
    }

    /// Moves the wall clock by this much.
    pub fn jump(&self, by_ms: i64) {
        self.skew_ms.fetch_add(by_ms, Ordering::Relaxed);
    }
}

impl Clock for SimulatedClock {
    fn wall_ms(&self) -> u64 {
        let elapsed = i64::try_from(self.monotonic().as_millis()).unwrap_or(i64::MAX / 2);
        u64::try_from(EPOCH_MS + elapsed + self.skew_ms.load(Ordering::Relaxed)).unwrap_or(0)
    }

    fn monotonic(&self) -> Duration {
        let elapsed = i128::try_from(self.start.elapsed().as_nanos()).unwrap_or(i128::MAX / 2_000_000);
        let drifted = elapsed + elapsed * i128::from(self.drift_ppm) / 1_000_000;
        Duration::from_nanos(u64::try_from(drifted).unwrap_or(0))
    }
}

/// A seeded generator.
#[derive(Debug)]
pub struct SimulatedRandom(Mutex<SmallRng>);

impl SimulatedRandom {
    /// A generator for one life of a node.
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(SmallRng::seed_from_u64(seed)))
    }
}

impl Random for SimulatedRandom {
    fn next_u64(&self) -> u64 {
        self.0.lock().random()
    }
}
