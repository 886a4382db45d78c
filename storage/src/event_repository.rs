//! The event repository's own rows: the last event id that was assigned and the replicated clock.
//!
//! Both are big-endian `u64` under text keys of the metadata table, written by `apply` in the same batch as the
//! entry's other rows. An absent row is the value of an empty repository: 0.

use bytes::Bytes;

use crate::{
    error::{Error, Result},
    key::EventId,
    overlay::Read,
    tables,
};

/// The value of a big-endian `u64` row.
pub fn encode_u64(value: u64) -> Bytes {
    Bytes::copy_from_slice(&value.to_be_bytes())
}

/// Reads a big-endian `u64` row; any other length is corruption. `row` names it in the error.
pub fn decode_u64(row: &'static str, value: &[u8]) -> Result<u64> {
    let bytes = value.try_into().map_err(|_| Error::malformed(row, value.len()))?;
    Ok(u64::from_be_bytes(bytes))
}

/// The replicated clock: milliseconds since 1970, only ever stepped forward by stamped entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClockMs(pub u64);

impl ClockMs {
    /// The clock after an entry stamped `entry_time_ms`: it never goes back.
    #[must_use]
    pub fn observe(self, entry_time_ms: u64) -> Self {
        Self(self.0.max(entry_time_ms))
    }
}

/// The row of the last assigned event id.
pub fn encode_last_id(last_id: EventId) -> Bytes {
    encode_u64(last_id.get())
}

/// Reads the row of the last assigned event id.
pub fn decode_last_id(value: &[u8]) -> Result<EventId> {
    let id = decode_u64("event-repo/last-id", value)?;
    EventId::new(id).map_err(|_| Error::malformed("event-repo/last-id", value.len()))
}

/// The row of the replicated clock.
pub fn encode_clock(clock: ClockMs) -> Bytes {
    encode_u64(clock.0)
}

/// Reads the row of the replicated clock.
pub fn decode_clock(value: &[u8]) -> Result<ClockMs> {
    decode_u64("clock", value).map(ClockMs)
}

/// The last assigned event id; [`EventId::ZERO`] if there is none yet.
pub fn read_last_id(source: &(impl Read + ?Sized)) -> Result<EventId> {
    let row = source.get(&tables::last_id_key())?;
    row.map_or(Ok(EventId::ZERO), |value| decode_last_id(&value))
}

/// The replicated clock; zero before the first stamped entry.
pub fn read_clock(source: &(impl Read + ?Sized)) -> Result<ClockMs> {
    let row = source.get(&tables::clock_key())?;
    row.map_or(Ok(ClockMs::default()), |value| decode_clock(&value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlay::Overlay;

    #[test]
    fn rows_are_big_endian_and_round_trip() {
        let id = EventId::new(0x0102_0304_0506_0708).expect("in range");
        assert_eq!(encode_last_id(id).as_ref(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(decode_last_id(&encode_last_id(id)).expect("well formed"), id);
        assert_eq!(encode_clock(ClockMs(258)).as_ref(), [0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(decode_clock(&encode_clock(ClockMs(u64::MAX))).expect("well formed"), ClockMs(u64::MAX));
    }

    #[test]
    fn malformed_rows_are_corruption() {
        for value in [&b""[..], &[0; 7], &[0; 9]] {
            assert!(decode_last_id(value).is_err());
            assert!(decode_clock(value).is_err());
        }
        assert!(decode_last_id(&[0xff; 8]).is_err(), "ids stay within i64");
    }

    #[test]
    fn an_empty_repository_starts_at_zero_and_reads_what_was_written() {
        let mut state = Overlay::empty();
        assert_eq!(read_last_id(&state).expect("readable"), EventId::ZERO);
        assert_eq!(read_clock(&state).expect("readable"), ClockMs(0));
        state.put(tables::last_id_key(), encode_last_id(EventId::new(41).expect("in range")));
        state.put(tables::clock_key(), encode_clock(ClockMs(7)));
        assert_eq!(read_last_id(&state).expect("readable").get(), 41);
        assert_eq!(read_clock(&state).expect("readable"), ClockMs(7));
    }

    #[test]
    fn the_clock_never_goes_back() {
        assert_eq!(ClockMs(5).observe(3), ClockMs(5));
        assert_eq!(ClockMs(5).observe(9), ClockMs(9));
    }
}
