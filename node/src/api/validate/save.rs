//! Checks a save and encodes its events, once, into the bytes that the log, the peers and the event table hold.

use bytes::BytesMut;
use prost::Message;
use tidemark_proto::{ApiError, record, v1};
use tidemark_storage::BoundaryHash;

use super::{
    digest::{idempotency_key_hash, request_digest},
    event,
    field::{Field, boundary_name, size},
};
use crate::api::{json::Checker, limits::Limits};

/// Bytes of a stored event beside the texts and payloads of the request: tags, lengths, the index and an event id that
/// is made. Only a guess at the size of a buffer that grows.
const FRAMING_BYTES: usize = 72;

/// A save that can go to the sequencer once its boundary is known.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidSave {
    /// The boundary's name.
    pub boundary: String,
    /// What goes into the batch. `incarnation` is 0: whoever looks up the boundary fills it in.
    pub request: record::AppendRequest,
    /// Length of `request` as encoded, in bytes: what counts towards `max_save_bytes` and the queue's budget.
    pub bytes: usize,
    /// How many events it has.
    pub events: usize,
}

/// Checks `request` and encodes its events. `new_event_id` makes the ids that the client left empty.
///
/// # Errors
/// [`ApiError::InvalidRequest`] with the field, [`ApiError::LimitExceeded`] for an event, a save or their number above
/// its limit, [`ApiError::NotSupported`].
pub fn save(
    request: v1::SaveEventsRequest,
    limits: &Limits,
    new_event_id: impl FnMut() -> String,
) -> Result<ValidSave, ApiError> {
    check(&request, limits)?;
    let idempotency = (!request.idempotency_key.is_empty()).then(|| record::Idempotency {
        key_hash: idempotency_key_hash(&request.idempotency_key),
        request_digest: request_digest(&request.events, &request.consistency),
    });
    let v1::SaveEventsRequest { boundary, events, .. } = request;
    let (boundary, events) = encode(boundary, events, new_event_id);
    let count = events.len();
    let request = record::AppendRequest {
        boundary_hash: BoundaryHash::of(&boundary).0,
        incarnation: 0,
        events,
        idempotency,
    };
    let bytes = request.encoded_len();
    size("max_save_bytes", bytes as u64, limits.max_save_bytes)?;
    Ok(ValidSave { boundary, request, bytes, events: count })
}

fn check(request: &v1::SaveEventsRequest, limits: &Limits) -> Result<(), ApiError> {
    boundary_name(&request.boundary, limits)?;
    if request.events.is_empty() {
        return Err(Field::Request("events").invalid("must hold at least one event"));
    }
    size("max_events_per_save", request.events.len() as u64, limits.max_events_per_save as u64)?;
    Field::Request("idempotency_key").label(&request.idempotency_key, limits)?;
    if !request.consistency.is_empty() {
        return Err(ApiError::NotSupported { what: "consistency".to_owned() });
    }
    let mut json = Checker::new(limits.max_json_depth);
    for (index, event) in request.events.iter().enumerate() {
        event::check(index, event, limits, &mut json)?;
    }
    Ok(())
}

/// Encodes the events into slices of one buffer. The boundary's name is lent to each event in turn, for a copy per
/// event would be the only allocation that grows with their number.
fn encode(
    mut boundary: String,
    events: Vec<v1::EventToSave>,
    mut new_event_id: impl FnMut() -> String,
) -> (String, Vec<record::EventToAppend>) {
    let mut buffer = BytesMut::with_capacity(expected_bytes(&boundary, &events));
    let events = (0..)
        .zip(events)
        .map(|(write_index, event)| {
            let mut stored = to_stored(event, write_index);
            stored.boundary = std::mem::take(&mut boundary);
            if stored.event_id.is_empty() {
                stored.event_id = new_event_id();
            }
            stored.encode(&mut buffer).expect("a buffer that grows has room");
            boundary = stored.boundary;
            record::EventToAppend { stored: buffer.split().freeze(), ..Default::default() }
        })
        .collect();
    (boundary, events)
}

fn expected_bytes(boundary: &str, events: &[v1::EventToSave]) -> usize {
    let payloads: usize = events
        .iter()
        .map(|event| {
            let attributes: usize =
                event.attributes.iter().map(|attribute| attribute.encoded_len() + 4).sum();
            event.data.len()
                + event.metadata.len()
                + event.event_id.len()
                + event.event_type.len()
                + event.content_type.len()
                + attributes
        })
        .sum();
    payloads + events.len() * (boundary.len() + FRAMING_BYTES)
}

fn to_stored(event: v1::EventToSave, write_index: u32) -> record::StoredEvent {
    // JSON is always stored as the empty type, so that nobody has to parse media types again.
    let content_type = if event::is_json(&event.content_type) { String::new() } else { event.content_type };
    record::StoredEvent {
        event_id: event.event_id,
        event_type: event.event_type,
        data: event.data,
        metadata: event.metadata,
        content_type,
        attributes: event.attributes.into_iter().map(to_stored_attribute).collect(),
        write_index,
        ..Default::default()
    }
}

fn to_stored_attribute(attribute: v1::Attribute) -> record::Attribute {
    let value = attribute.value.map(|value| match value {
        v1::attribute::Value::Text(text) => record::attribute::Value::Text(text),
        v1::attribute::Value::Integer(integer) => record::attribute::Value::Integer(integer),
    });
    record::Attribute { key: attribute.key, value }
}
