//! Every table of the keyspace: its tag, its layout and its keys. Nothing else builds a physical key.
//!
//! A physical key is one tag byte, then the table's own key, so no row of one table can fall into another
//! table's range. All numbers are big-endian, so byte order is numeric order.
//!
//! ```text
//! tag  table           0       1               9               17              25
//!                      +-------+---------------+---------------+---------------+
//! 'b'  boundaries      | 'b'   | boundary hash |                                  -> BoundaryRow
//! 'd'  idempotency     | 'd'   | boundary hash | key hash, 16 bytes            |  -> outcome, request digest, expires-at
//! 'e'  events          | 'e'   | boundary hash | bucket        | event id      |  -> StoredEvent
//! 'g'  consumer groups | 'g'   | boundary hash | group, then floor, settled ranges, retries, parked
//! 'i'  index entries   | 'i'   | index id      | field values, bucket, event id   -> empty
//! 'l'  leases          | 'l'   | lease name                                       -> holder, epoch, expires-at
//! 'm'  metadata        | 'm'   | text                                             -> by key
//! 's'  schedule        | 's'   | due time, ms  | event key or handle              -> empty, or the conditional event
//! 'w'  write contexts  | 'w'   | boundary hash | commit pos.   | prepare pos.  |  -> observations that the save checked
//!                      +-------+---------------+------+------------------------+
//! 'x'  expiry          | 'x'   | expires-at ms | kind | the expiring row's own key -> empty
//!                      +-------+---------------+------+------------------------+
//!                      0       1               9      10
//!
//! 'm' key                value                                              in the digest
//! event-repo/last-id     u64, the last assigned event id                    yes
//! raft/applied           log id of the last applied entry                   yes
//! raft/membership        the effective membership                           yes
//! clock                  u64, the replicated clock in ms                    yes
//! format                 u32, the format version, then the release          yes
//! local/…                what this replica derived for itself               no
//! ```
//!
//! An expiry row's kind is 0 for an event (24-byte event key) and 1 for an idempotency row (24 bytes:
//! boundary hash, key hash).
//!
//! **Invariant**: tags are never reused for another table, and a changed layout is a new format version.

use std::path::Path;

use bytes::{BufMut, Bytes, BytesMut};

use crate::{
    contract::KeyRange,
    error::{Damage, Error, Result},
    key::{BoundaryHash, EVENT_KEY_LENGTH, EventKey},
};

/// Tag of the boundaries.
pub const BOUNDARIES: u8 = b'b';
/// Tag of the idempotency rows.
pub const IDEMPOTENCY: u8 = b'd';
/// Tag of the events.
pub const EVENTS: u8 = b'e';
/// Tag of the consumer groups.
pub const CONSUMER_GROUPS: u8 = b'g';
/// Tag of the index entries.
pub const INDEX_ENTRIES: u8 = b'i';
/// Tag of the leases.
pub const LEASES: u8 = b'l';
/// Tag of the metadata.
pub const METADATA: u8 = b'm';
/// Tag of the schedule.
pub const SCHEDULE: u8 = b's';
/// Tag of the write contexts.
pub const WRITE_CONTEXTS: u8 = b'w';
/// Tag of the expiry rows.
pub const EXPIRY: u8 = b'x';

/// Every tag with its table's name, in key order.
pub const TABLES: [(u8, &str); 10] = [
    (BOUNDARIES, "boundaries"),
    (IDEMPOTENCY, "idempotency"),
    (EVENTS, "events"),
    (CONSUMER_GROUPS, "consumer groups"),
    (INDEX_ENTRIES, "index entries"),
    (LEASES, "leases"),
    (METADATA, "metadata"),
    (SCHEDULE, "schedule"),
    (WRITE_CONTEXTS, "write contexts"),
    (EXPIRY, "expiry"),
];

/// The format that this build writes.
pub const FORMAT_VERSION: u32 = 1;
/// The oldest format that this build opens.
pub const OLDEST_FORMAT_VERSION: u32 = 1;
/// The first release that reads each format, from format 1 on.
const FORMAT_RELEASES: [&str; FORMAT_VERSION as usize] = ["0.1.0"];

const FORMAT: &str = "format";
const LAST_ID: &str = "event-repo/last-id";
const RAFT_APPLIED: &str = "raft/applied";
const RAFT_MEMBERSHIP: &str = "raft/membership";
const CLOCK: &str = "clock";
const LOCAL: &str = "local/";

/// The length of the hash of an idempotency key.
pub const KEY_HASH_LENGTH: usize = 16;

/// The physical key of `own_key` in the table `tag`.
pub fn prefixed(tag: u8, own_key: &[u8]) -> Bytes {
    let mut key = BytesMut::with_capacity(1 + own_key.len());
    key.put_u8(tag);
    key.put_slice(own_key);
    key.freeze()
}

/// The physical key behind the table `tag`: an exclusive upper bound.
pub fn table_end(tag: u8) -> Bytes {
    Bytes::copy_from_slice(&[tag + 1])
}

/// All rows of the table `tag`.
pub fn table_range(tag: u8) -> KeyRange {
    KeyRange::new(prefixed(tag, &[]), table_end(tag))
}

/// All physical keys that start with `prefix`.
pub fn prefix_range(prefix: &[u8]) -> KeyRange {
    let upper = prefix.iter().rposition(|byte| *byte != 0xff).map(|last| {
        let mut upper = BytesMut::from(&prefix[..=last]);
        upper[last] += 1;
        upper.freeze()
    });
    KeyRange { lower: Some(Bytes::copy_from_slice(prefix)), upper }
}

/// The physical key of an event.
pub fn event_key(key: &EventKey) -> Bytes {
    prefixed(EVENTS, &key.encode())
}

/// Reads the physical key of an event.
pub fn parse_event_key(physical: &[u8]) -> Result<EventKey> {
    match physical.split_first() {
        Some((&EVENTS, own_key)) => EventKey::decode(own_key),
        _ => Err(Error::malformed("events", physical.len())),
    }
}

/// The physical key of the metadata row `name`.
pub fn metadata_key(name: &str) -> Bytes {
    prefixed(METADATA, name.as_bytes())
}

/// The row of the last assigned event id.
pub fn last_id_key() -> Bytes {
    metadata_key(LAST_ID)
}

/// The row of the last applied entry's log id.
pub fn raft_applied_key() -> Bytes {
    metadata_key(RAFT_APPLIED)
}

/// The row of the effective membership.
pub fn raft_membership_key() -> Bytes {
    metadata_key(RAFT_MEMBERSHIP)
}

/// The row of the replicated clock.
pub fn clock_key() -> Bytes {
    metadata_key(CLOCK)
}

/// The row of the format version.
pub fn format_key() -> Bytes {
    metadata_key(FORMAT)
}

/// The row `local/<name>`, which only this replica has.
pub fn local_key(name: &str) -> Bytes {
    metadata_key(&format!("{LOCAL}{name}"))
}

/// All rows that only this replica has, index entries aside.
pub fn local_range() -> KeyRange {
    prefix_range(&metadata_key(LOCAL))
}

/// Whether a row is derived by each replica for itself: left out of snapshots and digests.
pub fn is_local(physical: &[u8]) -> bool {
    match physical.split_first() {
        Some((&INDEX_ENTRIES, _)) => true,
        Some((&METADATA, name)) => name.starts_with(LOCAL.as_bytes()),
        _ => false,
    }
}

/// The row of a boundary.
pub fn boundary_key(boundary: BoundaryHash) -> Bytes {
    prefixed(BOUNDARIES, &boundary.0.to_be_bytes())
}

/// Reads the physical key of a boundary.
pub fn parse_boundary_key(physical: &[u8]) -> Result<BoundaryHash> {
    match physical.split_first() {
        Some((&BOUNDARIES, own_key)) => {
            let hash = own_key.try_into().map_err(|_| Error::malformed("boundaries", physical.len()))?;
            Ok(BoundaryHash(u64::from_be_bytes(hash)))
        }
        _ => Err(Error::malformed("boundaries", physical.len())),
    }
}

/// The key of an idempotency row, without the tag: which write of which boundary was already answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdempotencyKey {
    /// The boundary.
    pub boundary: BoundaryHash,
    /// The hash of the key that the client chose.
    pub key_hash: [u8; KEY_HASH_LENGTH],
}

impl IdempotencyKey {
    /// Hashes the key that a client chose: the first 16 bytes of its BLAKE3.
    pub fn of(boundary: BoundaryHash, client_key: &[u8]) -> Self {
        let mut key_hash = [0; KEY_HASH_LENGTH];
        key_hash.copy_from_slice(&blake3::hash(client_key).as_bytes()[..KEY_HASH_LENGTH]);
        Self { boundary, key_hash }
    }

    fn put(&self, key: &mut BytesMut) {
        key.put_u64(self.boundary.0);
        key.put_slice(&self.key_hash);
    }

    fn decode(own_key: &[u8]) -> Option<Self> {
        let (boundary, key_hash) = own_key.split_first_chunk::<8>()?;
        Some(Self {
            boundary: BoundaryHash(u64::from_be_bytes(*boundary)),
            key_hash: key_hash.try_into().ok()?,
        })
    }
}

/// The physical key of an idempotency row.
pub fn idempotency_key(key: &IdempotencyKey) -> Bytes {
    let mut physical = BytesMut::with_capacity(1 + 8 + KEY_HASH_LENGTH);
    physical.put_u8(IDEMPOTENCY);
    key.put(&mut physical);
    physical.freeze()
}

/// Reads the physical key of an idempotency row.
pub fn parse_idempotency_key(physical: &[u8]) -> Result<IdempotencyKey> {
    match physical.split_first() {
        Some((&IDEMPOTENCY, own_key)) => IdempotencyKey::decode(own_key),
        _ => None,
    }
    .ok_or_else(|| Error::malformed("idempotency", physical.len()))
}

/// The row that expires, by its own key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Expiring {
    /// An event.
    Event(EventKey),
    /// An idempotency row.
    Idempotency(IdempotencyKey),
}

impl Expiring {
    const EVENT: u8 = 0;
    const IDEMPOTENCY: u8 = 1;
}

/// The physical key of the expiry row of `row`, which expires at `expires_at_ms`.
pub fn expiry_key(expires_at_ms: u64, row: &Expiring) -> Bytes {
    let mut key = BytesMut::with_capacity(10 + EVENT_KEY_LENGTH);
    key.put_u8(EXPIRY);
    key.put_u64(expires_at_ms);
    match row {
        Expiring::Event(event) => {
            key.put_u8(Expiring::EVENT);
            key.put_slice(&event.encode());
        }
        Expiring::Idempotency(idempotency) => {
            key.put_u8(Expiring::IDEMPOTENCY);
            idempotency.put(&mut key);
        }
    }
    key.freeze()
}

/// Reads the physical key of an expiry row: when it expires, in ms, and what.
pub fn parse_expiry_key(physical: &[u8]) -> Result<(u64, Expiring)> {
    let malformed = || Error::malformed("expiry", physical.len());
    let Some((&EXPIRY, own_key)) = physical.split_first() else { return Err(malformed()) };
    let (expires_at, row) = own_key.split_first_chunk::<8>().ok_or_else(malformed)?;
    let row = match row.split_first().ok_or_else(malformed)? {
        (&Expiring::EVENT, key) => Expiring::Event(EventKey::decode(key)?),
        (&Expiring::IDEMPOTENCY, key) => {
            Expiring::Idempotency(IdempotencyKey::decode(key).ok_or_else(malformed)?)
        }
        _ => return Err(malformed()),
    };
    Ok((u64::from_be_bytes(*expires_at), row))
}

/// Everything that has expired at `now_ms`: the rows with `expires_at <= now_ms`.
pub fn expired_range(now_ms: u64) -> KeyRange {
    let upper = match now_ms.checked_add(1) {
        Some(next) => prefixed(EXPIRY, &next.to_be_bytes()),
        None => table_end(EXPIRY),
    };
    KeyRange::new(prefixed(EXPIRY, &[]), upper)
}

/// The value of the `format` row of a new database: the format version and the first release that reads it.
///
/// The release is the format's, not the build's: replicas of different builds hold the same bytes.
pub fn format_row() -> Bytes {
    let mut row = BytesMut::new();
    row.put_u32(FORMAT_VERSION);
    row.put_slice(FORMAT_RELEASES[FORMAT_VERSION as usize - 1].as_bytes());
    row.freeze()
}

/// Checks the `format` row of the database in `dir`.
///
/// Errors: [`Error::Corruption`] for a missing or malformed row, [`Error::Unsupported`] for a format that this
/// build cannot open.
pub fn check_format(dir: &Path, row: Option<&[u8]>) -> Result<()> {
    let corrupt = |damage| Error::Corruption { damage, path: dir.to_path_buf(), source: None };
    let row = row.ok_or_else(|| corrupt(Damage::NoFormat))?;
    let malformed = || corrupt(Damage::Row { table: "format", length: row.len() });
    let (version, release) = row.split_first_chunk::<4>().ok_or_else(malformed)?;
    let release = std::str::from_utf8(release).map_err(|_| malformed())?;
    let found = u32::from_be_bytes(*version);
    if (OLDEST_FORMAT_VERSION..=FORMAT_VERSION).contains(&found) {
        return Ok(());
    }
    Err(Error::Unsupported {
        path: dir.to_path_buf(),
        found,
        oldest: OLDEST_FORMAT_VERSION,
        newest: FORMAT_VERSION,
        release: release.to_owned(),
    })
}

#[cfg(test)]
mod tests;
