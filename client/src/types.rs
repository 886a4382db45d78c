//! Requests that are pleasant to build.

use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tidemark_proto::v1;
use tidemark_proto::v1::event_to_save::Delivery;

/// The position to observe when a query matched nothing.
pub const NOTHING: v1::Position = v1::Position { commit_position: -1, prepare_position: -1 };

/// A criterion that matches events with all of these values. Values are texts, also for numbers: `"17"`.
pub fn criterion<K: Into<String>, V: Into<String>>(tags: impl IntoIterator<Item = (K, V)>) -> v1::Criterion {
    let tags = tags
        .into_iter()
        .map(|(key, value)| v1::Tag { key: key.into(), operator: String::new(), value: value.into() })
        .collect();
    v1::Criterion { tags }
}

/// A query that matches what any of the criteria matches.
pub fn any_of(criteria: impl IntoIterator<Item = v1::Criterion>) -> v1::Query {
    v1::Query { criteria: criteria.into_iter().collect() }
}

/// An event to append.
#[derive(Debug, Clone, PartialEq)]
pub struct EventToSave {
    message: v1::EventToSave,
}

impl EventToSave {
    /// An event whose data are the bytes of a JSON object, or of something else if
    /// [`content_type`](Self::content_type) says so.
    pub fn new(event_type: impl Into<String>, data: impl Into<Bytes>) -> Self {
        let event_type = event_type.into();
        Self { message: v1::EventToSave { event_type, data: data.into(), ..Default::default() } }
    }

    /// An event whose data are a value's JSON, which must be an object.
    ///
    /// # Errors
    /// The value cannot be written as JSON.
    pub fn json(event_type: impl Into<String>, data: &impl Serialize) -> Result<Self, serde_json::Error> {
        Ok(Self::new(event_type, serde_json::to_vec(data)?))
    }

    /// A label of at most 128 bytes; without one the node makes it.
    pub fn event_id(mut self, event_id: impl Into<String>) -> Self {
        self.message.event_id = event_id.into();
        self
    }

    /// The bytes of a JSON object that is stored and returned with the event.
    pub fn metadata(mut self, metadata: impl Into<Bytes>) -> Self {
        self.message.metadata = metadata.into();
        self
    }

    /// The kind of data if it is not JSON. Such an event is found by its attributes only.
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.message.content_type = content_type.into();
        self
    }

    /// A text to find the event by, beside the root fields of its data.
    pub fn text_attribute(self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.attribute(key.into(), v1::attribute::Value::Text(value.into()))
    }

    /// A number to find the event by, beside the root fields of its data.
    pub fn integer_attribute(self, key: impl Into<String>, value: i64) -> Self {
        self.attribute(key.into(), v1::attribute::Value::Integer(value))
    }

    fn attribute(mut self, key: String, value: v1::attribute::Value) -> Self {
        self.message.attributes.push(v1::Attribute { key, value: Some(value) });
        self
    }

    /// The event happens at this time, in milliseconds since 1970.
    pub fn deliver_at_ms(mut self, deliver_at_ms: i64) -> Self {
        self.message.delivery = Some(Delivery::DeliverAtMs(deliver_at_ms));
        self
    }

    /// The event happens this long after it was appended; whole milliseconds.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.message.delivery = Some(Delivery::DelayMs(millis(delay)));
        self
    }

    /// The event is visible for this long after it happened; whole milliseconds.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.message.ttl_ms = Some(millis(ttl));
        self
    }
}

impl From<v1::EventToSave> for EventToSave {
    fn from(message: v1::EventToSave) -> Self {
        Self { message }
    }
}

/// Events to append to one boundary, all or none, if the observed facts still hold.
#[derive(Debug, Clone, PartialEq)]
pub struct SaveRequest {
    pub(crate) message: v1::SaveEventsRequest,
    pub(crate) timeout: Option<Duration>,
}

impl SaveRequest {
    /// A save without events yet.
    pub fn new(boundary: impl Into<String>) -> Self {
        let message = v1::SaveEventsRequest { boundary: boundary.into(), ..Default::default() };
        Self { message, timeout: None }
    }

    /// Adds an event.
    pub fn event(mut self, event: EventToSave) -> Self {
        self.message.events.push(event.message);
        self
    }

    /// Adds events.
    pub fn events(mut self, events: impl IntoIterator<Item = EventToSave>) -> Self {
        self.message.events.extend(events.into_iter().map(|event| event.message));
        self
    }

    /// The save is accepted only if the latest event that matches the query is the one at the position, or if
    /// nothing matches for [`NOTHING`].
    pub fn observe(mut self, query: v1::Query, position: v1::Position) -> Self {
        self.message.consistency.push(v1::Observation { query: Some(query), position: Some(position) });
        self
    }

    /// Names the save: another one with the same key and content returns the first one's result. At most 128
    /// bytes. Without one the client makes a random key, good for its own repeats.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.message.idempotency_key = key.into();
        self
    }

    /// How long to try, in place of [`Options::request_timeout`](crate::Options::request_timeout).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl From<v1::SaveEventsRequest> for SaveRequest {
    fn from(message: v1::SaveEventsRequest) -> Self {
        Self { message, timeout: None }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
