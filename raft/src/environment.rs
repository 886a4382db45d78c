//! What a node takes from outside, so that a simulation can stand in for all of it.
//!
//! **Invariant**: nothing else in this crate or in `node` reads a clock, draws a random number, starts a thread or
//! opens a socket or a log file.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;

use crate::{network::Transport, vfs::Vfs};

/// Wall and monotonic time.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since the Unix epoch, as the operating system sees it: it may jump.
    fn wall_ms(&self) -> u64;

    /// Time since an arbitrary moment; never goes back.
    fn monotonic(&self) -> Duration;
}

/// Random numbers for identities and jitter. Consensus draws its own from the async runtime.
pub trait Random: Send + Sync + 'static {
    /// A uniformly distributed number.
    fn next_u64(&self) -> u64;
}

/// Where tasks and blocking work run.
pub trait Executor: Send + Sync + 'static {
    /// Runs `task` concurrently until it ends or the node stops.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// Runs `job`, which may block on disk, where it cannot starve tasks.
    fn spawn_blocking(&self, job: Box<dyn FnOnce() + Send>);
}

/// Everything from outside, passed down from the composition root.
#[derive(Clone)]
pub struct Environment {
    /// Clocks.
    pub clock: Arc<dyn Clock>,
    /// Random numbers.
    pub random: Arc<dyn Random>,
    /// Files.
    pub vfs: Arc<dyn Vfs>,
    /// The way to other members.
    pub transport: Arc<dyn Transport>,
    /// Tasks and blocking work.
    pub executor: Arc<dyn Executor>,
}

impl Environment {
    /// Runs `job` where it may block and returns its result.
    ///
    /// # Panics
    ///
    /// If the job panicked: its result does not exist, and going on without it would hide a fault.
    pub async fn blocking<T, F>(&self, job: F) -> T
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        self.executor.spawn_blocking(Box::new(move || {
            // The caller may have gone away.
            let _ = sender.send(job());
        }));
        receiver.await.expect("blocking work ends with a result unless it panicked")
    }

    /// 16 random bytes.
    pub fn random_id(&self) -> [u8; 16] {
        random_id(&*self.random)
    }
}

/// 16 random bytes.
pub(crate) fn random_id(random: &dyn Random) -> [u8; 16] {
    let (high, low) = (random.next_u64(), random.next_u64());
    ((u128::from(high) << 64) | u128::from(low)).to_be_bytes()
}

/// The operating system's clocks.
#[derive(Debug)]
pub struct SystemClock {
    start: std::time::Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { start: std::time::Instant::now() }
    }
}

impl Clock for SystemClock {
    fn wall_ms(&self) -> u64 {
        let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        // A clock set before 1970 reads as 0; the replicated clock never goes back anyway.
        since_epoch.map_or(0, |elapsed| u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX))
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }
}

/// The thread's cryptographic generator.
#[derive(Debug, Default)]
pub struct SystemRandom;

impl Random for SystemRandom {
    fn next_u64(&self) -> u64 {
        rand::random()
    }
}

/// Tasks on a tokio runtime and blocking work on its blocking pool; everything ends when the executor is stopped.
#[derive(Clone, Debug)]
pub struct TokioExecutor {
    runtime: tokio::runtime::Handle,
    stop: tokio_util::sync::CancellationToken,
}

impl TokioExecutor {
    /// An executor on `runtime`.
    pub fn new(runtime: tokio::runtime::Handle) -> Self {
        Self { runtime, stop: tokio_util::sync::CancellationToken::new() }
    }

    /// Cancels every task at its next await point.
    pub fn stop(&self) {
        self.stop.cancel();
    }
}

impl Executor for TokioExecutor {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        let stop = self.stop.clone();
        self.runtime.spawn(async move {
            stop.run_until_cancelled(task).await;
        });
    }

    fn spawn_blocking(&self, job: Box<dyn FnOnce() + Send>) {
        self.runtime.spawn_blocking(job);
    }
}
