//! Every limit that a request can exceed has a case here: at the limit it passes, one more and the error names it.

use bytes::Bytes;
use prost::Message;
use tidemark_proto::{ApiError, v1};

use super::{event, request, text};
use crate::api::{
    limits::Limits,
    validate::{get_events, save},
};

/// What one case does with a limit of `maximum` and a request of `size`.
type Attempt = fn(maximum: usize, size: usize) -> Result<(), ApiError>;

/// Limits that these checks do not apply, each with the reason.
const APPLIED_ELSEWHERE: [(&str, &str); 12] = [
    ("max_entry_bytes", "the sequencer fills entries; the configuration makes any valid save fit one"),
    ("queue_requests", "a state of the queue and not of the request"),
    ("queue_bytes", "a state of the queue and not of the request"),
    ("entry_requests", "the sequencer fills entries"),
    ("entry_events", "the sequencer fills entries"),
    ("entry_bytes", "the sequencer fills entries"),
    ("peer_append_bytes", "between nodes"),
    ("max_page_bytes", "the reader fills pages"),
    ("read_scan_keys", "a budget of the reader"),
    ("read_scan_ms", "a budget of the reader"),
    ("check_scan_keys", "a budget of the history check"),
    ("check_scan_ms", "a budget of the history check"),
];

/// Limits on queries, which no request has yet.
const OF_QUERIES: [&str; 3] = ["max_observations", "max_criteria", "max_tags"];

const CASES: [(&str, Attempt); 7] = [
    ("max_event_bytes", event_bytes),
    ("max_save_bytes", save_bytes),
    ("max_events_per_save", events_per_save),
    ("max_count", count),
    ("max_json_depth", json_depth),
    ("max_key_bytes", key_bytes),
    ("max_tag_value_bytes", tag_value_bytes),
];

fn attempt(limits: Limits, events: Vec<v1::EventToSave>) -> Result<(), ApiError> {
    save(request(events), &limits, || "made".to_owned()).map(drop)
}

fn opaque(data: usize) -> v1::EventToSave {
    v1::EventToSave {
        content_type: "application/octet-stream".to_owned(),
        data: Bytes::from(vec![0; data]),
        ..event()
    }
}

fn event_bytes(maximum: usize, size: usize) -> Result<(), ApiError> {
    let limits = Limits { max_event_bytes: maximum as u64, ..Limits::DEFAULT };
    let metadata = Bytes::from_static(b"{}");
    let attributes = vec![text("a", "b")];
    // Tag, length and the attribute's six bytes.
    let beside = metadata.len() + 2 + attributes[0].encoded_len();
    attempt(limits, vec![v1::EventToSave { metadata, attributes, ..opaque(size - beside) }])
}

fn save_bytes(maximum: usize, size: usize) -> Result<(), ApiError> {
    let limits = Limits { max_save_bytes: maximum as u64, ..Limits::DEFAULT };
    let bytes = |data| {
        let valid = save(request(vec![opaque(data)]), &Limits::DEFAULT, || "made".to_owned());
        valid.expect("it is within the default limits").bytes
    };
    let data = (0..size).find(|data| bytes(*data) == size).expect("a payload makes a save of this size");
    attempt(limits, vec![opaque(data)])
}

fn events_per_save(maximum: usize, size: usize) -> Result<(), ApiError> {
    attempt(Limits { max_events_per_save: maximum, ..Limits::DEFAULT }, vec![event(); size])
}

fn count(maximum: usize, size: usize) -> Result<(), ApiError> {
    let as_count = |number: usize| u32::try_from(number).expect("the cases are small");
    let limits = Limits { max_count: as_count(maximum), ..Limits::DEFAULT };
    let request =
        v1::GetEventsRequest { boundary: "flights".to_owned(), count: as_count(size), ..Default::default() };
    get_events(&request, &limits).map(drop)
}

fn json_depth(maximum: usize, size: usize) -> Result<(), ApiError> {
    let limits = Limits { max_json_depth: maximum, ..Limits::DEFAULT };
    let data = format!("{}1{}", "{\"a\":".repeat(size), "}".repeat(size));
    attempt(limits, vec![v1::EventToSave { data: data.into(), ..event() }])
}

fn key_bytes(maximum: usize, size: usize) -> Result<(), ApiError> {
    let limits = Limits { max_key_bytes: maximum, ..Limits::DEFAULT };
    attempt(limits, vec![v1::EventToSave { attributes: vec![text(&"k".repeat(size), "")], ..event() }])
}

fn tag_value_bytes(maximum: usize, size: usize) -> Result<(), ApiError> {
    let limits = Limits { max_tag_value_bytes: maximum as u64, ..Limits::DEFAULT };
    attempt(limits, vec![v1::EventToSave { attributes: vec![text("a", &"v".repeat(size))], ..event() }])
}

#[test]
fn requests_pass_at_every_limit_and_are_refused_above_it_by_its_name() {
    for (limit, attempt) in CASES {
        for maximum in [100, 127] {
            assert_eq!(attempt(maximum, maximum), Ok(()), "{limit}");
            let error = attempt(maximum, maximum + 1).expect_err(limit);
            assert!(error.to_string().contains(limit), "{error} does not name {limit}");
            assert!(error.to_string().contains(&maximum.to_string()), "{error} does not tell {limit}");
        }
    }
}

#[test]
fn every_limit_has_a_case_or_a_reason() {
    let listed = CASES.iter().map(|(name, _)| *name);
    let listed = listed.chain(OF_QUERIES).chain(APPLIED_ELSEWHERE.iter().map(|(name, _)| *name));
    let mut listed: Vec<&str> = listed.collect();
    listed.sort_unstable();

    // The derived debug form names every field.
    let shown = format!("{:#?}", Limits::DEFAULT);
    let mut fields: Vec<&str> =
        shown.lines().filter_map(|line| line.trim().split_once(": ")).map(|(name, _)| name).collect();
    fields.sort_unstable();
    assert_eq!(listed, fields);
}
