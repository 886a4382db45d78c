//! The read barrier: ReadIndex (Raft dissertation, section 6.4), batched.
//!
//! A linearizable read asks for a log id *after* it arrived and waits until that log id is applied here. All reads
//! that wait when a round begins share it; a read that arrives during a round takes the next one. Lease reads
//! stay off: a restarted voter forgets in this version of openraft that it granted a lease.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};

use crate::{environment::Environment, error::BarrierError, types::LogId};

/// Obtains a read index in one round, whoever asks for it.
#[async_trait]
pub(crate) trait Round: Send + Sync + 'static {
    async fn read_index(&self) -> Result<LogId, BarrierError>;
}

type Waiter = oneshot::Sender<Result<LogId, BarrierError>>;

/// Reads that wait for one round.
const QUEUE_READS: usize = 65_536;

/// Batches concurrent requests for a read index into rounds.
#[derive(Clone)]
pub(crate) struct ReadIndex {
    queue: mpsc::Sender<Waiter>,
}

impl ReadIndex {
    /// Starts the task that runs rounds; one that takes longer than `timeout` fails.
    pub(crate) fn start(environment: &Environment, round: Arc<dyn Round>, timeout: Duration) -> Self {
        let (queue, waiters) = mpsc::channel(QUEUE_READS);
        environment.executor.spawn(Box::pin(run(waiters, round, timeout)));
        Self { queue }
    }

    /// A read index that was obtained after this call began.
    pub(crate) async fn local(&self) -> Result<LogId, BarrierError> {
        let (sender, receiver) = oneshot::channel();
        self.queue.send(sender).await.map_err(|_| BarrierError::Stopped)?;
        receiver.await.map_err(|_| BarrierError::Stopped)?
    }
}

async fn run(mut waiters: mpsc::Receiver<Waiter>, round: Arc<dyn Round>, timeout: Duration) {
    while let Some(first) = waiters.recv().await {
        let mut batch = vec![first];
        while let Ok(waiter) = waiters.try_recv() {
            batch.push(waiter);
        }
        let result = tokio::time::timeout(timeout, round.read_index()).await;
        let result = result.unwrap_or(Err(BarrierError::NoQuorum));
        for waiter in batch {
            // A reader that gave up is no reason to stop.
            let _ = waiter.send(result.clone());
        }
    }
}
