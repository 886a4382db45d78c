//! The newest entries of the log in memory: all that are not durable yet, and older ones up to a limit of bytes.

use std::collections::VecDeque;

use crate::{convert, types::Entry};

/// A consecutive run of entries that ends at the log's last one.
#[derive(Debug)]
pub(super) struct Cache {
    entries: VecDeque<Entry>,
    /// Index after the last entry of the log.
    next: u64,
    bytes: u64,
    bytes_max: u64,
}

impl Cache {
    /// An empty cache of a log that goes on at `next`.
    pub(super) fn new(next: u64, bytes_max: u64) -> Self {
        Self { entries: VecDeque::new(), next, bytes: 0, bytes_max }
    }

    /// Index of the oldest entry here; entries before it are on disk.
    pub(super) fn first(&self) -> u64 {
        self.next - self.entries.len() as u64
    }

    /// Index after the last entry.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn push(&mut self, entry: Entry) {
        assert_eq!(entry.log_id.index, self.next, "entries are consecutive");
        self.bytes += convert::entry_bytes(&entry);
        self.entries.push_back(entry);
        self.next += 1;
    }

    /// Lets an empty cache go on at another index.
    pub(super) fn begin_at(&mut self, next: u64) {
        assert!(self.entries.is_empty(), "only an empty log begins anew");
        self.next = next;
    }

    /// Drops the entries from `next` on.
    pub(super) fn truncate(&mut self, next: u64) {
        while self.next > next {
            self.next -= 1;
            if let Some(entry) = self.entries.pop_back() {
                self.bytes -= convert::entry_bytes(&entry);
            }
        }
    }

    /// Drops the entries up to `purged`.
    pub(super) fn purge(&mut self, purged: u64) {
        while !self.entries.is_empty() && self.first() <= purged {
            self.pop();
        }
        self.next = self.next.max(purged + 1);
    }

    /// Drops durable entries, oldest first, until the rest fits.
    pub(super) fn evict(&mut self, durable: Option<u64>) {
        while self.bytes > self.bytes_max && durable.is_some_and(|durable| self.first() <= durable) {
            if !self.pop() {
                break;
            }
        }
    }

    pub(super) fn get(&self, index: u64) -> Option<&Entry> {
        self.entries.get(usize::try_from(index.checked_sub(self.first())?).ok()?)
    }

    fn pop(&mut self) -> bool {
        let Some(entry) = self.entries.pop_front() else { return false };
        self.bytes -= convert::entry_bytes(&entry);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{EncodedCommand, Payload};

    fn filled(range: std::ops::Range<u64>, bytes_max: u64) -> Cache {
        let mut cache = Cache::new(range.start, bytes_max);
        for index in range {
            let payload = Payload::Normal(EncodedCommand(vec![0; 100].into()));
            cache.push(Entry { log_id: convert::log_id(1, index), payload });
        }
        cache
    }

    #[test]
    fn only_durable_entries_are_evicted() {
        let mut cache = filled(1..11, 0);
        cache.evict(None);
        assert_eq!(cache.first(), 1);
        cache.evict(Some(4));
        assert_eq!(cache.first(), 5);
        assert!(cache.get(4).is_none());
        assert_eq!(cache.get(5).map(|entry| entry.log_id.index), Some(5));
    }

    #[test]
    fn as_many_stay_as_fit() {
        let one = filled(1..2, 0).bytes();
        let mut cache = filled(1..11, 3 * one);
        cache.evict(Some(10));
        assert_eq!((cache.first(), cache.next(), cache.bytes()), (8, 11, 3 * one));
    }

    #[test]
    fn truncation_and_purge_may_reach_beyond_what_is_here() {
        let mut cache = filled(5..11, u64::MAX);
        cache.truncate(3);
        assert_eq!((cache.first(), cache.next(), cache.bytes()), (3, 3, 0));
        let mut cache = filled(5..11, u64::MAX);
        cache.purge(20);
        assert_eq!((cache.first(), cache.next(), cache.bytes()), (21, 21, 0));
    }
}
