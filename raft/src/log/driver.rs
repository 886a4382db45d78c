//! What drives the writer: a thread of its own, or a task for simulations on paused time.

use std::{fmt, sync::Arc, time::Duration};

use futures::future::BoxFuture;

use super::{
    Action, Error, MARK_AFTER_QUIET,
    queue::Woken,
    writer::{Durability, LogWriter, Next},
};

/// Starts a task that runs beside the caller.
pub type SpawnTask = Arc<dyn Fn(BoxFuture<'static, ()>) + Send + Sync>;

/// Where the writer runs.
#[derive(Clone)]
pub enum Driver {
    /// On its own thread, which blocks in writes and syncs.
    Thread,
    /// As a task: for simulations, where time is simulated and files are in memory.
    Task {
        /// Starts the task.
        spawn: SpawnTask,
        /// How long each sync takes in simulated time.
        sync_latency: Duration,
    },
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Thread => f.write_str("Thread"),
            Self::Task { sync_latency, .. } => {
                f.debug_struct("Task").field("sync_latency", sync_latency).finish_non_exhaustive()
            }
        }
    }
}

impl Driver {
    /// A task of the tokio runtime that is current when the log is opened.
    pub fn tokio_task(sync_latency: Duration) -> Self {
        let spawn: SpawnTask = Arc::new(|task| drop(tokio::spawn(task)));
        Self::Task { spawn, sync_latency }
    }

    /// Starts the writer.
    pub(super) fn start(self, writer: LogWriter) -> Result<(), Error> {
        match self {
            Self::Thread => {
                let directory = writer.shared().directory.clone();
                std::thread::Builder::new()
                    .name("tidemark-log".to_owned())
                    .spawn(move || run_on_thread(writer))
                    .map(drop)
                    .map_err(Error::io(Action::StartWriter, directory))
            }
            Self::Task { spawn, sync_latency } => {
                spawn(Box::pin(run_as_task(writer, sync_latency)));
                Ok(())
            }
        }
    }
}

fn run_on_thread(mut writer: LogWriter) {
    let shared = writer.shared();
    loop {
        let quiet = writer.wants_mark().then_some(MARK_AFTER_QUIET);
        let next = match shared.queue.wait(quiet) {
            Woken::Requests => writer.step(),
            Woken::Quiet => writer.mark(),
            Woken::Abandoned => Next::Ended,
        };
        if next == Next::Ended {
            return;
        }
    }
}

async fn run_as_task(mut writer: LogWriter, sync_latency: Duration) {
    let shared = writer.shared();
    loop {
        let woken = if writer.wants_mark() {
            tokio::time::timeout(MARK_AFTER_QUIET, shared.queue.wait_async()).await.unwrap_or(Woken::Quiet)
        } else {
            shared.queue.wait_async().await
        };
        let next = match woken {
            Woken::Requests => step(&mut writer, sync_latency).await,
            Woken::Quiet => writer.mark(),
            Woken::Abandoned => Next::Ended,
        };
        if next == Next::Ended {
            return;
        }
    }
}

/// As [`LogWriter::step`], but a sync takes simulated time, in which the next batch gathers.
async fn step(writer: &mut LogWriter, sync_latency: Duration) -> Next {
    let Some(mut drain) = writer.take() else { return Next::Continue };
    let mut result = writer.write(&mut drain);
    if result.is_ok() && drain.durability() == Durability::Synced {
        if !sync_latency.is_zero() {
            tokio::time::sleep(sync_latency).await;
        }
        result = writer.sync();
    }
    writer.finish(drain, result)
}
