//! The only place that writes segments: a state machine that a thread or a task drives.
//!
//! One round is: take what is queued, one write, one sync when something in it must be durable, then the
//! completions in order. There is no timer: the sync in flight is the window in which the next batch gathers.

use std::sync::Arc;

use super::{
    Action, Clock, DRAIN_BYTES_MAX, Error,
    files::{Active, Files},
    index::{IndexedSegment, Place},
    queue::Request,
    record::{self, FLAG, Kind},
    segment::{self, Sticky},
    state::{Shared, State},
};
use crate::{
    convert::{self, PayloadKind},
    types::Entry,
    vfs::VfsLock,
};

/// Space at a segment's end that only a mark and a closing record may use, so that they never need a new one.
const MARKERS_BYTES: u64 = 2 * 48;

/// A buffer that grew beyond this is given back after use.
const BUFFER_KEPT_BYTES: usize = 16 << 20;

/// The largest payload that fits into an empty segment.
pub(super) fn payload_bytes_max(segment_bytes: u64) -> u64 {
    segment_bytes
        - segment::HEADER_BYTES
        - MARKERS_BYTES
        - record::HEADER_BYTES as u64
        - record::ALIGNMENT as u64
}

/// Requests between being taken and being completed.
pub(super) struct Drain {
    requests: Vec<Request>,
    effects: Vec<Effect>,
    durability: Durability,
}

/// Whether a drain holds something that must be durable before its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durability {
    Synced,
    Unsynced,
}

/// A change of the index that becomes visible with the completion.
enum Effect {
    Entry(u64, Place),
    Segment(Box<IndexedSegment>),
    Truncate(u64),
    Purge(u64),
}

/// Whether the writer goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Continue,
    Ended,
}

impl Drain {
    pub(super) fn durability(&self) -> Durability {
        self.durability
    }
}

/// The writer.
pub(super) struct LogWriter {
    shared: Arc<Shared>,
    files: Files,
    active: Active,
    /// State of the log after the last request written, for the header of the next segment.
    sticky: Sticky,
    next: u64,
    /// Encoded records that end at `active.end` and are not written yet.
    buffer: Vec<u8>,
    clock: Clock,
    /// Released when the writer ends, so that the log can be opened again.
    _lock: Box<dyn VfsLock>,
}

impl LogWriter {
    pub(super) fn new(
        shared: Arc<Shared>,
        files: Files,
        active: Active,
        sticky: Sticky,
        next: u64,
        clock: Clock,
        lock: Box<dyn VfsLock>,
    ) -> Self {
        Self { shared, files, active, sticky, next, buffer: Vec::new(), clock, _lock: lock }
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// One whole round. Errors are final and have been told to everyone when this returns.
    pub(super) fn step(&mut self) -> Next {
        let Some(mut drain) = self.take() else { return Next::Continue };
        let result = self.write(&mut drain).and_then(|()| match drain.durability() {
            Durability::Synced => self.sync(),
            Durability::Unsynced => Ok(()),
        });
        self.finish(drain, result)
    }

    /// Takes what is queued.
    pub(super) fn take(&mut self) -> Option<Drain> {
        let requests = self.shared.queue.take(DRAIN_BYTES_MAX);
        let must_sync = |request: &Request| match request {
            Request::Append { .. }
            | Request::Vote { .. }
            | Request::Purge { .. }
            | Request::Flush { .. }
            | Request::Close { .. } => true,
            // A truncation that is lost brings back entries that nobody was promised to be rid of; a lost
            // `committed` only makes the restart slower.
            Request::Truncate { .. } | Request::Committed(_) => false,
        };
        let durability =
            if requests.iter().any(must_sync) { Durability::Synced } else { Durability::Unsynced };
        (!requests.is_empty()).then(|| Drain { requests, effects: Vec::new(), durability })
    }

    /// Writes a drain, with as few writes as it touches segments.
    pub(super) fn write(&mut self, drain: &mut Drain) -> Result<(), Error> {
        let last_committed =
            drain.requests.iter().rposition(|request| matches!(request, Request::Committed(_)));
        for (position, request) in drain.requests.iter().enumerate() {
            match request {
                Request::Append { entries, .. } => {
                    for entry in entries {
                        self.put_entry(entry, &mut drain.effects)?;
                    }
                }
                // Only the latest matters.
                Request::Committed(_) if Some(position) != last_committed => {}
                Request::Flush { .. } => {}
                Request::Close { .. } => self.put_closing()?,
                Request::Vote { .. }
                | Request::Truncate { .. }
                | Request::Purge { .. }
                | Request::Committed(_) => {
                    self.put_control(request, &mut drain.effects)?;
                }
            }
        }
        self.flush_buffer()
    }

    /// Makes everything written durable.
    pub(super) fn sync(&mut self) -> Result<(), Error> {
        let started = (self.clock)();
        self.active.file.sync_data().map_err(Error::io(Action::Sync, self.files.path_of(&self.active)))?;
        let latency = (self.clock)().saturating_sub(started);
        self.active.synced = self.active.end;
        self.active.content_synced = self.active.content_end;
        self.shared.state.lock().counters.synced(latency);
        Ok(())
    }

    /// Completes a drain, or fails it and everything after it.
    pub(super) fn finish(&mut self, drain: Drain, result: Result<(), Error>) -> Next {
        if let Err(error) = result {
            return self.fail(drain, error);
        }
        let closing = matches!(drain.requests.first(), Some(Request::Close { .. }));
        let purged_segments = self.publish(&drain);
        // Unlinked before the completions, so that a flush also waits for it; purges are rare.
        for sequence in purged_segments {
            if let Err(error) = self.files.remove(sequence) {
                return self.fail(drain, error);
            }
        }
        if closing {
            self.shared.end(Error::Closed);
            return self.release(drain);
        }
        for done in drain.requests.into_iter().filter_map(Request::into_completion) {
            done(Ok(()));
        }
        Next::Continue
    }

    /// Whether a mark would tell damage from a torn write where nothing else does yet.
    pub(super) fn wants_mark(&self) -> bool {
        self.active.noted < self.active.content_synced && self.has_room_for_marker()
    }

    /// Writes a mark. It needs no sync: losing it loses nothing.
    pub(super) fn mark(&mut self) -> Next {
        self.put_marker(Kind::Mark);
        match self.flush_buffer() {
            Ok(()) => Next::Continue,
            Err(error) => {
                self.shared.end(error);
                Next::Ended
            }
        }
    }

    fn fail(&mut self, drain: Drain, error: Error) -> Next {
        let error = self.shared.end(error);
        for done in drain.requests.into_iter().filter_map(Request::into_completion) {
            done(Err(error.clone()));
        }
        Next::Ended
    }

    /// Answers a close after the lock is free.
    fn release(&mut self, drain: Drain) -> Next {
        self._lock = Box::new(Released);
        for done in drain.requests.into_iter().filter_map(Request::into_completion) {
            done(Ok(()));
        }
        Next::Ended
    }

    /// Lets readers and waiters see a drain; returns the segments that are not needed any more.
    fn publish(&mut self, drain: &Drain) -> Vec<u64> {
        let mut guard = self.shared.state.lock();
        let state: &mut State = &mut guard;
        for request in &drain.requests {
            match request {
                Request::Append { entries, .. } => {
                    let Some(last) = entries.last() else { continue };
                    let cut = state.pending_truncations.iter().copied().min().unwrap_or(u64::MAX);
                    state.durable_next = state.durable_next.max(cut.min(last.log_id.index + 1));
                    state.counters.appended_entries += entries.len() as u64;
                }
                Request::Truncate { .. } => {
                    state.pending_truncations.pop_front();
                }
                Request::Vote { vote, .. } => state.sticky.vote = Some(*vote),
                Request::Purge { .. }
                | Request::Committed(_)
                | Request::Flush { .. }
                | Request::Close { .. } => {}
            }
        }
        let mut purged_segments = Vec::new();
        for effect in &drain.effects {
            match effect {
                Effect::Entry(index, place) => state.index.push(*index, *place),
                Effect::Segment(segment) => state.index.push_segment((**segment).clone()),
                Effect::Truncate(next) => state.index.truncate(*next),
                Effect::Purge(upto) => {
                    state.index.purge(*upto);
                    purged_segments.extend(
                        std::iter::from_fn(|| state.index.pop_purged()).map(|segment| segment.sequence),
                    );
                }
            }
        }
        state.cache.evict(state.durable_next.checked_sub(1));
        let durable_next = state.durable_next;
        drop(guard);
        self.shared.publish_durable(durable_next);
        purged_segments
    }

    fn put_entry(&mut self, entry: &Entry, effects: &mut Vec<Effect>) -> Result<(), Error> {
        let (kind, payload) = convert::payload_to_bytes(&entry.payload);
        let kind = match kind {
            PayloadKind::Blank => Kind::Blank,
            PayloadKind::Command => Kind::Command,
            PayloadKind::Membership => Kind::Membership,
        };
        let term = convert::term_of(&entry.log_id);
        let leader = match self.sticky.vote {
            Some(vote) if vote.leader_id.term == term => vote.leader_id.voted_for,
            _ => 0,
        };
        let index = entry.log_id.index;
        let header = record_header(kind, 0, (term, leader, index));
        let place = self.put(header, &payload, effects)?;
        effects.push(Effect::Entry(index, place));
        self.next = index + 1;
        Ok(())
    }

    /// Puts a record that changes what is not an entry.
    fn put_control(&mut self, request: &Request, effects: &mut Vec<Effect>) -> Result<(), Error> {
        match request {
            Request::Vote { vote, .. } => {
                let flags = if vote.committed { FLAG } else { 0 };
                let header =
                    record_header(Kind::Vote, flags, (vote.leader_id.term, vote.leader_id.voted_for, 0));
                self.put(header, &[], effects)?;
                self.sticky.vote = Some(*vote);
            }
            Request::Truncate { next } => {
                let (flags, index) = next.checked_sub(1).map_or((FLAG, 0), |after| (0, after));
                let header = record_header(Kind::Truncate, flags, (0, 0, index));
                self.put(header, &[], effects)?;
                effects.push(Effect::Truncate(*next));
                self.next = *next;
            }
            Request::Purge { upto } => {
                let header = record_header(Kind::Purge, 0, (convert::term_of(upto), 0, upto.index));
                self.put(header, &[], effects)?;
                effects.push(Effect::Purge(upto.index));
                self.sticky.purged = Some(*upto);
                self.next = self.next.max(upto.index + 1);
            }
            Request::Committed(committed) => {
                let (flags, term, index) = match committed {
                    Some(log_id) => (0, convert::term_of(log_id), log_id.index),
                    None => (FLAG, 0, 0),
                };
                let header = record_header(Kind::Committed, flags, (term, 0, index));
                self.put(header, &[], effects)?;
                self.sticky.committed = *committed;
            }
            Request::Append { .. } | Request::Flush { .. } | Request::Close { .. } => {}
        }
        Ok(())
    }

    /// Encodes a record into the buffer, beginning a new segment when it does not fit.
    fn put(
        &mut self,
        mut header: record::Header,
        payload: &[u8],
        effects: &mut Vec<Effect>,
    ) -> Result<Place, Error> {
        let size = record::size(payload.len());
        if self.active.end + size as u64 + MARKERS_BYTES > self.files.segment_bytes {
            self.roll(effects)?;
        }
        header.synced = self.active.synced;
        let offset = self.active.end;
        record::encode(&mut self.buffer, self.active.salt, offset, &header, payload);
        self.active.end += size as u64;
        self.active.content_end = self.active.end;
        self.active.noted = self.active.noted.max(header.synced);
        self.active.ends_with_closing = false;
        Ok(Place {
            offset: u32::try_from(offset).expect("segments are smaller than 4 GiB"),
            bytes: u32::try_from(size).expect("segments are smaller than 4 GiB"),
        })
    }

    fn put_closing(&mut self) -> Result<(), Error> {
        // A log that is opened and closed again and again does not grow.
        if self.active.ends_with_closing || !self.has_room_for_marker() {
            return Ok(());
        }
        // The closing record vouches for what was durable when it was written: that shall be everything.
        if self.active.content_synced < self.active.content_end {
            self.sync()?;
        }
        self.put_marker(Kind::Closing);
        Ok(())
    }

    fn put_marker(&mut self, kind: Kind) {
        let mut header = record_header(kind, 0, (0, 0, self.next));
        header.synced = self.active.synced;
        record::encode(&mut self.buffer, self.active.salt, self.active.end, &header, &[]);
        self.active.end += record::size(0) as u64;
        self.active.noted = header.synced;
        self.active.ends_with_closing = kind == Kind::Closing;
    }

    fn has_room_for_marker(&self) -> bool {
        self.active.end + record::size(0) as u64 <= self.files.segment_bytes
    }

    /// Ends the active segment, durably, and begins the next one, durably, before anything goes into it.
    fn roll(&mut self, effects: &mut Vec<Effect>) -> Result<(), Error> {
        self.flush_buffer()?;
        self.sync()?;
        let header = segment::Header {
            identity: self.files.identity,
            sequence: self.active.sequence + 1,
            first_index: self.next,
            previous_end: self.active.end,
            sticky: self.sticky,
        };
        self.active = self.files.create(&header)?;
        let Active { sequence, file, salt, .. } = &self.active;
        let segment = IndexedSegment::new(*sequence, file.clone(), *salt, self.files.segment_bytes);
        effects.push(Effect::Segment(Box::new(segment)));
        Ok(())
    }

    fn flush_buffer(&mut self) -> Result<(), Error> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let bytes = self.buffer.len() as u64;
        let written = self.active.file.write_at(self.active.end - bytes, &self.buffer);
        written.map_err(Error::io(Action::Write, self.files.path_of(&self.active)))?;
        self.buffer.clear();
        if self.buffer.capacity() > BUFFER_KEPT_BYTES {
            self.buffer = Vec::new();
        }
        let mut state = self.shared.state.lock();
        state.counters.writes += 1;
        state.counters.written_bytes += bytes;
        Ok(())
    }
}

/// The synced offset is filled in when the record gets its place.
fn record_header(kind: Kind, flags: u8, (term, leader, index): (u64, u64, u64)) -> record::Header {
    record::Header { kind: kind as u8, flags, term, leader, index, synced: 0 }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        // Without effect when the log has ended before; otherwise nobody would answer those who wait.
        self.shared.end(Error::WriterEnded);
    }
}

/// Stands in for the lock once it is released.
#[derive(Debug)]
struct Released;

impl VfsLock for Released {}
