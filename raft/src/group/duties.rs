//! What every member does beside consensus: flush the database, and cut the log.

use std::{sync::Arc, time::Duration};

use openraft::AsyncRuntime;

use super::{Raft, Retention};
use crate::{environment::Environment, machine::Replica};

/// The log may be cut at most this often.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);

pub(super) fn run_duties<RT: AsyncRuntime>(
    environment: &Environment,
    retention: &Retention,
    replica: &Arc<Replica>,
    raft: &Raft<RT>,
) {
    let flush_interval = Duration::from_millis(retention.flush_interval_ms);
    environment.executor.spawn(Box::pin(flush_regularly(Arc::clone(replica), flush_interval)));
    let cut = cut_log_regularly(Arc::clone(replica), raft.clone(), retention.clone());
    environment.executor.spawn(Box::pin(cut));
}

async fn flush_regularly(replica: Arc<Replica>, interval: Duration) {
    let mut flushed = None;
    loop {
        tokio::time::sleep(interval).await;
        let applied = replica.progress.borrow().log_id;
        if applied == flushed {
            continue;
        }
        let flushing = Arc::clone(&replica);
        match replica.environment.blocking(move || flushing.flush()).await {
            Ok(_) => flushed = applied,
            // The log stays as long as it is needed; the next flush may succeed, and apply will tell otherwise.
            Err(fault) => tracing::error!(%fault, "could not flush the database"),
        }
    }
}

async fn cut_log_regularly<RT: AsyncRuntime>(replica: Arc<Replica>, raft: Raft<RT>, retention: Retention) {
    loop {
        tokio::time::sleep(MAINTENANCE_INTERVAL).await;
        if replica.log.stats().bytes_on_disk <= retention.snapshot_log_bytes {
            continue;
        }
        let Some(upto) = replica.log.purge_candidate(retention.keep_log_bytes) else { continue };
        let Some(applied) = replica.progress.borrow().log_id else { continue };
        tracing::info!(upto, applied = applied.index, "cutting the log");
        // openraft purges only behind a snapshot; building one here means flushing.
        if raft.trigger().snapshot().await.is_err() || wait_for_snapshot(&raft, upto).await.is_none() {
            continue;
        }
        if raft.trigger().purge_log(upto).await.is_err() {
            return;
        }
    }
}

/// A snapshot is a flush, which a slow disk may delay.
const SNAPSHOT_BUILD_TIMEOUT: Duration = Duration::from_secs(60);

async fn wait_for_snapshot<RT: AsyncRuntime>(raft: &Raft<RT>, upto: u64) -> Option<()> {
    let wait = raft.wait(Some(SNAPSHOT_BUILD_TIMEOUT));
    let built = wait.metrics(
        |metrics| metrics.snapshot.is_some_and(|snapshot| snapshot.index >= upto),
        "a snapshot behind the entries to purge",
    );
    built.await.ok().map(|_| ())
}
