//! One line of NDJSON as an event.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;
use tidemark_proto::v1::{Attribute, EventToSave, attribute};

/// Why a line is no event.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// Not JSON, a missing or unknown field, or a field of the wrong type.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// Data or metadata is JSON, but no object.
    #[error("{0} is not a JSON object")]
    NotAnObject(&'static str),
    /// The line is too long to be an event.
    #[error("the line is longer than {0} bytes")]
    TooLong(usize),
}

/// The fields in the order in which `tidemark read` prints them. Fields that the store sets are accepted, so that
/// what was read can be appended elsewhere, and not used.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    #[serde(default)]
    event_id: String,
    event_type: String,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    #[serde(default)]
    attributes: BTreeMap<String, Value>,
    #[serde(rename = "position")]
    _position: Option<IgnoredAny>,
    #[serde(rename = "write_id")]
    _write_id: Option<IgnoredAny>,
    #[serde(rename = "date")]
    _date: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Value {
    Integer(i64),
    Text(String),
}

/// The event that a line describes; `data` and `metadata` keep their bytes.
pub fn parse(line: &[u8]) -> Result<EventToSave, LineError> {
    let parsed: Line<'_> = serde_json::from_slice(line)?;
    let attributes = parsed.attributes.into_iter().map(|(key, value)| {
        let value = match value {
            Value::Integer(number) => attribute::Value::Integer(number),
            Value::Text(text) => attribute::Value::Text(text),
        };
        Attribute { key, value: Some(value) }
    });
    Ok(EventToSave {
        event_id: parsed.event_id,
        event_type: parsed.event_type,
        data: object("data", parsed.data)?.unwrap_or_else(|| Bytes::from_static(b"{}")),
        metadata: object("metadata", parsed.metadata)?.unwrap_or_default(),
        attributes: attributes.collect(),
        ..EventToSave::default()
    })
}

fn object(field: &'static str, raw: Option<&RawValue>) -> Result<Option<Bytes>, LineError> {
    match raw.map(RawValue::get) {
        None | Some("null") => Ok(None),
        Some(text) if text.starts_with('{') => Ok(Some(Bytes::copy_from_slice(text.as_bytes()))),
        Some(_) => Err(LineError::NotAnObject(field)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_and_metadata_keep_their_bytes() {
        let line = br#" {"event_id":"e1","event_type":"Happened","data":{"b" : 1.50, "a":1e3},"metadata":{"x":null},"attributes":{"k":"v","n":-7}} "#;
        let event = parse(line).unwrap();
        assert_eq!((event.event_id.as_str(), event.event_type.as_str()), ("e1", "Happened"));
        assert_eq!(event.data, &br#"{"b" : 1.50, "a":1e3}"#[..]);
        assert_eq!(event.metadata, &br#"{"x":null}"#[..]);
        let values: Vec<_> = event.attributes.into_iter().map(|a| (a.key, a.value.unwrap())).collect();
        let expected = [
            ("k".to_owned(), attribute::Value::Text("v".to_owned())),
            ("n".to_owned(), attribute::Value::Integer(-7)),
        ];
        assert_eq!(values, expected);
    }

    #[test]
    fn only_the_type_is_required() {
        let event = parse(br#"{"event_type":"Happened"}"#).unwrap();
        assert_eq!(
            (event.event_id.as_str(), &event.data[..], &event.metadata[..]),
            ("", &b"{}"[..], &b""[..])
        );
    }

    #[test]
    fn what_was_read_can_be_appended_again() {
        let line = br#"{"position":"3/7","event_id":"e","event_type":"T","data":{},"write_id":"w","date":"2013-01-01T00:00:00Z"}"#;
        assert_eq!(parse(line).unwrap().event_id, "e");
    }

    #[test]
    fn wrong_lines_say_what_is_wrong() {
        for (line, reason) in [
            (&br#"{"event_type":"T""#[..], "EOF"),
            (br#"{"event_id":"e"}"#, "missing field `event_type`"),
            (br#"{"event_type":"T","metdata":{}}"#, "unknown field `metdata`"),
            (br#"{"event_type":"T","data":[1]}"#, "data is not a JSON object"),
            (br#"{"event_type":"T","metadata":"x"}"#, "metadata is not a JSON object"),
            (br#"{"event_type":"T","attributes":{"a":1.5}}"#, "did not match"),
            (br#"{"event_type":1}"#, "invalid type"),
        ] {
            let error = parse(line).expect_err(reason).to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
