//! Tests of what an idempotency key and its request are remembered by.

use bytes::Bytes;
use tidemark_proto::v1;

use super::{event, integer, request, text, try_save};
use crate::api::validate::{idempotency_key_hash, request_digest};

fn digest(events: &[v1::EventToSave]) -> Bytes {
    request_digest(events, &[])
}

fn observation(key: &str, value: &str, position: Option<v1::Position>) -> v1::Observation {
    let tag = v1::Tag { key: key.to_owned(), operator: String::new(), value: value.to_owned() };
    let query = v1::Query { criteria: vec![v1::Criterion { tags: vec![tag] }] };
    v1::Observation { query: Some(query), position }
}

#[test]
fn the_encoding_of_the_digest_is_fixed() {
    // A request of one event, written out by hand. Rows of the replicated state hold such digests.
    let mut expected = vec![1];
    expected.extend_from_slice(&1u64.to_le_bytes());
    for field in ["", "SeatReserved", r#"{"seat":"4A"}"#, "", ""] {
        expected.extend_from_slice(&(field.len() as u64).to_le_bytes());
        expected.extend_from_slice(field.as_bytes());
    }
    expected.extend_from_slice(&0u64.to_le_bytes());
    expected.extend_from_slice(&[0, 0]);
    expected.extend_from_slice(&0u64.to_le_bytes());
    assert_eq!(digest(&[event()]), blake3::hash(&expected).as_bytes()[..]);
}

#[test]
fn the_key_is_remembered_by_the_first_16_bytes_of_its_hash() {
    assert_eq!(idempotency_key_hash("order-17"), blake3::hash(b"order-17").as_bytes()[..16]);
}

#[test]
fn a_retry_has_the_digest_of_the_first_attempt_whatever_ids_were_made() {
    let keyed = || v1::SaveEventsRequest { idempotency_key: "order-17".to_owned(), ..request(vec![event()]) };
    let first = crate::api::validate::save(keyed(), &Default::default(), || "first".to_owned());
    let retry = crate::api::validate::save(keyed(), &Default::default(), || "retry".to_owned());
    let (first, retry) = (first.expect("it is valid").request, retry.expect("it is valid").request);
    assert_ne!(first.events, retry.events);
    assert!(first.idempotency.is_some());
    assert_eq!(first.idempotency, retry.idempotency);
}

#[test]
fn only_a_save_with_a_key_is_remembered() {
    let unkeyed = try_save(request(vec![event()])).expect("it is valid");
    assert_eq!(unkeyed.request.idempotency, None);
}

#[test]
fn every_field_changes_the_digest() {
    let changes: Vec<v1::EventToSave> = vec![
        event(),
        v1::EventToSave { event_id: "a".to_owned(), ..event() },
        v1::EventToSave { event_type: "SeatFreed".to_owned(), ..event() },
        v1::EventToSave { data: Bytes::from_static(br#"{"seat": "4A"}"#), ..event() },
        v1::EventToSave { metadata: Bytes::from_static(b"{}"), ..event() },
        v1::EventToSave { content_type: "text/plain".to_owned(), ..event() },
        v1::EventToSave { attributes: vec![text("a", "1")], ..event() },
        v1::EventToSave { attributes: vec![text("a", "2")], ..event() },
        v1::EventToSave { attributes: vec![text("b", "1")], ..event() },
        v1::EventToSave { attributes: vec![integer("a", 1)], ..event() },
        v1::EventToSave { attributes: vec![integer("a", -1)], ..event() },
        v1::EventToSave { attributes: vec![v1::Attribute { key: "a".to_owned(), value: None }], ..event() },
        v1::EventToSave { ttl_ms: Some(1), ..event() },
        v1::EventToSave { ttl_ms: Some(2), ..event() },
        v1::EventToSave { delivery: Some(v1::event_to_save::Delivery::DelayMs(1)), ..event() },
        v1::EventToSave { delivery: Some(v1::event_to_save::Delivery::DeliverAtMs(1)), ..event() },
    ];
    let mut digests: Vec<Bytes> = changes.iter().map(|event| digest(std::slice::from_ref(event))).collect();
    digests.push(digest(&[]));
    digests.push(digest(&[event(), event()]));
    distinct(digests);
}

#[test]
fn every_part_of_an_observation_changes_the_digest() {
    let at = |commit_position, prepare_position| Some(v1::Position { commit_position, prepare_position });
    let lists = [
        vec![],
        vec![v1::Observation::default()],
        vec![observation("a", "b", None)],
        vec![observation("ab", "", None)],
        vec![observation("a", "b", at(0, 0))],
        vec![observation("a", "b", at(0, 1))],
        vec![observation("a", "b", at(1, 0))],
        vec![observation("a", "b", at(0, 0)), observation("a", "b", at(0, 0))],
        vec![v1::Observation { query: Some(v1::Query::default()), position: None }],
    ];
    distinct(lists.iter().map(|consistency| request_digest(&[event()], consistency)).collect());
}

#[test]
fn text_cannot_wander_from_one_field_to_the_next() {
    let with = |event_id: &str, event_type: &str, metadata: &'static str| v1::EventToSave {
        event_id: event_id.to_owned(),
        event_type: event_type.to_owned(),
        metadata: Bytes::from_static(metadata.as_bytes()),
        ..Default::default()
    };
    distinct(vec![
        digest(&[with("ab", "c", "")]),
        digest(&[with("a", "bc", "")]),
        digest(&[with("", "abc", "")]),
        digest(&[with("", "ab", "c")]),
        digest(&[v1::EventToSave { attributes: vec![text("a", "b"), text("c", "d")], ..event() }]),
        digest(&[v1::EventToSave { attributes: vec![text("a", "bc"), text("", "d")], ..event() }]),
    ]);
}

#[track_caller]
fn distinct(mut digests: Vec<Bytes>) {
    let count = digests.len();
    digests.sort();
    digests.dedup();
    assert_eq!(digests.len(), count, "two requests have the same digest");
}
