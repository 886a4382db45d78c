//! Where the entries stand in the segment files, and which terms they belong to.
//!
//! The writer brings this index forward in the order of its requests, so it lags behind what readers see; readers
//! ask it only for entries that have left the cache, and those are durable.

use std::{collections::VecDeque, sync::Arc};

use super::record::Salt;
use crate::vfs::VfsFile;

/// Where an entry's record stands in its segment. Eight bytes each, because there is one per entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub offset: u32,
    /// Length with header and padding.
    pub bytes: u32,
}

/// A segment and the entries of the log that stand in it.
#[derive(Clone, Debug)]
pub(super) struct IndexedSegment {
    pub sequence: u64,
    pub file: Arc<dyn VfsFile>,
    pub salt: Salt,
    /// Length of the file.
    pub file_bytes: u64,
    /// Index of the first place.
    first: u64,
    places: VecDeque<Place>,
}

impl IndexedSegment {
    pub(super) fn new(sequence: u64, file: Arc<dyn VfsFile>, salt: Salt, file_bytes: u64) -> Self {
        Self { sequence, file, salt, file_bytes, first: 0, places: VecDeque::new() }
    }

    fn end(&self) -> u64 {
        self.first + self.places.len() as u64
    }

    /// Where an entry stands, if it is in this segment.
    pub(super) fn place(&self, index: u64) -> Option<Place> {
        self.places.get(usize::try_from(index.checked_sub(self.first)?).ok()?).copied()
    }

    /// Index of the last entry; none when the segment holds none.
    pub(super) fn last_entry(&self) -> Option<u64> {
        (!self.places.is_empty()).then(|| self.end() - 1)
    }
}

/// The segments, oldest first. **Invariant**: their entries are consecutive.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    segments: VecDeque<IndexedSegment>,
}

impl Index {
    pub(super) fn push_segment(&mut self, segment: IndexedSegment) {
        self.segments.push_back(segment);
    }

    pub(super) fn segments(&self) -> impl DoubleEndedIterator<Item = &IndexedSegment> {
        self.segments.iter()
    }

    /// Notes an entry in the newest segment.
    pub(super) fn push(&mut self, index: u64, place: Place) {
        let segment = self.segments.back_mut().expect("a log has an active segment");
        if segment.places.is_empty() {
            segment.first = index;
        }
        assert_eq!(index, segment.end(), "entries are consecutive");
        segment.places.push_back(place);
    }

    /// Forgets the entries from `next` on.
    pub(super) fn truncate(&mut self, next: u64) {
        for segment in self.segments.iter_mut().rev() {
            if segment.places.is_empty() {
                continue;
            }
            if segment.end() <= next {
                break;
            }
            let keep = next.saturating_sub(segment.first);
            segment.places.truncate(usize::try_from(keep).expect("a segment's entries fit in memory"));
        }
    }

    /// Forgets the entries up to `purged`. Their segments stay until [`Index::pop_purged`].
    pub(super) fn purge(&mut self, purged: u64) {
        for segment in &mut self.segments {
            if segment.places.is_empty() {
                continue;
            }
            if segment.first > purged {
                break;
            }
            let gone = (purged + 1 - segment.first).min(segment.places.len() as u64);
            segment.places.drain(..usize::try_from(gone).expect("a segment's entries fit in memory"));
            segment.first += gone;
        }
    }

    /// Takes the oldest segment out when it is not the active one and holds no entry any more.
    pub(super) fn pop_purged(&mut self) -> Option<IndexedSegment> {
        let oldest = self.segments.front()?;
        if self.segments.len() > 1 && oldest.places.is_empty() { self.segments.pop_front() } else { None }
    }

    /// The segment and place of an entry.
    pub(super) fn locate(&self, index: u64) -> Option<(&IndexedSegment, Place)> {
        self.segments.iter().rev().find_map(|segment| segment.place(index).map(|place| (segment, place)))
    }
}

/// The term of each entry, as runs of equal terms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Terms {
    /// First index and term of each run, ascending.
    runs: VecDeque<(u64, u64)>,
}

impl Terms {
    pub(super) fn push(&mut self, index: u64, term: u64) {
        if self.runs.back().is_none_or(|(_, last)| *last != term) {
            self.runs.push_back((index, term));
        }
    }

    /// Forgets the entries from `next` on.
    pub(super) fn truncate(&mut self, next: u64) {
        while self.runs.back().is_some_and(|(first, _)| *first >= next) {
            self.runs.pop_back();
        }
    }

    /// Forgets the entries up to `purged`.
    pub(super) fn purge(&mut self, purged: u64) {
        while self.runs.get(1).is_some_and(|(first, _)| *first <= purged + 1) {
            self.runs.pop_front();
        }
        if let Some((first, _)) = self.runs.front_mut() {
            *first = (*first).max(purged + 1);
        }
    }

    pub(super) fn clear(&mut self) {
        self.runs.clear();
    }

    /// The term of an entry that the log holds.
    pub(super) fn term_at(&self, index: u64) -> Option<u64> {
        let run = self.runs.partition_point(|(first, _)| *first <= index).checked_sub(1)?;
        self.runs.get(run).map(|(_, term)| *term)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::vfs::{SimulatedDisk, Vfs};

    fn index_of(counts: &[u64]) -> Index {
        let vfs = SimulatedDisk::new(0).vfs();
        vfs.create_directory(Path::new("/d")).unwrap();
        let mut index = Index::default();
        let mut next = 1;
        for (sequence, count) in (1..).zip(counts) {
            let file = vfs.create(&Path::new("/d").join(sequence.to_string())).unwrap();
            index.push_segment(IndexedSegment::new(sequence, file, Salt(0), 4096));
            for offset in 0..*count {
                let offset = u32::try_from(256 + 48 * offset).unwrap();
                index.push(next, Place { offset, bytes: 48 });
                next += 1;
            }
        }
        index
    }

    fn sequence_of(index: &Index, entry: u64) -> Option<u64> {
        index.locate(entry).map(|(segment, _)| segment.sequence)
    }

    #[test]
    fn entries_are_found_in_their_segment() {
        let index = index_of(&[3, 0, 2]);
        let sequences: Vec<_> = (0..=6).map(|entry| sequence_of(&index, entry)).collect();
        assert_eq!(sequences, [None, Some(1), Some(1), Some(1), Some(3), Some(3), None]);
    }

    #[test]
    fn after_a_truncation_entries_go_on_in_the_newest_segment() {
        let mut index = index_of(&[3, 2]);
        index.truncate(2);
        assert_eq!((sequence_of(&index, 1), sequence_of(&index, 2)), (Some(1), None));
        index.push(2, Place { offset: 1000, bytes: 48 });
        assert_eq!((sequence_of(&index, 1), sequence_of(&index, 2)), (Some(1), Some(2)));
    }

    #[test]
    fn segments_go_when_all_their_entries_are_purged_but_never_the_newest() {
        let mut index = index_of(&[3, 2]);
        index.purge(2);
        assert!(index.pop_purged().is_none());
        assert_eq!((sequence_of(&index, 2), sequence_of(&index, 3)), (None, Some(1)));
        index.purge(3);
        assert_eq!(index.pop_purged().map(|segment| segment.sequence), Some(1));
        index.purge(9);
        assert!(index.pop_purged().is_none());
        assert_eq!(sequence_of(&index, 5), None);
    }

    #[test]
    fn terms_follow_pushes_truncations_and_purges() {
        let mut terms = Terms::default();
        for (index, term) in [(1, 1), (2, 1), (3, 2), (4, 5), (5, 5)] {
            terms.push(index, term);
        }
        assert_eq!(
            (0..=6).map(|index| terms.term_at(index)).collect::<Vec<_>>()[..6],
            [None, Some(1), Some(1), Some(2), Some(5), Some(5)]
        );
        terms.truncate(4);
        terms.push(4, 6);
        assert_eq!((terms.term_at(3), terms.term_at(4)), (Some(2), Some(6)));
        terms.purge(3);
        assert_eq!((terms.term_at(3), terms.term_at(4)), (None, Some(6)));
    }
}
