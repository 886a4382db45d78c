//! Tests of saves.

use bytes::Bytes;
use proptest::prelude::*;
use prost::Message;
use tidemark_proto::{ApiError, record, v1};
use tidemark_storage::BoundaryHash;

use super::{
    assert_invalid, assert_not_supported, assert_over_limit, event, integer, request, text, try_save,
};
use crate::api::{limits::Limits, validate::save};

fn with_data(data: &'static [u8]) -> v1::EventToSave {
    v1::EventToSave { data: Bytes::from_static(data), ..event() }
}

fn with_attributes(attributes: Vec<v1::Attribute>) -> v1::EventToSave {
    v1::EventToSave { attributes, ..event() }
}

/// Saves `event` as the third of four, so that the path in an error has to name the right one.
fn third(event: v1::EventToSave) -> Result<(), ApiError> {
    try_save(request(vec![super::event(), super::event(), event, super::event()])).map(drop)
}

#[track_caller]
fn stored(event: v1::EventToSave) -> record::StoredEvent {
    let valid = try_save(request(vec![event])).expect("it is valid");
    record::StoredEvent::decode(valid.request.events[0].stored.clone()).expect("it was just encoded")
}

#[test]
fn a_save_carries_its_events_in_order_and_knows_its_size() {
    let first = v1::EventToSave {
        event_id: "one".to_owned(),
        metadata: Bytes::from_static(br#"{"__by":"me"}"#),
        attributes: vec![text("row", "4"), integer("price", -7)],
        ..event()
    };
    let second = v1::EventToSave {
        content_type: "application/octet-stream".to_owned(),
        data: Bytes::from_static(&[0xff, 0]),
        ..event()
    };
    let request = v1::SaveEventsRequest {
        idempotency_key: "order-17".to_owned(),
        ..request(vec![first, second, event()])
    };
    let mut made = 0;
    let valid = save(request, &Limits::DEFAULT, || {
        made += 1;
        format!("made-{made}")
    })
    .expect("it is valid");

    assert_eq!(valid.boundary, "flights");
    assert_eq!(valid.events, 3);
    assert_eq!(valid.bytes, valid.request.encoded_len());
    assert_eq!(valid.request.boundary_hash, BoundaryHash::of("flights").0);
    assert_eq!(valid.request.incarnation, 0);
    let idempotency = valid.request.idempotency.expect("there was a key");
    assert_eq!((idempotency.key_hash.len(), idempotency.request_digest.len()), (16, 32));

    let expected = |event_id: &str, write_index| record::StoredEvent {
        boundary: "flights".to_owned(),
        event_id: event_id.to_owned(),
        event_type: "SeatReserved".to_owned(),
        data: Bytes::from_static(br#"{"seat":"4A"}"#),
        write_index,
        ..Default::default()
    };
    let expected = [
        record::StoredEvent {
            metadata: Bytes::from_static(br#"{"__by":"me"}"#),
            attributes: vec![
                record::Attribute {
                    key: "row".to_owned(),
                    value: Some(record::attribute::Value::Text("4".to_owned())),
                },
                record::Attribute {
                    key: "price".to_owned(),
                    value: Some(record::attribute::Value::Integer(-7)),
                },
            ],
            ..expected("one", 0)
        },
        record::StoredEvent {
            data: Bytes::from_static(&[0xff, 0]),
            content_type: "application/octet-stream".to_owned(),
            ..expected("made-1", 1)
        },
        expected("made-2", 2),
    ];
    let appended: Vec<record::EventToAppend> = expected
        .iter()
        .map(|event| record::EventToAppend { stored: event.encode_to_vec().into(), ..Default::default() })
        .collect();
    assert_eq!(valid.request.events, appended);
}

#[test]
fn boundary_and_events_are_required() {
    let unnamed = v1::SaveEventsRequest { boundary: String::new(), ..request(vec![event()]) };
    assert_invalid(try_save(unnamed), "boundary", "must not be empty");
    assert_invalid(try_save(request(vec![])), "events", "at least one");
}

#[test]
fn boundaries_that_cannot_exist_are_left_to_be_unknown_unless_they_are_too_long() {
    let named = |boundary: String| try_save(v1::SaveEventsRequest { boundary, ..request(vec![event()]) });
    assert!(named("no-such-name".to_owned()).is_ok());
    assert!(named("b".repeat(128)).is_ok());
    assert_invalid(named("b".repeat(129)), "boundary", "max_key_bytes");
    assert_invalid(named("b\0".to_owned()), "boundary", "NUL");
}

#[test]
fn short_texts_are_allowed_to_their_limit_without_nul() {
    type Label = fn(&mut v1::EventToSave) -> &mut String;
    let labels: [(&str, Label); 3] = [
        ("event_id", |event| &mut event.event_id),
        ("event_type", |event| &mut event.event_type),
        ("content_type", |event| &mut event.content_type),
    ];
    for (name, label) in labels {
        let attempt = |value: &str| {
            let mut event = event();
            *label(&mut event) = value.to_owned();
            third(event)
        };
        let field = format!("events[2].{name}");
        assert_eq!(attempt(&"x".repeat(128)), Ok(()), "{name}");
        assert_invalid(attempt(&"x".repeat(129)), &field, "has 129 bytes, and max_key_bytes is 128");
        // 43 characters, 129 bytes.
        assert_invalid(attempt(&"日".repeat(43)), &field, "129 bytes");
        assert_invalid(attempt("a\0b"), &field, "NUL");
    }
}

#[test]
fn an_event_has_a_type() {
    assert_invalid(
        third(v1::EventToSave { event_type: String::new(), ..event() }),
        "events[2].event_type",
        "empty",
    );
}

#[test]
fn idempotency_keys_are_allowed_to_their_limit_without_nul() {
    let keyed = |key: &str| {
        try_save(v1::SaveEventsRequest { idempotency_key: key.to_owned(), ..request(vec![event()]) })
    };
    assert!(keyed("k").is_ok());
    assert!(keyed(&"k".repeat(128)).is_ok());
    assert_invalid(keyed(&"k".repeat(129)), "idempotency_key", "max_key_bytes");
    assert_invalid(keyed("k\0"), "idempotency_key", "NUL");
}

#[test]
fn data_is_a_json_object_unless_another_type_is_named() {
    for content_type in [
        "",
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
        "application/json;charset=utf-8",
        " application/json ",
    ] {
        let typed = |data| v1::EventToSave { content_type: content_type.to_owned(), ..with_data(data) };
        assert_eq!(stored(typed(b" {\"a\" : 1.0}\n")).content_type, "", "{content_type:?}");
        for data in [&b""[..], b"[]", b"1", b"{", b"{}{}", b"\xff"] {
            assert_invalid(third(typed(data)), "events[2].data", "JSON");
        }
    }
    for content_type in
        ["text/plain", "application/octet-stream", "application/json5", "application/x+json", ";", " "]
    {
        let typed = |data| v1::EventToSave { content_type: content_type.to_owned(), ..with_data(data) };
        for data in [&b""[..], b"[]", b"{\"__a\":1}", b"\xff\0"] {
            let stored = stored(typed(data));
            assert_eq!((stored.data, stored.content_type.as_str()), (Bytes::from_static(data), content_type));
        }
    }
}

#[test]
fn data_says_what_is_wrong_and_where() {
    for (data, why) in [
        (&br#"{"__eventId":1}"#[..], r#"root key "__eventId""#),
        (br#"{"a":1,"\u005f_x":1}"#, r#"root key "__x""#),
        (br#"{"a":"\ud800"}"#, "lone surrogate"),
        (br#"{"a":"\ud800x"}"#, "lone surrogate"),
        (br#"{"a":1e99999999999999999999}"#, "exponent"),
        (br#"{"a":1} x"#, "at byte 8"),
    ] {
        assert_invalid(third(with_data(data)), "events[2].data", why);
    }
    assert_eq!(third(with_data(br#"{"a":1e1000000000,"a":{"__b":"\ud83d\ude00"}}"#)), Ok(()));
}

#[test]
fn metadata_is_a_json_object_or_nothing() {
    let with = |content_type: &str, metadata: &'static [u8]| v1::EventToSave {
        content_type: content_type.to_owned(),
        metadata: Bytes::from_static(metadata),
        ..event()
    };
    for content_type in ["", "text/plain"] {
        for metadata in [&b""[..], b"{}", br#"{"__by":"me","seat":1}"#] {
            assert_eq!(stored(with(content_type, metadata)).metadata, metadata);
        }
        for metadata in [&b"null"[..], b" ", b"[]", b"{", b"{}x", b"{\xff}"] {
            assert_invalid(third(with(content_type, metadata)), "events[2].metadata", "JSON");
        }
    }
}

#[test]
fn attributes_have_keys_that_are_unique_and_not_reserved() {
    let attempt = |key: &str| third(with_attributes(vec![integer("row", 4), text(key, "x")]));
    for key in ["a", "_a", "é", " ", "a.b", "Row", &"k".repeat(128)] {
        assert_eq!(attempt(key), Ok(()), "{key:?}");
    }
    let field = "events[2].attributes[1].key";
    assert_invalid(attempt(""), field, "empty");
    assert_invalid(attempt(&"k".repeat(129)), field, "max_key_bytes");
    assert_invalid(attempt("a\0"), field, "NUL");
    assert_invalid(attempt("__"), field, "reserved");
    assert_invalid(attempt("__eventType"), field, "reserved");
    assert_invalid(attempt("row"), field, r#""row" is there twice"#);
}

#[test]
fn attributes_and_data_share_no_name() {
    let clash = with_attributes(vec![text("row", "4"), text("seat", "4A")]);
    assert_invalid(third(clash.clone()), "events[2].data", r#"root key "seat", which is also the name"#);
    let escaped = v1::EventToSave { data: Bytes::from_static(br#"{"s\u0065at":1}"#), ..clash.clone() };
    assert_invalid(third(escaped), "events[2].data", r#""seat""#);
    let nested = v1::EventToSave { data: Bytes::from_static(br#"{"a":{"seat":1}}"#), ..clash.clone() };
    assert_eq!(third(nested), Ok(()));
    let opaque = v1::EventToSave { content_type: "text/plain".to_owned(), ..clash };
    assert_eq!(third(opaque), Ok(()));
}

#[test]
fn many_attributes_and_many_root_keys_are_checked_in_linear_time() {
    // Comparing each with each would take some 10^9 steps.
    let keys: Vec<String> = (0..40_000).map(|key| format!("{key}")).collect();
    let fields: Vec<String> = keys.iter().map(|key| format!("\"k{key}\":1")).collect();
    let crowded = v1::EventToSave {
        data: format!("{{{}}}", fields.join(",")).into(),
        attributes: keys.iter().map(|key| integer(key, 1)).collect(),
        ..event()
    };
    assert_eq!(third(crowded), Ok(()));
}

#[test]
fn attributes_have_values() {
    let none = v1::Attribute { key: "row".to_owned(), value: None };
    assert_invalid(third(with_attributes(vec![none])), "events[2].attributes[0].value", "text or an integer");
    let attempt = |value: &str| third(with_attributes(vec![integer("n", i64::MIN), text("row", value)]));
    let field = "events[2].attributes[1].text";
    assert_eq!(attempt(""), Ok(()));
    assert_eq!(attempt(&"v".repeat(64 << 10)), Ok(()));
    assert_invalid(attempt(&"v".repeat((64 << 10) + 1)), field, "max_tag_value_bytes is 65536");
    assert_invalid(attempt("a\0"), field, "NUL");
}

#[test]
fn delays_and_expiries_are_not_supported_and_a_ttl_of_0_is_wrong() {
    use v1::event_to_save::Delivery;
    let timed = |delivery, ttl_ms| third(v1::EventToSave { delivery, ttl_ms, ..event() });
    assert_not_supported(timed(Some(Delivery::DeliverAtMs(5)), None), "events[2].deliver_at_ms");
    assert_not_supported(timed(Some(Delivery::DelayMs(0)), None), "events[2].delay_ms");
    assert_not_supported(timed(None, Some(1)), "events[2].ttl_ms");
    assert_invalid(timed(None, Some(0)), "events[2].ttl_ms", "must not be 0");
    assert_invalid(timed(Some(Delivery::DelayMs(5)), Some(0)), "events[2].ttl_ms", "must not be 0");
}

#[test]
fn consistency_is_not_supported() {
    let conditional =
        v1::SaveEventsRequest { consistency: vec![v1::Observation::default()], ..request(vec![event()]) };
    assert_not_supported(try_save(conditional), "consistency");
}

#[test]
fn an_event_counts_with_its_data_metadata_and_attributes() {
    let sized = |data: usize| v1::EventToSave {
        content_type: "application/octet-stream".to_owned(),
        data: vec![1; data].into(),
        metadata: Bytes::from_static(b"{}"),
        // Two bytes of framing around 3 + 2 + 2 bytes.
        attributes: vec![text("a", "bc")],
        ..event()
    };
    let most = (1 << 20) - 2 - 9;
    assert_eq!(third(sized(most)), Ok(()));
    assert_over_limit(third(sized(most + 1)), "max_event_bytes", 1 << 20, (1 << 20) + 1);
}

#[test]
fn a_save_has_at_most_as_many_events_as_the_limit_says() {
    assert_eq!(try_save(request(vec![event(); 4_096])).map(|valid| valid.events), Ok(4_096));
    assert_over_limit(try_save(request(vec![event(); 4_097])), "max_events_per_save", 4_096, 4_097);
}

#[test]
fn a_save_counts_as_it_is_encoded() {
    let valid = try_save(request(vec![event(), event()])).expect("it is valid");
    let bytes = valid.bytes as u64;
    let attempt = |max_save_bytes| {
        let limits = Limits { max_save_bytes, ..Limits::DEFAULT };
        save(request(vec![event(), event()]), &limits, || "made".to_owned()).map(|valid| valid.bytes as u64)
    };
    assert_eq!(attempt(bytes), Ok(bytes));
    assert_over_limit(attempt(bytes - 1), "max_save_bytes", bytes - 1, bytes);

    let large = v1::EventToSave {
        content_type: "application/octet-stream".to_owned(),
        data: vec![1; 1 << 20].into(),
        ..event()
    };
    assert!(try_save(request(vec![large.clone(); 7])).is_ok());
    let error = try_save(request(vec![large; 8])).expect_err("8 MiB and what frames them");
    assert!(matches!(error, ApiError::LimitExceeded { limit, .. } if limit == "max_save_bytes"));
}

fn name() -> impl Strategy<Value = String> {
    "[^\0]{0,40}".prop_filter("reserved", |name| !name.starts_with("__") && name.len() <= 128)
}

fn scalar() -> impl Strategy<Value = serde_json::Value> {
    prop_oneof![
        Just(serde_json::Value::Null),
        any::<i64>().prop_map(serde_json::Value::from),
        any::<f64>().prop_map(serde_json::Value::from),
        any::<String>().prop_map(serde_json::Value::from),
        prop::collection::vec(any::<String>(), 0..4).prop_map(serde_json::Value::from),
    ]
}

fn object() -> impl Strategy<Value = serde_json::Value> {
    prop::collection::btree_map(name(), scalar(), 0..6).prop_map(|fields| fields.into_iter().collect())
}

fn arbitrary_event() -> impl Strategy<Value = v1::EventToSave> {
    use v1::event_to_save::Delivery;
    let value = prop_oneof![
        Just(None),
        any::<String>().prop_map(|text| Some(v1::attribute::Value::Text(text))),
        any::<i64>().prop_map(|integer| Some(v1::attribute::Value::Integer(integer))),
    ];
    let attribute = (any::<String>(), value).prop_map(|(key, value)| v1::Attribute { key, value });
    let delivery = prop_oneof![
        6 => Just(None),
        1 => any::<i64>().prop_map(|at| Some(Delivery::DeliverAtMs(at))),
        1 => any::<u64>().prop_map(|delay| Some(Delivery::DelayMs(delay))),
    ];
    (
        (any::<String>(), any::<String>(), any::<String>()),
        prop::collection::vec(any::<u8>(), 0..40),
        prop::collection::vec(any::<u8>(), 0..10),
        prop::collection::vec(attribute, 0..4),
        delivery,
        prop_oneof![6 => Just(None), 1 => any::<u64>().prop_map(Some)],
    )
        .prop_map(
            |((event_id, event_type, content_type), data, metadata, attributes, delivery, ttl_ms)| {
                let (data, metadata) = (data.into(), metadata.into());
                v1::EventToSave {
                    event_id,
                    event_type,
                    data,
                    metadata,
                    content_type,
                    attributes,
                    ttl_ms,
                    delivery,
                }
            },
        )
}

proptest! {
    #[test]
    fn every_serialised_object_is_stored_byte_for_byte(data in object(), metadata in object()) {
        let (data, metadata) = (Bytes::from(format!("{data:#}")), Bytes::from(metadata.to_string()));
        let stored = stored(v1::EventToSave { data: data.clone(), metadata: metadata.clone(), ..event() });
        prop_assert_eq!((stored.data, stored.metadata), (data, metadata));
    }

    #[test]
    fn arbitrary_requests_are_answered_without_a_panic(
        boundary in any::<String>(),
        events in prop::collection::vec(arbitrary_event(), 0..4),
        idempotency_key in any::<String>(),
    ) {
        let count = events.len();
        let request = v1::SaveEventsRequest { boundary, events, consistency: vec![], idempotency_key };
        if let Ok(valid) = try_save(request) {
            prop_assert_eq!((valid.events, valid.bytes), (count, valid.request.encoded_len()));
        }
    }

    #[test]
    fn mutated_payloads_are_stored_as_they_are_or_refused(
        data in object(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut data = data.to_string().into_bytes();
        let at = at.index(data.len());
        data[at] = byte;
        match try_save(request(vec![v1::EventToSave { data: data.clone().into(), ..event() }])) {
            Ok(valid) => {
                let stored = record::StoredEvent::decode(valid.request.events[0].stored.clone());
                prop_assert_eq!(stored.expect("it was just encoded").data, data);
            }
            Err(error) => prop_assert!(
                matches!(&error, ApiError::InvalidRequest { field, .. } if field == "events[0].data"),
                "{}", error
            ),
        }
    }
}
