//! Reads the segments of a directory back: tells a torn write, which is cut off, from damage, which is refused.
//!
//! Every segment but the last was synced before its successor was begun, and the successor's header says where its
//! records end, so there any invalid record is damage. In the last segment the log ends at the first invalid
//! record. If an intact record after it carries a synced offset beyond it, what is invalid had been durable: damage.
//! Otherwise it is the one write that was in flight when the power went, of which the disk may have kept later
//! parts and lost earlier ones.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    Action, Damage, Error, LogIdentity,
    files::{Active, Files},
    index::{Index, IndexedSegment, Place, Terms},
    record::{self, FLAG, Found, Kind, Salt},
    segment::{self, Header, Invalid, Sticky},
};
use crate::{
    convert,
    types::{LeaderId, LogId, Vote},
    vfs::{self, Access, Vfs, VfsFile},
};

/// Number of the first segment of a log.
pub(super) const FIRST_SEQUENCE: u64 = 1;

/// Torn bytes are overwritten with zeros in pieces of this size.
const ZEROS_BYTES: usize = 1 << 20;

/// A log read back from its directory.
pub(super) struct Recovered {
    pub index: Index,
    pub terms: Terms,
    pub sticky: Sticky,
    /// Index of the first entry of a log that was never purged.
    pub origin: u64,
    /// Index after the last entry.
    pub next: u64,
    /// The segment to go on in; `None` when there is none yet.
    pub active: Option<Active>,
    /// Number for the next new segment when there is none to go on in.
    pub next_sequence: u64,
    /// What a crash left behind.
    pub leftovers: Leftovers,
}

/// What has to be cleaned up before anything is written.
#[derive(Debug, Default)]
pub(super) struct Leftovers {
    /// A last segment whose creation was interrupted.
    pub unfinished_segment: Option<u64>,
    /// Bytes of a torn write in the active segment, from its end.
    pub torn_bytes: u64,
}

/// One record as seen by a visitor.
pub(super) struct Visited<'a> {
    pub sequence: u64,
    pub offset: u64,
    pub found: Found,
    pub payload: &'a [u8],
}

/// Called for each intact record in order.
pub(super) type Visitor<'a> = &'a mut dyn FnMut(Visited<'_>);

/// A segment whose header has been checked.
struct Opened {
    path: PathBuf,
    header: Header,
    file: Arc<dyn VfsFile>,
}

/// Reads the log in `directory` and changes nothing.
///
/// With an identity, segments of another one are refused; without, the first segment says whose log it is.
pub(super) fn read(
    vfs: &dyn Vfs,
    directory: &Path,
    identity: Option<LogIdentity>,
    access: Access,
    visitor: Visitor<'_>,
) -> Result<Recovered, Error> {
    let names = vfs.list(directory).map_err(Error::io(Action::List, directory))?;
    let sequences: Vec<u64> = names.iter().filter_map(|name| segment::sequence_of(name)).collect();
    let (segments, leftovers) = open_segments(vfs, directory, &sequences, identity, access)?;
    let next_sequence = segments.last().map_or(FIRST_SEQUENCE, |last| last.header.sequence + 1);

    let mut replay = Replay::begin(segments.first().map(|oldest| &oldest.header));
    let mut active = None;
    let mut torn_bytes = 0;
    let mut buffer = Vec::new();
    for (position, opened) in segments.iter().enumerate() {
        vfs::read_whole(&*opened.file, &mut buffer).map_err(Error::io(Action::Read, &opened.path))?;
        let mut scan = Scan::begin(opened, &mut replay, buffer.len() as u64)?;
        scan.run(opened, &buffer, &mut replay, visitor)?;
        match segments.get(position + 1) {
            Some(successor) => scan.check_end(opened, successor.header.previous_end, &replay)?,
            None => {
                torn_bytes = scan.check_tail(opened, &buffer, &replay)?;
                active = Some(scan.into_active(opened));
            }
        }
    }
    let first_path = segments.first().map(|oldest| oldest.path.clone()).unwrap_or_default();
    let Replay { index, terms, sticky, origin, next, .. } = replay.finish(first_path)?;
    let leftovers = Leftovers { torn_bytes, ..leftovers };
    Ok(Recovered { index, terms, sticky, origin, next, active, next_sequence, leftovers })
}

/// Cleans up what a crash left, and makes durable what was read: it may have been in the page cache only.
pub(super) fn clean_up(files: &Files, recovered: &mut Recovered) -> Result<(), Error> {
    if let Some(sequence) = recovered.leftovers.unfinished_segment {
        let path = segment::path(&files.directory, sequence);
        tracing::info!(file = %path.display(), "removing a segment whose creation was interrupted");
        files.vfs.unlink(&path).map_err(Error::io(Action::Remove, &path))?;
    }
    files.vfs.sync_directory(&files.directory).map_err(Error::io(Action::Sync, &files.directory))?;
    let Some(active) = &mut recovered.active else { return Ok(()) };
    let path = segment::path(&files.directory, active.sequence);
    let torn_bytes = recovered.leftovers.torn_bytes;
    if torn_bytes > 0 {
        tracing::warn!(
            file = %path.display(), offset = active.end, torn_bytes, next_index = recovered.next,
            "cutting off a write that a crash interrupted"
        );
        let zeros = vec![0; ZEROS_BYTES.min(usize::try_from(torn_bytes).unwrap_or(ZEROS_BYTES))];
        let mut offset = active.end;
        let end = active.end + torn_bytes;
        while offset < end {
            let piece = zeros.len().min(usize::try_from(end - offset).unwrap_or(usize::MAX));
            active.file.write_at(offset, &zeros[..piece]).map_err(Error::io(Action::Write, &path))?;
            offset += piece as u64;
        }
    }
    active.file.sync_all().map_err(Error::io(Action::Sync, &path))?;
    active.synced = active.end;
    active.content_synced = active.content_end;
    Ok(())
}

/// Opens the segments and checks their headers; a last one that was never finished is left out.
fn open_segments(
    vfs: &dyn Vfs,
    directory: &Path,
    sequences: &[u64],
    mut identity: Option<LogIdentity>,
    access: Access,
) -> Result<(Vec<Opened>, Leftovers), Error> {
    let mut segments: Vec<Opened> = Vec::with_capacity(sequences.len());
    let mut leftovers = Leftovers::default();
    for sequence in sequences.iter().copied() {
        let path = segment::path(directory, sequence);
        let index = segments.last().map_or(0, |before| before.header.first_index);
        let corrupt = |damage| Error::Corrupt { file: path.clone(), offset: 0, index, damage };
        if let Some(before) = segments.last()
            && before.header.sequence + 1 != sequence
        {
            return Err(corrupt(Damage::MissingSegment(before.header.sequence + 1)));
        }
        let file = vfs.open(&path, access).map_err(Error::io(Action::Open, &path))?;
        let mut bytes = [0; segment::HEADER_BYTES as usize];
        let read = file.read_at(0, &mut bytes).map_err(Error::io(Action::Read, &path))?;
        match Header::decode(&bytes[..read]) {
            Ok(header) => {
                let expected = *identity.get_or_insert(header.identity);
                if header.identity != expected {
                    return Err(Error::WrongIdentity { file: path, found: header.identity, expected });
                }
                if header.sequence != sequence {
                    return Err(corrupt(Damage::MisplacedSegment(header.sequence)));
                }
                segments.push(Opened { path, header, file });
            }
            Err(Invalid::Version(found)) => {
                return Err(Error::UnsupportedFormat {
                    file: path,
                    found,
                    supported: segment::FORMAT_VERSION,
                });
            }
            Err(Invalid::Damaged) => {
                let is_last = Some(&sequence) == sequences.last();
                // Without an older segment this must be the very first: others go only after a synced purge record.
                let may_be_unfinished = is_last && (!segments.is_empty() || sequence == FIRST_SEQUENCE);
                if !may_be_unfinished || holds_records(&*file, &path, identity, sequence)? {
                    return Err(corrupt(Damage::Header));
                }
                leftovers.unfinished_segment = Some(sequence);
            }
        }
    }
    Ok((segments, leftovers))
}

/// Whether a segment with an invalid header holds an intact record: then its header had been durable.
fn holds_records(
    file: &dyn VfsFile,
    path: &Path,
    identity: Option<LogIdentity>,
    sequence: u64,
) -> Result<bool, Error> {
    let mut buffer = Vec::new();
    vfs::read_whole(file, &mut buffer).map_err(Error::io(Action::Read, path))?;
    let Some(identity) = identity else {
        // Whose records to look for is unknown; anything but reserved space is taken for one.
        return Ok(written_end(&buffer) > 0);
    };
    let salt = segment::salt(&identity, sequence);
    Ok(proof_of_sync(&buffer, salt, 0, segment::HEADER_BYTES).is_some())
}

/// Where the zeros at the end begin: reserved space that was never written. They are compared in pieces, for most of
/// a segment is zeros and going through them byte by byte was most of a restart.
fn written_end(buffer: &[u8]) -> usize {
    const ZEROS: [u8; 4096] = [0; 4096];
    let zeros = buffer.rchunks(ZEROS.len()).take_while(|piece| **piece == ZEROS[..piece.len()]);
    let end = buffer.len() - zeros.map(<[u8]>::len).sum::<usize>();
    buffer[..end].iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

/// Looks at or after `from` for an intact record that says that more than `end` bytes had been durable.
fn proof_of_sync(buffer: &[u8], salt: Salt, end: u64, from: u64) -> Option<u64> {
    let from = usize::try_from(from).ok()?;
    // Zeros claim nothing, so no such record begins in them; one may end in them.
    (from..written_end(buffer)).step_by(record::ALIGNMENT).map(|at| (at as u64, &buffer[at..])).find_map(
        |(at, bytes)| {
            // The claim is checked before the checksum: only such records matter, and there are few.
            let claim = record::peek(bytes)?.header.synced;
            (claim > end && claim <= at && record::decode(bytes, salt, at).is_some()).then_some(at)
        },
    )
}

/// One segment being read.
struct Scan {
    salt: Salt,
    /// Where the records end so far.
    end: u64,
    content_end: u64,
    noted: u64,
    ends_with_closing: bool,
}

impl Scan {
    fn begin(opened: &Opened, replay: &mut Replay, file_bytes: u64) -> Result<Self, Error> {
        let Header { identity, sequence, first_index, .. } = &opened.header;
        if *first_index != replay.next {
            let damage = Damage::Gap(*first_index);
            return Err(Error::Corrupt { file: opened.path.clone(), offset: 0, index: replay.next, damage });
        }
        let salt = segment::salt(identity, *sequence);
        replay.index.push_segment(IndexedSegment::new(*sequence, opened.file.clone(), salt, file_bytes));
        let end = segment::HEADER_BYTES;
        Ok(Self { salt, end, content_end: end, noted: 0, ends_with_closing: false })
    }

    /// Replays records up to the first invalid one.
    fn run(
        &mut self,
        opened: &Opened,
        buffer: &[u8],
        replay: &mut Replay,
        visitor: Visitor<'_>,
    ) -> Result<(), Error> {
        while let Some(bytes) = usize::try_from(self.end).ok().and_then(|end| buffer.get(end..)) {
            let Some(found) = record::decode(bytes, self.salt, self.end) else { break };
            let index = replay.next;
            let corrupt =
                |damage| Error::Corrupt { file: opened.path.clone(), offset: self.end, index, damage };
            let kind = Kind::from_number(found.header.kind)
                .ok_or_else(|| corrupt(Damage::UnknownKind(found.header.kind)))?;
            let place = Place {
                offset: u32::try_from(self.end).expect("segments are smaller than 4 GiB"),
                bytes: u32::try_from(found.bytes).expect("segments are smaller than 4 GiB"),
            };
            replay.apply(kind, &found.header, place).map_err(corrupt)?;
            let payload = &bytes[record::HEADER_BYTES..record::HEADER_BYTES + found.payload_bytes];
            visitor(Visited { sequence: opened.header.sequence, offset: self.end, found, payload });

            self.end += found.bytes as u64;
            if !kind.is_marker() {
                self.content_end = self.end;
            }
            self.noted = self.noted.max(found.header.synced);
            self.ends_with_closing = kind == Kind::Closing;
        }
        Ok(())
    }

    /// An older segment ends where its successor says.
    fn check_end(&self, opened: &Opened, expected: u64, replay: &Replay) -> Result<(), Error> {
        if self.end == expected {
            return Ok(());
        }
        let damage = if self.end < expected { Damage::Record } else { Damage::SegmentEnd { expected } };
        Err(Error::Corrupt { file: opened.path.clone(), offset: self.end, index: replay.next, damage })
    }

    /// Tells a torn write from damage at the end of the last segment; returns how many bytes are torn.
    fn check_tail(&self, opened: &Opened, buffer: &[u8], replay: &Replay) -> Result<u64, Error> {
        if proof_of_sync(buffer, self.salt, self.end, self.end + record::ALIGNMENT as u64).is_some() {
            let (offset, index) = (self.end, replay.next);
            return Err(Error::Corrupt { file: opened.path.clone(), offset, index, damage: Damage::Record });
        }
        Ok((written_end(buffer) as u64).saturating_sub(self.end))
    }

    fn into_active(self, opened: &Opened) -> Active {
        Active {
            sequence: opened.header.sequence,
            file: opened.file.clone(),
            salt: self.salt,
            end: self.end,
            // Nothing is known to be durable before the sync in `clean_up`.
            synced: 0,
            content_end: self.content_end,
            content_synced: 0,
            noted: self.noted,
            ends_with_closing: self.ends_with_closing,
        }
    }
}

/// The state of the log while its records are read in order.
struct Replay {
    index: Index,
    terms: Terms,
    sticky: Sticky,
    /// Index of the first entry of a log that was never purged.
    origin: u64,
    next: u64,
    /// Entries from here to `next` are present or were removed by a purge that was read; those before were in
    /// segments that are gone.
    base: u64,
}

impl Replay {
    fn begin(oldest: Option<&Header>) -> Self {
        let (next, sticky) =
            oldest.map_or((0, Sticky::default()), |header| (header.first_index, header.sticky));
        Self { index: Index::default(), terms: Terms::default(), sticky, origin: 0, next, base: next }
    }

    fn apply(&mut self, kind: Kind, header: &record::Header, place: Place) -> Result<(), Damage> {
        let log_id = convert::log_id(header.term, header.index);
        let flag = header.flags & FLAG != 0;
        match kind {
            Kind::Blank | Kind::Command | Kind::Membership => {
                if self.sticky.purged.is_none() && self.next == self.origin {
                    // An empty log may begin anywhere.
                    (self.origin, self.base, self.next) = (header.index, header.index, header.index);
                }
                if header.index != self.next {
                    return Err(Damage::Gap(header.index));
                }
                self.index.push(header.index, place);
                self.terms.push(header.index, header.term);
                self.next += 1;
            }
            Kind::Vote => {
                let leader_id = LeaderId { term: header.term, voted_for: header.leader };
                self.sticky.vote = Some(Vote { leader_id, committed: flag });
            }
            Kind::Truncate => {
                let next = if flag { 0 } else { header.index + 1 };
                if next > self.next {
                    return Err(Damage::Gap(header.index));
                }
                self.index.truncate(next);
                self.terms.truncate(next);
                self.next = next;
                self.base = self.base.min(next);
            }
            Kind::Purge => self.purge(log_id),
            Kind::Committed => self.sticky.committed = (!flag).then_some(log_id),
            Kind::Mark | Kind::Closing => {}
        }
        Ok(())
    }

    fn purge(&mut self, upto: LogId) {
        self.sticky.purged = Some(upto);
        self.index.purge(upto.index);
        self.terms.purge(upto.index);
        if upto.index >= self.next {
            self.next = upto.index + 1;
            self.base = self.next;
            self.terms.clear();
        }
    }

    /// Checks that the log reaches back to where it was purged.
    fn finish(mut self, first_path: PathBuf) -> Result<Self, Error> {
        let purged = self.sticky.purged.map(|purged| purged.index);
        let first = purged.map_or(self.origin, |purged| purged + 1);
        if self.base > first || self.next < first {
            let damage = Damage::MissingEntries { purged };
            return Err(Error::Corrupt { file: first_path, offset: 0, index: first, damage });
        }
        // Entries that the purge in the first header covers may still stand in the first segment.
        if let Some(purged) = purged {
            self.index.purge(purged);
            self.terms.purge(purged);
        }
        // `committed` is not synced with what it refers to; it is a lower bound, so less is always right.
        let last = if self.next == first {
            self.sticky.purged
        } else {
            self.terms.term_at(self.next - 1).map(|term| convert::log_id(term, self.next - 1))
        };
        self.sticky.committed = self.sticky.committed.min(last);
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_written_end_is_behind_the_last_byte_that_is_not_zero() {
        for length in [0, 1, 4095, 4096, 4097, 3 * 4096 + 5] {
            assert_eq!(written_end(&vec![0; length]), 0, "{length} zeros");
            for last in [0, 1, 4, 4095, 4096, 8191, 12_292].into_iter().filter(|last| *last < length) {
                let mut buffer = vec![0; length];
                buffer[last] = 1;
                buffer[0] = 1;
                assert_eq!(written_end(&buffer), last + 1, "{length} bytes, the last one at {last}");
            }
        }
    }
}
