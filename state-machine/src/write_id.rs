//! The write id: the text form of a boundary and the position of a save's first event.

use std::{fmt, str::FromStr};

use thiserror::Error;
use tidemark_storage::{BoundaryHash, EventKey, Position, key::EVENT_KEY_LENGTH};

/// Names one save. Its text form is the key of the save's first event in 48 lower-case hexadecimal digits, so
/// there is exactly one text for each write id and texts of one boundary sort like positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriteId(EventKey);

impl WriteId {
    /// The write id of the save whose first event has the key `first`.
    pub fn new(first: EventKey) -> Self {
        Self(first)
    }

    /// The boundary that was written to.
    pub fn boundary(&self) -> BoundaryHash {
        self.0.boundary
    }

    /// The position of the save's first event.
    pub fn first(&self) -> Position {
        self.0.position()
    }
}

impl fmt::Display for WriteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.encode().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The text is no write id: 48 lower-case hexadecimal digits are needed, with positions within `i64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not a write id: expected the 48 lower-case hexadecimal digits that a save returned")]
pub struct InvalidWriteId;

impl FromStr for WriteId {
    type Err = InvalidWriteId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if pairs.len() != EVENT_KEY_LENGTH || !rest.is_empty() {
            return Err(InvalidWriteId);
        }
        let mut key = [0; EVENT_KEY_LENGTH];
        for (byte, [high, low]) in key.iter_mut().zip(pairs) {
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        EventKey::decode(&key).map(Self).map_err(|_| InvalidWriteId)
    }
}

fn digit(text: u8) -> Result<u8, InvalidWriteId> {
    match text {
        b'0'..=b'9' => Ok(text - b'0'),
        b'a'..=b'f' => Ok(text - b'a' + 10),
        _ => Err(InvalidWriteId),
    }
}

#[cfg(test)]
mod tests {
    use tidemark_storage::{Bucket, EventId};

    use super::*;

    fn write_id(boundary: u64, bucket: u64, event_id: u64) -> WriteId {
        WriteId::new(EventKey {
            boundary: BoundaryHash(boundary),
            bucket: Bucket::new(bucket).expect("in range"),
            event_id: EventId::new(event_id).expect("in range"),
        })
    }

    #[test]
    fn the_text_form_is_the_event_key_in_hexadecimal() {
        let id = write_id(0x0f4f_95cf_b44c_a775, 0x70a0_3553, 258);
        assert_eq!(id.to_string(), "0f4f95cfb44ca7750000000070a035530000000000000102");
        assert_eq!(id.boundary(), BoundaryHash(0x0f4f_95cf_b44c_a775));
        assert_eq!(id.first(), Position { commit_position: 0x70a0_3553, prepare_position: 258 });
    }

    #[test]
    fn parsing_gives_back_what_was_printed() {
        for id in [write_id(0, 0, 1), write_id(u64::MAX, i64::MAX as u64, i64::MAX as u64), write_id(7, 8, 9)]
        {
            assert_eq!(id.to_string().parse(), Ok(id));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        let good = write_id(1, 2, 3).to_string();
        let upper = write_id(0xab, 2, 3).to_string().to_uppercase();
        let too_large = "f".repeat(48);
        let non_ascii = "é".repeat(24);
        for text in
            ["", &good[1..], &format!("{good}0"), &format!("{good}00"), &upper, &too_large, &non_ascii]
        {
            assert_eq!(text.parse::<WriteId>(), Err(InvalidWriteId), "{text}");
        }
    }
}
