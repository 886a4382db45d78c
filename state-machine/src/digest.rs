//! The digest of a state: two replicas at the same entry have the same one.
//!
//! BLAKE3 with its default key over, for every row in ascending key order:
//!
//! ```text
//! +----------------------+-----+----------------------+-------+
//! | key length, u64 LE   | key | value length, u64 LE | value |
//! +----------------------+-----+----------------------+-------+
//! ```
//!
//! The key is the physical one, with its table tag. Rows that each replica derives for itself are left out: index
//! entries and the metadata rows `local/…`. All other rows count, also those of tables that a build does not
//! know.

use std::{fmt, ops::ControlFlow};

use tidemark_storage::{Direction, KeyRange, Read, tables};

use crate::fault::Fault;

/// What a state comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateDigest {
    /// BLAKE3 over the rows.
    pub hash: [u8; 32],
    /// The number of rows that went into it.
    pub rows: u64,
}

impl fmt::Display for StateDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hash.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, " over {} rows", self.rows)
    }
}

/// Builds a digest row by row, for readers that have the rows in hand, like a snapshot that is being received.
#[derive(Clone, Debug, Default)]
pub struct DigestBuilder {
    hasher: blake3::Hasher,
    rows: u64,
}

impl DigestBuilder {
    /// A digest over no rows.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the next row. Keys must ascend; a row that each replica derives for itself is left out.
    pub fn add(&mut self, key: &[u8], value: &[u8]) {
        if tables::is_local(key) {
            return;
        }
        self.rows += 1;
        for part in [key, value] {
            self.hasher.update(&(part.len() as u64).to_le_bytes());
            self.hasher.update(part);
        }
    }

    /// The digest over the rows so far.
    pub fn finish(&self) -> StateDigest {
        StateDigest { hash: self.hasher.finalize().into(), rows: self.rows }
    }
}

/// Digests everything in `source`, in memory of constant size.
pub fn digest(source: &(impl Read + ?Sized)) -> Result<StateDigest, Fault> {
    let mut digest = DigestBuilder::new();
    // Index entries can be most of a database, so they are passed over, not read and dropped.
    let index_entries = tables::table_range(tables::INDEX_ENTRIES);
    let before = KeyRange { lower: None, upper: index_entries.lower };
    let behind = KeyRange { lower: index_entries.upper, upper: None };
    for range in [before, behind] {
        source.scan(&range, Direction::Ascending, &mut |key, value| {
            digest.add(key, value);
            ControlFlow::Continue(())
        })?;
    }
    Ok(digest.finish())
}

#[cfg(test)]
mod tests {
    use tidemark_storage::Overlay;

    use super::*;

    #[test]
    fn the_digest_covers_lengths_keys_and_values_in_key_order() {
        let mut state = Overlay::empty();
        state.put(&b"e2"[..], &b"value"[..]);
        state.put(&b"b1"[..], &b""[..]);
        let bytes = b"\x02\0\0\0\0\0\0\0b1\0\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0e2\x05\0\0\0\0\0\0\0value";
        let expected = StateDigest { hash: blake3::hash(bytes).into(), rows: 2 };
        assert_eq!(digest(&state).expect("readable"), expected);
    }

    #[test]
    fn rows_that_a_replica_derives_for_itself_are_left_out() {
        let mut state = Overlay::empty();
        state.put(tables::clock_key(), &b"12345678"[..]);
        let before = digest(&state).expect("readable");
        state.put(tables::local_key("index/1"), &b"progress"[..]);
        state.put(tables::prefixed(tables::INDEX_ENTRIES, b"1"), &b""[..]);
        assert_eq!(digest(&state).expect("readable"), before);
        state.put(tables::metadata_key("locale"), &b""[..]);
        assert_ne!(digest(&state).expect("readable"), before);
    }

    #[test]
    fn an_empty_state_has_the_hash_of_no_bytes() {
        let expected = StateDigest { hash: blake3::hash(b"").into(), rows: 0 };
        assert_eq!(digest(&Overlay::empty()).expect("readable"), expected);
        assert!(expected.to_string().ends_with("3262 over 0 rows"), "{expected}");
    }

    #[test]
    fn moving_a_byte_from_key_to_value_changes_the_digest() {
        let (mut left, mut right) = (DigestBuilder::new(), DigestBuilder::new());
        left.add(b"ea", b"b");
        right.add(b"e", b"ab");
        assert_ne!(left.finish(), right.finish());
    }
}
