//! The log as openraft uses it.

use std::{fmt, io, sync::Arc};

use openraft::{
    AsyncRuntime, OptionalSend,
    storage::{IOFlushed, LogState, RaftLogStorage},
};
use tokio::sync::oneshot;

use super::{
    Error, LogHandle, LogReader,
    queue::Request,
    reader::to_io_error,
    state::{Lifeline, Shared},
};
use crate::{
    convert,
    types::{Entry, LogId, Types, Vote},
};

/// The segment log: openraft's `RaftLogStorage`. There is one per directory; readers and handles are cloneable.
pub struct SegmentLog {
    lifeline: Arc<Lifeline>,
}

impl fmt::Debug for SegmentLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SegmentLog").field("directory", &self.shared().directory).finish_non_exhaustive()
    }
}

impl SegmentLog {
    pub(super) fn new(lifeline: Arc<Lifeline>) -> Self {
        Self { lifeline }
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.lifeline.0
    }

    /// A reader of entries and vote.
    pub fn reader(&self) -> LogReader {
        LogReader::new(self.lifeline.clone())
    }

    /// A handle for everything beside openraft.
    pub fn handle(&self) -> LogHandle {
        LogHandle::new(self.lifeline.clone())
    }

    /// Checks that entries continue the log and fit.
    fn check_entries(&self, entries: &[Entry]) -> Result<(), Error> {
        let next = {
            let state = self.shared().state.lock();
            let first = entries.first().filter(|_| state.is_pristine()).map(|first| first.log_id.index);
            first.unwrap_or_else(|| state.cache.next())
        };
        let limit = self.shared().entry_bytes_max;
        for (expected, entry) in (next..).zip(entries) {
            let index = entry.log_id.index;
            if index != expected {
                return Err(Error::Gap { found: index, expected });
            }
            let bytes = convert::payload_to_bytes(&entry.payload).1.len() as u64;
            if bytes > limit {
                return Err(Error::EntryTooLarge { index, bytes, limit });
            }
        }
        Ok(())
    }

    fn push(&self, request: Request) -> Result<(), io::Error> {
        self.shared().queue.push(request).map_err(to_io_error)
    }

    /// Where a purge may really reach: never past what the state machine has made durable.
    fn clamp_purge(&self, requested: LogId) -> Option<LogId> {
        let mut state = self.shared().state.lock();
        let limit = state.purge_limit;
        if limit.is_some_and(|limit| requested.index <= limit) {
            return Some(requested);
        }
        state.counters.clamped_purges += 1;
        let clamped = limit.and_then(|limit| state.log_id_at(limit));
        tracing::error!(
            requested = requested.index,
            limit,
            clamped = clamped.map(|log_id| log_id.index),
            "a purge beyond what the state machine has made durable was clamped; this is a bug"
        );
        clamped
    }
}

impl<RT: AsyncRuntime> RaftLogStorage<Types<RT>> for SegmentLog {
    type LogReader = LogReader;

    async fn get_log_state(&mut self) -> Result<LogState<Types<RT>>, io::Error> {
        let state = self.shared().state.lock();
        Ok(LogState { last_purged_log_id: state.sticky.purged, last_log_id: state.last_log_id() })
    }

    async fn get_log_reader(&mut self) -> LogReader {
        self.reader()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        let (sender, receiver) = oneshot::channel();
        let done = Box::new(move |result| drop(sender.send(result)));
        self.push(Request::Vote { vote: *vote, done })?;
        receiver.await.unwrap_or_else(|_| Err(Arc::new(Error::WriterEnded))).map_err(to_io_error)
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        self.shared().state.lock().sticky.committed = committed;
        self.push(Request::Committed(committed))
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        Ok(self.shared().state.lock().sticky.committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types<RT>>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        self.shared().queue.ready().await.map_err(to_io_error)?;
        self.check_entries(&entries).map_err(|error| to_io_error(Arc::new(error)))?;
        {
            let mut state = self.shared().state.lock();
            if let Some(first) = entries.first()
                && state.is_pristine()
            {
                state.origin = first.log_id.index;
                state.cache.begin_at(first.log_id.index);
            }
            for entry in &entries {
                state.terms.push(entry.log_id.index, convert::term_of(&entry.log_id));
                state.cache.push(entry.clone());
            }
        }
        let done = Box::new(move |result: Result<(), Arc<Error>>| {
            callback.io_completed(result.map_err(to_io_error))
        });
        self.push(Request::Append { entries, done })
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> Result<(), io::Error> {
        let next = {
            let mut state = self.shared().state.lock();
            let next = last_log_id.map_or(0, |last| last.index + 1).max(state.first());
            if next >= state.cache.next() {
                return Ok(());
            }
            state.cache.truncate(next);
            state.terms.truncate(next);
            state.durable_next = state.durable_next.min(next);
            state.pending_truncations.push_back(next);
            let durable_next = state.durable_next;
            self.shared().publish_durable(durable_next);
            next
        };
        self.push(Request::Truncate { next })
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), io::Error> {
        let Some(upto) = self.clamp_purge(log_id) else { return Ok(()) };
        {
            let mut state = self.shared().state.lock();
            let already = state.sticky.purged.is_some_and(|purged| upto.index <= purged.index);
            if already || upto.index + 1 < state.first() {
                return Ok(());
            }
            if upto.index >= state.cache.next() {
                state.terms.clear();
            }
            state.sticky.purged = Some(upto);
            state.cache.purge(upto.index);
            state.terms.purge(upto.index);
            // What the state machine has made durable need not be in the log.
            state.durable_next = state.durable_next.max(upto.index + 1);
            let durable_next = state.durable_next;
            self.shared().publish_durable(durable_next);
        }
        self.push(Request::Purge { upto })
    }
}
