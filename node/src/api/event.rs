//! A stored event as clients see it.

use tidemark_proto::{record, v1};
use tidemark_state_machine::{Event, Fault};

use super::outcome;

/// Milliseconds since 1970 as a protobuf timestamp.
pub(super) fn timestamp(ms: u64) -> prost_types::Timestamp {
    let seconds = i64::try_from(ms / 1_000).unwrap_or(i64::MAX);
    let nanos = i32::try_from(ms % 1_000 * 1_000_000).expect("less than a second of nanoseconds fits");
    prost_types::Timestamp { seconds, nanos }
}

/// Payloads are passed on, not copied.
pub(super) fn to_message(event: Event) -> Result<v1::Event, Fault> {
    let write_id = event.write_id()?.to_string();
    let content_type = event.content_type().to_owned();
    let position = outcome::position(event.position());
    let stored = event.stored;
    Ok(v1::Event {
        position: Some(position),
        event_id: stored.event_id,
        event_type: stored.event_type,
        data: stored.data,
        metadata: stored.metadata,
        content_type,
        attributes: stored.attributes.into_iter().map(attribute).collect(),
        write_id,
        date_created: Some(timestamp(stored.happened_at_ms)),
        date_appended: Some(timestamp(stored.appended_at_ms)),
        expires_at: stored.expires_at_ms.map(timestamp),
    })
}

fn attribute(attribute: record::Attribute) -> v1::Attribute {
    let value = attribute.value.map(|value| match value {
        record::attribute::Value::Text(text) => v1::attribute::Value::Text(text),
        record::attribute::Value::Integer(integer) => v1::attribute::Value::Integer(integer),
    });
    v1::Attribute { key: attribute.key, value }
}
