//! Commands to log bytes and back, and what is refused on the way.

use std::num::NonZeroU64;

use bytes::Bytes;
use prost::Message;
use tidemark_proto::record;
use tidemark_state_machine::{
    Command, Fault,
    command::{
        AppendBatch, AppendRequest, BoundaryDefinition, CreateBoundary, Digest, Due, EventToAppend,
        FEATURE_LEVEL, Idempotency, TIME_MS_MAX, Tick,
    },
    fault::Malformed,
};
use tidemark_storage::{BoundaryHash, EventId};

use crate::fixture::stored;

fn id(number: u64) -> EventId {
    EventId::new(number).expect("in range")
}

fn batch() -> AppendBatch {
    let event = |due, ttl_ms| EventToAppend { stored: stored("a", 0), due, ttl_ms };
    AppendBatch {
        time_ms: TIME_MS_MAX,
        first_event_id: id(7),
        requests: vec![
            AppendRequest {
                boundary: BoundaryHash(u64::MAX),
                incarnation: id(3),
                events: vec![event(Due::Now, None), event(Due::After { delay_ms: 0 }, NonZeroU64::new(1))],
                idempotency: Some(Idempotency { key_hash: [1; 16], request_digest: [2; 32] }),
            },
            AppendRequest {
                boundary: BoundaryHash(0),
                incarnation: EventId::ZERO,
                events: vec![event(Due::At { time_ms: 0 }, None)],
                idempotency: None,
            },
        ],
    }
}

fn commands() -> Vec<Command> {
    let definition = BoundaryDefinition {
        name: "orders".into(),
        description: "d".into(),
        time_bucket_ms: 5,
        placement_group: 6,
        idempotency_retention_ms: 7,
    };
    vec![
        Command::AppendBatch(batch()),
        Command::Tick(Tick { time_ms: 9 }),
        Command::CreateBoundary(CreateBoundary { time_ms: 1, event_id: id(2), definition }),
        Command::Digest(Digest { digest_id: u64::MAX }),
    ]
}

/// Decodes a batch after `change` has made of it what no leader proposes.
fn decode_changed(change: impl FnOnce(&mut record::AppendBatch)) -> Result<Command, Fault> {
    let mut command =
        record::Command::decode(Command::AppendBatch(batch()).encode(0)).expect("encoded just now");
    let Some(record::command::Kind::AppendBatch(batch)) = &mut command.kind else {
        panic!("the command is a batch")
    };
    change(batch);
    Command::decode(command.encode_to_vec().into(), 0)
}

#[track_caller]
fn assert_malformed(result: Result<Command, Fault>, expected: Malformed) {
    match result {
        Err(Fault::Malformed(malformed)) => assert_eq!(malformed, expected),
        other => panic!("{other:?} instead of {expected:?}"),
    }
}

#[test]
fn every_command_round_trips() {
    for command in commands() {
        assert_eq!(Command::decode(command.encode(4), 4).expect("well formed"), command);
        assert!(command.feature_level() <= FEATURE_LEVEL);
    }
}

#[test]
fn decoding_does_not_copy_payloads() {
    let entry = Command::AppendBatch(batch()).encode(0);
    let inside = entry.as_ptr_range();
    let Command::AppendBatch(batch) = Command::decode(entry.clone(), 0).expect("well formed") else {
        panic!("the command is a batch")
    };
    for event in batch.requests.iter().flat_map(|request| &request.events) {
        assert!(inside.contains(&event.stored.as_ptr()), "the payload points into the entry");
    }
}

#[test]
fn a_command_of_a_newer_feature_level_is_a_fault_that_names_the_level() {
    // Whatever such a command holds: a replica that skipped it would differ from one that can apply it.
    let known = record::command::Kind::Tick(record::Tick { time_ms: 1 });
    for kind in [None, Some(known)] {
        let command = record::Command { feature_level: FEATURE_LEVEL + 4, group_id: 0, kind };
        let fault = Command::decode(command.encode_to_vec().into(), 0).expect_err("unknown");
        assert!(matches!(fault, Fault::UnknownCommand { level_needed: 5, level_supported: 1 }), "{fault:?}");
        assert!(fault.to_string().contains("start a release that supports level 5"), "{fault}");
    }
}

#[test]
fn a_command_without_a_known_kind_is_a_fault() {
    let command = record::Command { feature_level: 1, group_id: 0, kind: None };
    assert_malformed(
        Command::decode(command.encode_to_vec().into(), 0),
        Malformed::NoKind { feature_level: 1 },
    );
    assert_malformed(Command::decode(Bytes::new(), 0), Malformed::NoKind { feature_level: 0 });
}

#[test]
fn a_command_of_another_group_is_a_fault() {
    let fault = Command::decode(commands()[1].encode(3), 2).expect_err("foreign");
    assert!(matches!(fault, Fault::ForeignGroup { expected: 2, found: 3 }), "{fault:?}");
}

#[test]
fn damaged_bytes_are_a_fault() {
    let entry = commands()[0].encode(0);
    let fault = Command::decode(entry.slice(..entry.len() - 1), 0).expect_err("cut off");
    assert!(matches!(fault, Fault::Undecodable { .. }), "{fault:?}");
}

#[test]
fn what_no_leader_proposes_is_refused() {
    assert_malformed(
        decode_changed(|batch| batch.time_ms = TIME_MS_MAX + 1),
        Malformed::TimeTooLarge { time_ms: TIME_MS_MAX + 1 },
    );
    assert_malformed(
        decode_changed(|batch| batch.first_event_id = i64::MAX as u64 + 1),
        Malformed::EventIdTooLarge,
    );
    assert_malformed(
        decode_changed(|batch| batch.first_event_id = i64::MAX as u64 - 2),
        Malformed::EventIdTooLarge,
    );
    assert_malformed(
        decode_changed(|batch| batch.requests[0].incarnation = u64::MAX),
        Malformed::EventIdTooLarge,
    );
    assert_malformed(
        decode_changed(|batch| {
            batch.requests[0].events[0].delay_ms = Some(1);
            batch.requests[0].events[0].deliver_at_ms = Some(1);
        }),
        Malformed::DelayAndDeliverAt,
    );
    assert_malformed(
        decode_changed(|batch| batch.requests[1].events[0].ttl_ms = Some(0)),
        Malformed::TtlZero,
    );
    let short = || Some(record::Idempotency::default());
    assert_malformed(
        decode_changed(|batch| batch.requests[0].idempotency = short()),
        Malformed::KeyHashLength,
    );
    assert_malformed(
        decode_changed(|batch| {
            batch.requests[0].idempotency = Some(record::Idempotency {
                key_hash: Bytes::from_static(&[0; 16]),
                ..record::Idempotency::default()
            });
        }),
        Malformed::RequestDigestLength,
    );
    let largest = decode_changed(|batch| batch.first_event_id = i64::MAX as u64 - 3);
    assert!(largest.is_ok(), "the last ids can be used: {largest:?}");
}
