//! Tests of the definition of a boundary.

use tidemark_proto::{record, v1};
use tidemark_state_machine::boundary::{
    DESCRIPTION_BYTES_MAX, IDEMPOTENCY_RETENTION_MS_MAX, TIME_BUCKET_MS_MAX,
};

use super::{assert_invalid, assert_not_supported};
use crate::api::validate::boundary_definition;

fn definition(name: &str) -> v1::BoundaryDefinition {
    v1::BoundaryDefinition { name: name.to_owned(), ..Default::default() }
}

#[test]
fn a_full_definition_goes_into_the_command_and_leaves_the_stamp_open() {
    let definition = v1::BoundaryDefinition {
        name: "Flights_2".to_owned(),
        description: "all flights".to_owned(),
        placement: Some(v1::Placement { group: 0 }),
        time_bucket_ms: 1_000,
        retention: None,
        idempotency_retention_ms: 60_000,
    };
    let expected = record::CreateBoundary {
        time_ms: 0,
        event_id: 0,
        name: "Flights_2".to_owned(),
        description: "all flights".to_owned(),
        time_bucket_ms: 1_000,
        placement_group: 0,
        idempotency_retention_ms: 60_000,
    };
    assert_eq!(boundary_definition(&definition), Ok(expected));
}

#[test]
fn names_are_identifiers_of_at_most_63_bytes() {
    let longest = "a".repeat(63);
    for name in ["a", "Z", "_", "a1", "__x9", "A_B_c", longest.as_str()] {
        assert_eq!(boundary_definition(&definition(name)).map(|create| create.name), Ok(name.to_owned()));
    }
    assert_invalid(boundary_definition(&definition("")), "definition.name", "must not be empty");
    let too_long = "a".repeat(64);
    for name in ["1a", "a-b", "a.b", "a b", "é", "aé", "a\0", "a\n", "/", too_long.as_str()] {
        assert_invalid(boundary_definition(&definition(name)), "definition.name", "63 letters");
    }
}

#[test]
fn sizes_and_times_are_allowed_to_their_bounds_and_no_further() {
    let with = |description: usize, time_bucket_ms, idempotency_retention_ms| {
        boundary_definition(&v1::BoundaryDefinition {
            description: "d".repeat(description),
            time_bucket_ms,
            idempotency_retention_ms,
            ..definition("flights")
        })
    };
    assert!(with(DESCRIPTION_BYTES_MAX, TIME_BUCKET_MS_MAX, IDEMPOTENCY_RETENTION_MS_MAX).is_ok());
    assert_invalid(with(DESCRIPTION_BYTES_MAX + 1, 0, 0), "definition.description", "4097 bytes");
    assert_invalid(with(0, TIME_BUCKET_MS_MAX + 1, 0), "definition.time_bucket_ms", "a year");
    assert_invalid(with(0, u64::MAX, 0), "definition.time_bucket_ms", "a year");
    let too_long = with(0, 0, IDEMPOTENCY_RETENTION_MS_MAX + 1);
    assert_invalid(too_long, "definition.idempotency_retention_ms", "a year");
}

#[test]
fn only_the_first_group_can_hold_a_boundary() {
    let placed =
        v1::BoundaryDefinition { placement: Some(v1::Placement { group: 1 }), ..definition("flights") };
    assert_invalid(boundary_definition(&placed), "definition.placement.group", "no group 1");
}

#[test]
fn retention_is_not_supported() {
    let limited = v1::BoundaryDefinition {
        retention: Some(v1::Retention { max_events: Some(10), ..Default::default() }),
        ..definition("flights")
    };
    assert_not_supported(boundary_definition(&limited), "definition.retention");
}
