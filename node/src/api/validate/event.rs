//! Checks one event of a save.

use std::collections::HashSet;

use prost::{Message, encoding::encoded_len_varint};
use tidemark_proto::{ApiError, v1};

use super::field::{Field, size};
use crate::api::{
    json::{Checker, RESERVED_PREFIX, RootKeys},
    limits::Limits,
};

/// The media type that an empty `content_type` stands for.
const JSON: &str = "application/json";

/// Checks the event at `index` of a save.
pub(super) fn check(
    index: usize,
    event: &v1::EventToSave,
    limits: &Limits,
    json: &mut Checker,
) -> Result<(), ApiError> {
    check_labels(index, event, limits)?;
    check_time(index, event)?;
    size("max_event_bytes", payload_bytes(event), limits.max_event_bytes)?;
    let names = check_attributes(index, &event.attributes, limits)?;
    if is_json(&event.content_type) {
        let root_keys = RootKeys::Queried { attributes: &names };
        json.object(&event.data, root_keys)
            .map_err(|error| Field::Event(index, "data").invalid(error.to_string()))?;
    }
    if !event.metadata.is_empty() {
        json.object(&event.metadata, RootKeys::Any)
            .map_err(|error| Field::Event(index, "metadata").invalid(error.to_string()))?;
    }
    Ok(())
}

/// Whether `content_type` says that the data is JSON. Case and parameters do not matter (RFC 9110, section 8.3.1), and
/// JSON defines none (RFC 8259, section 11).
pub(super) fn is_json(content_type: &str) -> bool {
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    content_type.is_empty() || media_type.eq_ignore_ascii_case(JSON)
}

fn check_labels(index: usize, event: &v1::EventToSave, limits: &Limits) -> Result<(), ApiError> {
    Field::Event(index, "event_id").label(&event.event_id, limits)?;
    let event_type = Field::Event(index, "event_type");
    event_type.required(&event.event_type)?;
    event_type.label(&event.event_type, limits)?;
    Field::Event(index, "content_type").label(&event.content_type, limits)
}

fn check_time(index: usize, event: &v1::EventToSave) -> Result<(), ApiError> {
    if event.ttl_ms == Some(0) {
        return Err(Field::Event(index, "ttl_ms").invalid("must not be 0: leave it out for no expiry"));
    }
    let what = match (event.delivery, event.ttl_ms) {
        (Some(v1::event_to_save::Delivery::DeliverAtMs(_)), _) => "deliver_at_ms",
        (Some(v1::event_to_save::Delivery::DelayMs(_)), _) => "delay_ms",
        (None, Some(_)) => "ttl_ms",
        (None, None) => return Ok(()),
    };
    Err(ApiError::NotSupported { what: Field::Event(index, what).to_string() })
}

/// The bytes that count towards `max_event_bytes`. Attributes count as encoded, since thousands of tiny ones take
/// several times their text.
fn payload_bytes(event: &v1::EventToSave) -> u64 {
    let attributes: usize = event
        .attributes
        .iter()
        .map(|attribute| {
            let length = attribute.encoded_len();
            1 + encoded_len_varint(length as u64) + length
        })
        .sum();
    (event.data.len() + event.metadata.len() + attributes) as u64
}

/// Checks the attributes and gives their names.
fn check_attributes<'a>(
    index: usize,
    attributes: &'a [v1::Attribute],
    limits: &Limits,
) -> Result<HashSet<&'a str>, ApiError> {
    let mut names = HashSet::with_capacity(attributes.len());
    for (nth, attribute) in attributes.iter().enumerate() {
        let key = Field::Attribute(index, nth, "key");
        key.required(&attribute.key)?;
        key.label(&attribute.key, limits)?;
        if attribute.key.starts_with(RESERVED_PREFIX) {
            let why = format!("{:?}: keys that start with {RESERVED_PREFIX:?} are reserved", attribute.key);
            return Err(key.invalid(why));
        }
        if !names.insert(attribute.key.as_str()) {
            return Err(key.invalid(format!("{:?} is there twice", attribute.key)));
        }
        match &attribute.value {
            Some(v1::attribute::Value::Text(text)) => {
                let value = Field::Attribute(index, nth, "text");
                value.at_most(text.len() as u64, "max_tag_value_bytes", limits.max_tag_value_bytes)?;
                value.without_nul(text)?;
            }
            Some(v1::attribute::Value::Integer(_)) => {}
            None => {
                return Err(Field::Attribute(index, nth, "value").invalid("must be a text or an integer"));
            }
        }
    }
    Ok(names)
}
