//! The 24-byte event key, the position that is its tail, and the bounds of range reads over events.
//!
//! ```text
//!  0               8              16              24
//!  +---------------+---------------+---------------+
//!  | boundary hash |    bucket     |   event id    |   three big-endian u64
//!  +---------------+---------------+---------------+
//!                  |  commit pos.  | prepare pos.  |   the same bits, read as i64
//! ```
//!
//! **Invariant**: bucket and event id are at most `i64::MAX`, so position order is key order and both parts
//! fit a signed 64-bit integer in every client language.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use xxhash_rust::xxh64::xxh64;

use crate::{
    contract::KeyRange,
    error::{Error, Result, Usage},
    tables,
};

/// The length of an encoded event key.
pub const EVENT_KEY_LENGTH: usize = 24;

/// xxhash64 with seed 0 of a boundary's name.
///
/// Two names with the same hash cannot both be boundaries: creating the second one is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BoundaryHash(pub u64);

impl BoundaryHash {
    /// The hash of the boundary called `name`.
    pub fn of(name: &str) -> Self {
        Self(xxh64(name.as_bytes(), 0))
    }
}

impl fmt::Display for BoundaryHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Defines an unsigned number that also fits into an `i64`.
macro_rules! bounded_number {
    ($(#[$docs:meta])* $name:ident, $field:literal) => {
        $(#[$docs])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            /// The smallest value.
            pub const ZERO: Self = Self(0);
            /// The largest value, `i64::MAX`.
            pub const MAX: Self = Self(i64::MAX as u64);

            /// Checks that `value` is at most [`Self::MAX`].
            pub fn new(value: u64) -> Result<Self> {
                if value > Self::MAX.0 {
                    return Err(Usage::OutOfRange { field: $field, value }.into());
                }
                Ok(Self(value))
            }

            /// The number.
            pub const fn get(self) -> u64 {
                self.0
            }

            /// The number as the signed half of a [`Position`].
            pub const fn position_part(self) -> i64 {
                self.0 as i64
            }

            /// The value `count` further on, or `None` above [`Self::MAX`].
            pub fn checked_add(self, count: u64) -> Option<Self> {
                self.0.checked_add(count).and_then(|sum| Self::new(sum).ok())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

bounded_number! {
    /// The time at which an event happens, in units of its boundary's bucket width.
    Bucket, "bucket"
}

bounded_number! {
    /// The number of an event: assigned by the leader, monotonic over all boundaries of a group, never
    /// reused, with gaps. The first one is 1.
    EventId, "event id"
}

/// The place of an event in its boundary. Positions of one boundary are ordered like their event keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The bucket.
    pub commit_position: i64,
    /// The event id.
    pub prepare_position: i64,
}

impl Position {
    /// The cursor before every event; never assigned.
    pub const START: Self = Self { commit_position: 0, prepare_position: 0 };
    /// Means that nothing matched.
    pub const NONE: Self = Self { commit_position: -1, prepare_position: -1 };

    /// The position of the event `event_id` in `bucket`.
    pub const fn new(bucket: Bucket, event_id: EventId) -> Self {
        Self { commit_position: bucket.position_part(), prepare_position: event_id.position_part() }
    }

    /// Bucket and event id, with negative parts as 0: everything below [`Position::START`] sorts before every
    /// event, as it does.
    pub fn parts(self) -> (Bucket, EventId) {
        if self < Self::START {
            return (Bucket::ZERO, EventId::ZERO);
        }
        // `max` acts on the prepare position only: a negative one with a bucket is before that bucket's events.
        (Bucket(self.commit_position as u64), EventId(self.prepare_position.max(0) as u64))
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.commit_position, self.prepare_position)
    }
}

/// The key of an event in the event table, without the table tag. Also the opaque `delivery_tag`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventKey {
    /// The boundary.
    pub boundary: BoundaryHash,
    /// When the event happens.
    pub bucket: Bucket,
    /// The event's number.
    pub event_id: EventId,
}

impl EventKey {
    /// The key of the event at `position`, negative parts as 0.
    pub fn at(boundary: BoundaryHash, position: Position) -> Self {
        let (bucket, event_id) = position.parts();
        Self { boundary, bucket, event_id }
    }

    /// The 24 bytes.
    pub fn encode(&self) -> [u8; EVENT_KEY_LENGTH] {
        let mut key = [0; EVENT_KEY_LENGTH];
        key[..8].copy_from_slice(&self.boundary.0.to_be_bytes());
        key[8..16].copy_from_slice(&self.bucket.0.to_be_bytes());
        key[16..].copy_from_slice(&self.event_id.0.to_be_bytes());
        key
    }

    /// Reads the 24 bytes; any other length, or a part above `i64::MAX`, is malformed.
    pub fn decode(key: &[u8]) -> Result<Self> {
        let malformed = || Error::malformed("event key", key.len());
        let (words, rest) = key.as_chunks::<8>();
        let ([boundary, bucket, event_id], []) = (words, rest) else { return Err(malformed()) };
        Ok(Self {
            boundary: BoundaryHash(u64::from_be_bytes(*boundary)),
            bucket: Bucket::new(u64::from_be_bytes(*bucket)).map_err(|_| malformed())?,
            event_id: EventId::new(u64::from_be_bytes(*event_id)).map_err(|_| malformed())?,
        })
    }

    /// The position in the boundary.
    pub fn position(&self) -> Position {
        Position::new(self.bucket, self.event_id)
    }
}

/// The bucket of something that happens at `time_ms`, rounded down. Width 0 means 1 (raw milliseconds).
pub fn bucket_now(time_ms: u64, width_ms: u64) -> Bucket {
    Bucket((time_ms / width_ms.max(1)).min(Bucket::MAX.0))
}

/// The bucket of an event scheduled for `fire_at_ms`, rounded **up**: it never fires early, and at most one
/// bucket late. Width 0 means 1 (raw milliseconds).
pub fn bucket_due(fire_at_ms: u64, width_ms: u64) -> Bucket {
    Bucket(fire_at_ms.div_ceil(width_ms.max(1)).min(Bucket::MAX.0))
}

/// The physical key before all events of `boundary`: an inclusive lower bound.
pub fn boundary_lower(boundary: BoundaryHash) -> Bytes {
    tables::prefixed(tables::EVENTS, &boundary.0.to_be_bytes())
}

/// The physical key behind all events of `boundary`: an exclusive upper bound.
///
/// For the largest hash that is the end of the event *table*, not of the keyspace.
pub fn boundary_upper(boundary: BoundaryHash) -> Bytes {
    match boundary.0.checked_add(1) {
        Some(next) => tables::prefixed(tables::EVENTS, &next.to_be_bytes()),
        None => tables::table_end(tables::EVENTS),
    }
}

/// The physical key behind all events of `boundary` that are due in `now_bucket`: an exclusive upper bound, so
/// that future buckets are never scanned.
pub fn due_upper(boundary: BoundaryHash, now_bucket: Bucket) -> Bytes {
    match now_bucket.checked_add(1) {
        Some(next) => bucket_lower(boundary, next),
        None => boundary_upper(boundary),
    }
}

/// The physical key before all events of `bucket`: an inclusive lower bound, also for a point in time.
pub fn bucket_lower(boundary: BoundaryHash, bucket: Bucket) -> Bytes {
    let mut key = BytesMut::with_capacity(17);
    key.put_u8(tables::EVENTS);
    key.put_u64(boundary.0);
    key.put_u64(bucket.0);
    key.freeze()
}

/// The physical key of `position`: an inclusive lower bound of what is at it or after it, an exclusive upper
/// bound of what is before it.
pub fn position_lower(boundary: BoundaryHash, position: Position) -> Bytes {
    tables::event_key(&EventKey::at(boundary, position))
}

/// The physical key right behind `position`: an inclusive lower bound of what comes after it, an exclusive
/// upper bound of what is at it or before it.
pub fn position_upper(boundary: BoundaryHash, position: Position) -> Bytes {
    if position < Position::START {
        return boundary_lower(boundary);
    }
    let mut key = BytesMut::with_capacity(2 + EVENT_KEY_LENGTH);
    key.put_u8(tables::EVENTS);
    key.put_slice(&EventKey::at(boundary, position).encode());
    // The successor of a byte string is the string with a zero byte behind it.
    key.put_u8(0);
    key.freeze()
}

/// All events of `boundary`.
pub fn boundary_range(boundary: BoundaryHash) -> KeyRange {
    KeyRange::new(boundary_lower(boundary), boundary_upper(boundary))
}

/// The events of `boundary` that are due in `now_bucket`.
pub fn due_range(boundary: BoundaryHash, now_bucket: Bucket) -> KeyRange {
    KeyRange::new(boundary_lower(boundary), due_upper(boundary, now_bucket))
}

#[cfg(test)]
mod tests;
