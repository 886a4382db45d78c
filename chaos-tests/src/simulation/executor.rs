//! The tasks of one life of a node: seeded, on the one thread of the simulation, and gone with a crash.

use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tidemark_raft::{SimulatedRuntime, environment::Executor, log::SpawnTask};
use tokio_util::sync::CancellationToken;

/// Runs tasks until the node crashes. Blocking work is done at once: disks have simulated latency of their own.
#[derive(Clone, Debug)]
pub struct SimulatedExecutor {
    /// Every task draws its own seed: what consensus draws in it depends on nothing else.
    seeds: Arc<Mutex<SmallRng>>,
    crashed: CancellationToken,
}

impl SimulatedExecutor {
    /// An executor for one life of a node.
    pub fn new(seed: u64) -> Self {
        let seeds = Arc::new(Mutex::new(SmallRng::seed_from_u64(seed)));
        Self { seeds, crashed: CancellationToken::new() }
    }

    /// Ends every task at its next await point.
    pub fn crash(&self) {
        self.crashed.cancel();
    }

    /// Whether the node has crashed.
    pub fn has_crashed(&self) -> bool {
        self.crashed.is_cancelled()
    }

    /// Spawns tasks that a crash does not end: they fail by themselves when their disk does. Whoever waits for the
    /// log gets an error then, instead of no answer for ever.
    pub fn surviving(&self) -> SpawnTask {
        let executor = self.clone();
        Arc::new(move |task| drop(tokio::spawn(executor.seeded(task))))
    }

    fn seeded<F: Future>(&self, task: F) -> impl Future<Output = F::Output> + use<F> {
        let seed = self.seeds.lock().random();
        SimulatedRuntime::scope(seed, task)
    }
}

impl Executor for SimulatedExecutor {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        let (crashed, task) = (self.crashed.clone(), self.seeded(task));
        tokio::spawn(async move {
            tokio::select! {
                // In this order: a crashed node does not take one more step.
                biased;
                () = crashed.cancelled() => {}
                () = task => {}
            }
        });
    }

    fn spawn_blocking(&self, job: Box<dyn FnOnce() + Send>) {
        job();
    }
}
