//! Reading entries: from memory when they are there, else from the segment files.

use std::{
    fmt::Debug,
    io,
    ops::{Bound, RangeBounds},
    sync::Arc,
};

use bytes::Bytes;
use futures::{Stream, stream};
use openraft::{AsyncRuntime, OptionalSend, storage::RaftLogReader};
use tokio::sync::oneshot;

use super::{
    Action, Damage, Error,
    index::IndexedSegment,
    record::{self, Kind, Salt},
    segment,
    state::{Lifeline, Shared},
};
use crate::{
    convert::{self, PayloadKind},
    types::{Entry, Types, Vote},
    vfs::{self, VfsFile},
};

/// Consecutive records are read together up to this size.
const RUN_BYTES_MAX: u64 = 2 << 20;

/// Reads up to this size are done where they are asked for: handing them over costs more than they take.
const INLINE_BYTES_MAX: u64 = 64 << 10;

/// Reads entries and the vote. Cheap to clone.
#[derive(Clone)]
pub struct LogReader {
    lifeline: Arc<Lifeline>,
}

impl Debug for LogReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogReader").field("directory", &self.shared().directory).finish_non_exhaustive()
    }
}

/// How much of a range to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Amount {
    All,
    /// Entries up to this size together, and at least one.
    Bytes(u64),
}

/// Records of one segment that are read with one call.
struct Run {
    file: Arc<dyn VfsFile>,
    sequence: u64,
    salt: Salt,
    start: u64,
    end: u64,
    /// Index and start of each entry.
    entries: Vec<(u64, u64)>,
}

/// What is read from where.
#[derive(Default)]
struct Plan {
    cold: Vec<Run>,
    cold_bytes: u64,
    cached: Vec<Entry>,
}

impl LogReader {
    pub(super) fn new(lifeline: Arc<Lifeline>) -> Self {
        Self { lifeline }
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.lifeline.0
    }

    /// Entries from `start` up to but excluding `end` that the log holds, at least one if it holds `start`,
    /// together about `bytes_max` at most.
    ///
    /// # Errors
    /// A fault of the disk; it has ended the log then.
    pub async fn read_limited(&self, start: u64, end: u64, bytes_max: u64) -> Result<Vec<Entry>, Arc<Error>> {
        self.read(start, end, Amount::Bytes(bytes_max)).await
    }

    async fn read(&self, start: u64, end: u64, amount: Amount) -> Result<Vec<Entry>, Arc<Error>> {
        let plan = self.plan(start, end, amount);
        if plan.cold.is_empty() {
            return Ok(plan.cached);
        }
        let shared = self.shared().clone();
        let mut entries = if plan.cold_bytes <= INLINE_BYTES_MAX {
            read_cold(&shared, &plan.cold)?
        } else {
            let (sender, receiver) = oneshot::channel();
            let cold = plan.cold;
            let job_shared = shared.clone();
            (shared.blocking)(Box::new(move || {
                // Nobody may want the answer any more.
                let _ = sender.send(read_cold(&job_shared, &cold));
            }));
            receiver.await.unwrap_or_else(|_| Err(shared.end(Error::WriterEnded)))?
        };
        entries.extend(plan.cached);
        Ok(entries)
    }

    fn plan(&self, start: u64, end: u64, amount: Amount) -> Plan {
        let state = self.shared().state.lock();
        let (start, end) = (start.max(state.first()), end.min(state.cache.next()));
        let bytes_max = match amount {
            Amount::All => u64::MAX,
            Amount::Bytes(bytes) => bytes,
        };
        let mut plan = Plan::default();
        let mut bytes = 0;
        let mut near: Option<&IndexedSegment> = None;
        for index in start..end {
            if let Some(entry) = state.cache.get(index) {
                bytes += convert::entry_bytes(entry);
                if index > start && bytes > bytes_max {
                    break;
                }
                plan.cached.push(entry.clone());
                continue;
            }
            // Neighbours mostly stand in the same segment.
            let (segment, place) = near
                .and_then(|segment| segment.place(index).map(|place| (segment, place)))
                .or_else(|| state.index.locate(index))
                .expect("an entry that has left the cache is in a segment");
            near = Some(segment);
            bytes += u64::from(place.bytes);
            if index > start && bytes > bytes_max {
                break;
            }
            plan.cold_bytes += u64::from(place.bytes);
            let (from, to) = (u64::from(place.offset), u64::from(place.offset) + u64::from(place.bytes));
            match plan.cold.last_mut() {
                Some(run) if run.sequence == segment.sequence && to - run.start <= RUN_BYTES_MAX => {
                    run.end = to;
                    run.entries.push((index, from));
                }
                _ => plan.cold.push(Run {
                    file: segment.file.clone(),
                    sequence: segment.sequence,
                    salt: segment.salt,
                    start: from,
                    end: to,
                    entries: vec![(index, from)],
                }),
            }
        }
        plan
    }

    /// The last durable vote.
    pub fn vote(&self) -> Option<Vote> {
        self.shared().state.lock().sticky.vote
    }
}

/// Reads runs from their files. What cannot be read ends the log.
fn read_cold(shared: &Shared, runs: &[Run]) -> Result<Vec<Entry>, Arc<Error>> {
    let mut entries = Vec::with_capacity(runs.iter().map(|run| run.entries.len()).sum());
    for run in runs {
        read_run(shared, run, &mut entries).map_err(|error| shared.end(error))?;
    }
    Ok(entries)
}

fn read_run(shared: &Shared, run: &Run, entries: &mut Vec<Entry>) -> Result<(), Error> {
    let path = segment::path(&shared.directory, run.sequence);
    let length = usize::try_from(run.end - run.start).expect("runs are limited");
    let mut buffer = vec![0; length];
    vfs::read_exact_at(&*run.file, run.start, &mut buffer).map_err(Error::io(Action::Read, &path))?;
    let buffer = Bytes::from(buffer);
    for (index, offset) in run.entries.iter().copied() {
        let at = usize::try_from(offset - run.start).expect("runs are limited");
        let corrupt = |damage| Error::Corrupt { file: path.clone(), offset, index, damage };
        let found = record::decode(&buffer[at..], run.salt, offset).ok_or_else(|| corrupt(Damage::Record))?;
        if found.header.index != index {
            return Err(corrupt(Damage::Gap(found.header.index)));
        }
        let kind = match Kind::from_number(found.header.kind) {
            Some(Kind::Blank) => PayloadKind::Blank,
            Some(Kind::Command) => PayloadKind::Command,
            Some(Kind::Membership) => PayloadKind::Membership,
            _ => return Err(corrupt(Damage::UnknownKind(found.header.kind))),
        };
        let payload = at + record::HEADER_BYTES..at + record::HEADER_BYTES + found.payload_bytes;
        let payload = convert::payload_from_bytes(kind, buffer.slice(payload))
            .map_err(|error| corrupt(Damage::Payload(error)))?;
        entries.push(Entry { log_id: convert::log_id(found.header.term, index), payload });
    }
    Ok(())
}

/// As openraft wants faults; the kind and the text stay.
pub(super) fn to_io_error(error: Arc<Error>) -> io::Error {
    io::Error::new(error.io_kind(), error)
}

/// First index of a range and the one after its last.
fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => u64::MAX,
    };
    (start, end)
}

impl<RT: AsyncRuntime> RaftLogReader<Types<RT>> for LogReader {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, io::Error> {
        let (start, end) = bounds(&range);
        self.read(start, end, Amount::All).await.map_err(to_io_error)
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.vote())
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, io::Error> {
        let bytes_max = self.shared().append_body_bytes;
        let entries = self.read(start, end, Amount::Bytes(bytes_max)).await.map_err(to_io_error)?;
        // The follower checks only what precedes the first entry that was asked for: a later one in its place
        // would leave a gap. Nothing at all is sent as a heartbeat.
        let starts_there = entries.first().is_some_and(|entry| entry.log_id.index == start);
        Ok(if starts_there { entries } else { Vec::new() })
    }

    async fn entries_stream<RB>(
        &mut self,
        range: RB,
    ) -> impl Stream<Item = Result<Entry, io::Error>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (start, end) = bounds(&range);
        let (start, end) = {
            let state = self.shared().state.lock();
            (start.max(state.first()), end.min(state.cache.next()))
        };
        // After a restart the whole log may be asked for: it is read a piece at a time.
        let reader = self.clone();
        let pieces = stream::try_unfold(start, move |next| {
            let reader = reader.clone();
            async move {
                if next >= end {
                    return Ok(None);
                }
                let piece = reader.read_limited(next, end, RUN_BYTES_MAX).await.map_err(to_io_error)?;
                match (piece.first(), piece.last()) {
                    (Some(first), Some(last)) if first.log_id.index == next => {
                        let after = last.log_id.index + 1;
                        Ok(Some((stream::iter(piece.into_iter().map(Ok)), after)))
                    }
                    (first, _) => {
                        let found = first.map_or(end, |entry| entry.log_id.index);
                        Err(to_io_error(Arc::new(Error::Gap { found, expected: next })))
                    }
                }
            }
        });
        Box::pin(futures::TryStreamExt::try_flatten(pieces))
    }
}
