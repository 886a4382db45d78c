//! The log as everything beside openraft uses it.

use std::{fmt, sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::{
    Error, LogReader,
    queue::{Completion, Request},
    state::{Lifeline, Shared},
};
use crate::types::LogId;

/// Cheap to clone.
#[derive(Clone)]
pub struct LogHandle {
    lifeline: Arc<Lifeline>,
}

impl fmt::Debug for LogHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogHandle").field("directory", &self.shared().directory).finish_non_exhaustive()
    }
}

/// How the log is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Index of the first entry; none when the log holds none.
    pub first_index: Option<u64>,
    /// Index of the last entry; none when the log holds none.
    pub last_index: Option<u64>,
    /// Index up to which entries are durable here.
    pub durable_index: Option<u64>,
    /// Index up to which entries were purged.
    pub purged_index: Option<u64>,
    /// Segment files.
    pub segments: u64,
    /// Size of the segment files, reserved space included.
    pub bytes_on_disk: u64,
    /// Size of the entries in memory.
    pub cached_bytes: u64,
    /// Entries appended since the log was opened.
    pub appended_entries: u64,
    /// Writes since the log was opened.
    pub writes: u64,
    /// Bytes written since the log was opened, headers of segments aside.
    pub written_bytes: u64,
    /// Syncs of records since the log was opened.
    pub syncs: u64,
    /// Median duration of recent syncs.
    pub sync_p50: Duration,
    /// 99th percentile of the duration of recent syncs.
    pub sync_p99: Duration,
    /// Purges that were clamped: each is a bug.
    pub clamped_purges: u64,
}

impl LogHandle {
    pub(super) fn new(lifeline: Arc<Lifeline>) -> Self {
        Self { lifeline }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.lifeline.0
    }

    /// Index of the last entry that is durable here, or up to which the log was purged.
    pub fn durable_index(&self) -> Option<u64> {
        self.shared().state.lock().durable_next.checked_sub(1)
    }

    /// The last entry, durable or not, or where the log was purged when it holds none.
    pub fn last_log_id(&self) -> Option<LogId> {
        self.shared().state.lock().last_log_id()
    }

    /// Waits until the entry at `index` is durable here. Apply waits for it: a state machine ahead of its log
    /// cannot be recovered.
    ///
    /// # Errors
    /// What ended the log before.
    pub async fn wait_durable(&self, index: u64) -> Result<(), Arc<Error>> {
        let mut progress = self.shared().progress();
        let reached = progress
            .wait_for(|progress| progress.durable_next > index || progress.ended.is_some())
            .await
            .map_err(|_| Arc::new(Error::WriterEnded))?;
        match &reached.ended {
            Some(error) if reached.durable_next <= index => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Allows purges up to this index: what the state machine has made durable. It never goes back.
    pub fn set_purge_limit(&self, index: u64) {
        let mut state = self.shared().state.lock();
        state.purge_limit = state.purge_limit.max(Some(index));
    }

    /// The largest payload of an entry, in bytes. Whoever proposes checks it: the log itself can only fail.
    pub fn entry_bytes_max(&self) -> u64 {
        self.shared().entry_bytes_max
    }

    /// Reads entries, for tools and checks that compare the logs of members.
    pub fn reader(&self) -> LogReader {
        LogReader::new(Arc::clone(&self.lifeline))
    }

    /// How the log is doing now.
    pub fn stats(&self) -> Stats {
        let state = self.shared().state.lock();
        let (first, next) = (state.first(), state.cache.next());
        let counters = &state.counters;
        Stats {
            first_index: (first < next).then_some(first),
            last_index: (first < next).then(|| next - 1),
            durable_index: state.durable_next.checked_sub(1),
            purged_index: state.sticky.purged.map(|purged| purged.index),
            segments: state.index.segments().count() as u64,
            bytes_on_disk: state.index.segments().map(|segment| segment.file_bytes).sum(),
            cached_bytes: state.cache.bytes(),
            appended_entries: counters.appended_entries,
            writes: counters.writes,
            written_bytes: counters.written_bytes,
            syncs: counters.syncs,
            sync_p50: counters.percentile(50),
            sync_p99: counters.percentile(99),
            clamped_purges: counters.clamped_purges,
        }
    }

    /// Waits until everything requested so far is durable, and segments purged so far are gone.
    ///
    /// # Errors
    /// What ended the log before.
    pub async fn flush(&self) -> Result<(), Arc<Error>> {
        self.request(|done| Request::Flush { done }).await
    }

    /// Writes and syncs everything requested so far and a closing record, and ends the log; its directory can be
    /// opened again. A second close has nothing to do.
    ///
    /// # Errors
    /// What ended the log before.
    pub async fn close(&self) -> Result<(), Arc<Error>> {
        match self.request(|done| Request::Close { done }).await {
            Err(error) if matches!(*error, Error::Closed) => Ok(()),
            result => result,
        }
    }

    /// Resolves when the log has ended by a fault, with it; never after a close. The node must stop then.
    pub async fn fault(&self) -> Arc<Error> {
        let mut progress = self.shared().progress();
        let is_fault = |error: &Arc<Error>| !matches!(**error, Error::Closed);
        let ended = progress.wait_for(|progress| progress.ended.as_ref().is_some_and(is_fault)).await;
        match ended.ok().and_then(|progress| progress.ended.clone()) {
            Some(fault) => fault,
            // The sender lives as long as this handle.
            None => std::future::pending().await,
        }
    }

    /// The fault that has ended the log, if any.
    pub fn current_fault(&self) -> Option<Arc<Error>> {
        let ended = self.shared().progress().borrow().ended.clone();
        ended.filter(|error| !matches!(**error, Error::Closed))
    }

    async fn request(&self, request: impl FnOnce(Completion) -> Request) -> Result<(), Arc<Error>> {
        let (sender, receiver) = oneshot::channel();
        let done = Box::new(move |result| drop(sender.send(result)));
        self.shared().queue.push(request(done))?;
        receiver.await.unwrap_or_else(|_| Err(Arc::new(Error::WriterEnded)))
    }
}
