//! What an idempotency key and its request are remembered by.
//!
//! The digest of a request is BLAKE3 over this encoding, which is part of the replicated state and therefore fixed:
//!
//! ```text
//! request     = version events consistency         version = one byte, 1
//! events      = count event*                       consistency = count observation*
//! event       = event_id event_type data metadata content_type attributes delivery ttl
//! attributes  = count (key value)*                 value = 0 | 1 text | 2 integer
//! delivery    = 0 | 1 deliver_at_ms | 2 delay_ms   ttl = 0 | 1 ttl_ms
//! observation = query position                     query = 0 | 1 count criterion*
//! criterion   = count tag*                         tag = key operator value
//! position    = 0 | 1 commit_position prepare_position
//! ```
//!
//! Counts, integers and lengths are little-endian `u64` (or `i64`), texts and byte strings have their length in front,
//! and choices are one byte. So no two requests have the same encoding. What the client sent goes in, not what the
//! server made of it: an `event_id` that was left empty stays empty, or no retry would ever have the same digest.

use blake3::Hasher;
use bytes::Bytes;
use tidemark_proto::v1;

/// Length of the hash of an idempotency key in bytes.
const KEY_HASH_BYTES: usize = 16;

/// Changes when the encoding does.
const VERSION: u8 = 1;

/// The first 16 bytes of BLAKE3 of an idempotency key.
pub fn idempotency_key_hash(key: &str) -> Bytes {
    Bytes::copy_from_slice(&blake3::hash(key.as_bytes()).as_bytes()[..KEY_HASH_BYTES])
}

/// BLAKE3 over the events and observations of a request.
pub fn request_digest(events: &[v1::EventToSave], consistency: &[v1::Observation]) -> Bytes {
    let mut encoder = Encoder(Hasher::new());
    encoder.choice(VERSION);
    encoder.count(events.len());
    events.iter().for_each(|event| encoder.event(event));
    encoder.count(consistency.len());
    consistency.iter().for_each(|observation| encoder.observation(observation));
    Bytes::copy_from_slice(encoder.0.finalize().as_bytes())
}

struct Encoder(Hasher);

impl Encoder {
    fn event(&mut self, event: &v1::EventToSave) {
        self.bytes(event.event_id.as_bytes());
        self.bytes(event.event_type.as_bytes());
        self.bytes(&event.data);
        self.bytes(&event.metadata);
        self.bytes(event.content_type.as_bytes());
        self.count(event.attributes.len());
        for attribute in &event.attributes {
            self.bytes(attribute.key.as_bytes());
            match &attribute.value {
                None => self.choice(0),
                Some(v1::attribute::Value::Text(text)) => {
                    self.choice(1);
                    self.bytes(text.as_bytes());
                }
                Some(v1::attribute::Value::Integer(integer)) => {
                    self.choice(2);
                    self.number(integer.to_le_bytes());
                }
            }
        }
        match event.delivery {
            None => self.choice(0),
            Some(v1::event_to_save::Delivery::DeliverAtMs(deliver_at_ms)) => {
                self.choice(1);
                self.number(deliver_at_ms.to_le_bytes());
            }
            Some(v1::event_to_save::Delivery::DelayMs(delay_ms)) => {
                self.choice(2);
                self.number(delay_ms.to_le_bytes());
            }
        }
        match event.ttl_ms {
            None => self.choice(0),
            Some(ttl_ms) => {
                self.choice(1);
                self.number(ttl_ms.to_le_bytes());
            }
        }
    }

    fn observation(&mut self, observation: &v1::Observation) {
        match &observation.query {
            None => self.choice(0),
            Some(query) => {
                self.choice(1);
                self.count(query.criteria.len());
                query.criteria.iter().for_each(|criterion| self.criterion(criterion));
            }
        }
        match observation.position {
            None => self.choice(0),
            Some(position) => {
                self.choice(1);
                self.number(position.commit_position.to_le_bytes());
                self.number(position.prepare_position.to_le_bytes());
            }
        }
    }

    fn criterion(&mut self, criterion: &v1::Criterion) {
        self.count(criterion.tags.len());
        for tag in &criterion.tags {
            self.bytes(tag.key.as_bytes());
            self.bytes(tag.operator.as_bytes());
            self.bytes(tag.value.as_bytes());
        }
    }

    fn choice(&mut self, choice: u8) {
        self.0.update(&[choice]);
    }

    fn count(&mut self, count: usize) {
        self.number((count as u64).to_le_bytes());
    }

    fn number(&mut self, number: [u8; 8]) {
        self.0.update(&number);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.0.update(bytes);
    }
}
