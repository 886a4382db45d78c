//! What the writer, the readers and the handles share.

use std::{collections::VecDeque, path::PathBuf, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::{
    BlockingWork, Error,
    cache::Cache,
    index::{Index, Terms},
    queue::{Queue, Request},
    segment::Sticky,
};
use crate::{convert, types::LogId};

/// How many syncs the latency percentiles look back on.
const SYNC_WINDOW: usize = 1024;

/// Shared by everything that belongs to one open log.
pub(super) struct Shared {
    pub state: Mutex<State>,
    pub queue: Queue,
    pub directory: PathBuf,
    /// Bytes of entries in one answer to a peer.
    pub append_body_bytes: u64,
    /// The largest payload of an entry.
    pub entry_bytes_max: u64,
    pub blocking: BlockingWork,
    progress: watch::Sender<Progress>,
}

/// What waiters wait for.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    /// Index after the last durable entry.
    pub durable_next: u64,
    /// Why nothing more becomes durable.
    pub ended: Option<Arc<Error>>,
}

/// The log as readers see it.
pub(super) struct State {
    /// The vote is the last durable one; purged and committed are the last requested ones.
    pub sticky: Sticky,
    pub cache: Cache,
    pub terms: Terms,
    pub index: Index,
    /// Index of the first entry of a log that was never purged.
    pub origin: u64,
    /// Index after the last durable entry.
    pub durable_next: u64,
    /// Where truncations cut that the writer has not reached yet, in order: an append before them makes nothing
    /// from there on durable.
    pub pending_truncations: VecDeque<u64>,
    /// Purges beyond this are clamped; `None` until the state machine has said how far it is durable.
    pub purge_limit: Option<u64>,
    pub counters: Counters,
}

/// Numbers for [`super::Stats`].
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub appended_entries: u64,
    pub writes: u64,
    pub written_bytes: u64,
    pub syncs: u64,
    pub clamped_purges: u64,
    /// Latest sync latencies, in arrival order.
    latencies: VecDeque<Duration>,
}

impl Counters {
    pub(super) fn synced(&mut self, latency: Duration) {
        self.syncs += 1;
        if self.latencies.len() == SYNC_WINDOW {
            self.latencies.pop_front();
        }
        self.latencies.push_back(latency);
    }

    /// Latency that this share of recent syncs did not exceed.
    pub(super) fn percentile(&self, percent: usize) -> Duration {
        let mut sorted: Vec<_> = self.latencies.iter().copied().collect();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
        sorted.get(rank).copied().unwrap_or_default()
    }
}

impl State {
    /// Index of the first entry that was not purged.
    pub(super) fn first(&self) -> u64 {
        self.sticky.purged.map_or(self.origin, |purged| purged.index + 1)
    }

    /// Whether the log may begin anywhere: it holds nothing and nothing was purged. Raft begins at 0; openraft's
    /// suite does not always.
    pub(super) fn is_pristine(&self) -> bool {
        self.sticky.purged.is_none() && self.cache.next() == self.origin
    }

    /// The last entry, or where the log was purged when it holds none.
    pub(super) fn last_log_id(&self) -> Option<LogId> {
        if self.cache.next() == self.first() {
            self.sticky.purged
        } else {
            self.log_id_at(self.cache.next() - 1)
        }
    }

    /// The log id of an entry that the log holds.
    pub(super) fn log_id_at(&self, index: u64) -> Option<LogId> {
        let held = index >= self.first() && index < self.cache.next();
        held.then(|| self.terms.term_at(index)).flatten().map(|term| convert::log_id(term, index))
    }
}

impl Shared {
    pub(super) fn new(
        state: State,
        directory: PathBuf,
        append_body_bytes: u64,
        entry_bytes_max: u64,
        blocking: BlockingWork,
    ) -> Self {
        let (progress, _) = watch::channel(Progress { durable_next: state.durable_next, ended: None });
        let state = Mutex::new(state);
        Self { state, queue: Queue::new(), directory, append_body_bytes, entry_bytes_max, blocking, progress }
    }

    /// What waiters wait for, from now on.
    pub(super) fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Tells waiters how far the log is durable.
    pub(super) fn publish_durable(&self, durable_next: u64) {
        self.progress.send_if_modified(|progress| {
            let changed = progress.durable_next != durable_next;
            progress.durable_next = durable_next;
            changed
        });
    }

    /// Ends the log: nothing more is written, and whoever waits learns why. The first reason stays.
    pub(super) fn end(&self, error: Error) -> Arc<Error> {
        let (requests, error) = self.queue.end(Arc::new(error));
        self.progress.send_if_modified(|progress| {
            let first = progress.ended.is_none();
            progress.ended.get_or_insert_with(|| error.clone());
            first
        });
        for done in requests.into_iter().filter_map(Request::into_completion) {
            done(Err(error.clone()));
        }
        error
    }
}

/// Held by everything that can use the log; when the last goes, the writer finishes what is queued and ends.
pub(super) struct Lifeline(pub Arc<Shared>);

impl Drop for Lifeline {
    fn drop(&mut self) {
        self.0.queue.abandon();
    }
}
