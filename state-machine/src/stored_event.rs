//! The value under an event key: the sequencer's bytes, and behind them the times that only apply knows.
//!
//! ```text
//! +--------------------------------------+--------------------------------------+
//! | StoredEvent, fields 1 to 15          | StoredEvent, fields 16 to 19         |
//! | as the sequencer encoded them        | appended by apply                    |
//! +--------------------------------------+--------------------------------------+
//! ```
//!
//! Two encodings of a protobuf message, one behind the other, are the encoding of both merged, so the whole
//! decodes as one `StoredEvent` and apply never encodes a payload again.

use bytes::{Bytes, BytesMut};
use prost::Message;
use tidemark_proto::record::{self, StoredEvent};
use tidemark_storage::{Bucket, EventId, EventKey, Position, tables};

use crate::{fault::Fault, write_id::WriteId};

/// What apply knows about an event beside the sequencer's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    /// Replicated time of the entry.
    pub(crate) appended_at_ms: u64,
    /// Replicated time at which the event happens.
    pub(crate) happened_at_ms: u64,
    /// `None` is never.
    pub(crate) expires_at_ms: Option<u64>,
    /// Commit position of the save's first event.
    pub(crate) write_commit_position: u64,
}

/// The value of an event: `stored` with the encoding of `times` behind it.
pub(crate) fn append_times(stored: &[u8], times: &Times) -> Bytes {
    let tail = StoredEvent {
        appended_at_ms: times.appended_at_ms,
        happened_at_ms: times.happened_at_ms,
        expires_at_ms: times.expires_at_ms,
        write_commit_position: times.write_commit_position,
        ..StoredEvent::default()
    };
    let mut value = BytesMut::with_capacity(stored.len() + tail.encoded_len());
    value.extend_from_slice(stored);
    tail.encode(&mut value).expect("a growing buffer has room");
    value.freeze()
}

/// The one field of a `StoredEvent` that decides, with the key, whether the event is visible. Decoding it skips
/// everything else without copying.
#[derive(Clone, PartialEq, Message)]
struct Expiry {
    #[prost(fixed64, optional, tag = "18")]
    expires_at_ms: Option<u64>,
}

/// When the event in `value` expires; `None` is never.
pub(crate) fn expires_at_ms(physical_key: &[u8], value: &[u8]) -> Result<Option<u64>, Fault> {
    let expiry = Expiry::decode(value).map_err(|source| corrupt(physical_key, source))?;
    Ok(expiry.expires_at_ms)
}

/// One event as it is stored, with its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The event's key.
    pub key: EventKey,
    /// Everything else. Payloads point into the value that was decoded.
    pub stored: StoredEvent,
}

impl Event {
    /// Decodes the value under `key`.
    pub fn decode(key: EventKey, value: Bytes) -> Result<Self, Fault> {
        let stored =
            StoredEvent::decode(value).map_err(|source| corrupt(&tables::event_key(&key), source))?;
        Ok(Self { key, stored })
    }

    /// The event's position in its boundary.
    pub fn position(&self) -> Position {
        self.key.position()
    }

    /// Names the save that wrote the event.
    pub fn write_id(&self) -> Result<WriteId, Fault> {
        let corrupt = || Fault::CorruptRow {
            table: "events",
            key: tables::event_key(&self.key).to_vec(),
            source: None,
        };
        // The ids of one save follow each other.
        let first_id = self.key.event_id.get().checked_sub(u64::from(self.stored.write_index));
        let event_id = first_id.and_then(|id| EventId::new(id).ok()).ok_or_else(corrupt)?;
        let bucket = Bucket::new(self.stored.write_commit_position).map_err(|_| corrupt())?;
        Ok(WriteId::new(EventKey { boundary: self.key.boundary, bucket, event_id }))
    }

    /// The media type of the data.
    pub fn content_type(&self) -> &str {
        if self.stored.content_type.is_empty() { "application/json" } else { &self.stored.content_type }
    }

    /// Keys and values that were given beside the data.
    pub fn attributes(&self) -> &[record::Attribute] {
        &self.stored.attributes
    }
}

fn corrupt(physical_key: &[u8], source: prost::DecodeError) -> Fault {
    Fault::CorruptRow { table: "events", key: physical_key.to_vec(), source: Some(source) }
}

#[cfg(test)]
mod tests {
    use tidemark_storage::BoundaryHash;

    use super::*;

    fn from_sequencer() -> StoredEvent {
        let text = record::attribute::Value::Text("b".into());
        let integer = record::attribute::Value::Integer(-7);
        StoredEvent {
            boundary: "orders".into(),
            event_id: "e-1".into(),
            event_type: "Opened".into(),
            data: Bytes::from_static(b"{\"a\":1}"),
            metadata: Bytes::from_static(b"{}"),
            content_type: "text/plain".into(),
            attributes: vec![
                record::Attribute { key: "a".into(), value: Some(text) },
                record::Attribute { key: "n".into(), value: Some(integer) },
            ],
            write_index: 2,
            delay_ms: Some(5),
            deliver_at_ms: Some(0),
            ttl_ms: Some(9),
            ..StoredEvent::default()
        }
    }

    fn key() -> EventKey {
        EventKey {
            boundary: BoundaryHash(5),
            bucket: Bucket::new(40).expect("in range"),
            event_id: EventId::new(12).expect("in range"),
        }
    }

    #[test]
    fn the_value_decodes_to_all_fields_of_both_parts() {
        let times = Times {
            appended_at_ms: 1_000,
            happened_at_ms: 1_250,
            expires_at_ms: Some(u64::MAX),
            write_commit_position: 39,
        };
        let stored = from_sequencer().encode_to_vec();
        let value = append_times(&stored, &times);
        assert!(value.starts_with(&stored), "the sequencer's bytes stay as they are");
        assert_eq!(expires_at_ms(b"key", &value).expect("well formed"), Some(u64::MAX));
        let event = Event::decode(key(), value).expect("well formed");
        let merged = StoredEvent {
            appended_at_ms: 1_000,
            happened_at_ms: 1_250,
            expires_at_ms: Some(u64::MAX),
            write_commit_position: 39,
            ..from_sequencer()
        };
        assert_eq!(event.stored, merged);
        assert_eq!(event.position(), Position { commit_position: 40, prepare_position: 12 });
        assert_eq!(event.content_type(), "text/plain");
        assert_eq!(event.attributes().len(), 2);
        let write_id = event.write_id().expect("well formed");
        assert_eq!(write_id.first(), Position { commit_position: 39, prepare_position: 10 });
        assert_eq!(write_id.boundary(), BoundaryHash(5));
    }

    #[test]
    fn an_event_without_lifetime_never_expires() {
        let times =
            Times { appended_at_ms: 0, happened_at_ms: 0, expires_at_ms: None, write_commit_position: 0 };
        let value = append_times(b"", &times);
        assert_eq!(expires_at_ms(b"key", &value).expect("well formed"), None);
        let event = Event::decode(key(), value).expect("well formed");
        assert_eq!(event.stored, StoredEvent::default());
        assert_eq!(event.content_type(), "application/json");
    }

    #[test]
    fn an_expiry_of_zero_is_kept_apart_from_never() {
        let times =
            Times { appended_at_ms: 1, happened_at_ms: 1, expires_at_ms: Some(0), write_commit_position: 1 };
        let value = append_times(b"", &times);
        assert_eq!(expires_at_ms(b"key", &value).expect("well formed"), Some(0));
    }

    #[test]
    fn a_damaged_value_is_a_fault_that_names_the_key() {
        let fault = expires_at_ms(&[0x65, 1], &[0xff]).expect_err("corrupt");
        assert_eq!(fault.to_string(), "a row of table events is corrupt, its key is 6501");
        assert!(Event::decode(key(), Bytes::from_static(&[0x0a, 0x05])).is_err());
    }

    #[test]
    fn a_write_index_beyond_the_event_id_is_a_fault() {
        let stored = StoredEvent { write_index: 13, ..StoredEvent::default() };
        assert!(Event { key: key(), stored }.write_id().is_err());
    }
}
