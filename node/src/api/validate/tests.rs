//! Tests of the checks on requests: fixtures, and that every limit has a case.

mod boundary;
mod digest;
mod limits;
mod read;
mod save;

use bytes::Bytes;
use tidemark_proto::{ApiError, LimitKind, v1};

use super::ValidSave;
use crate::api::limits::Limits;

/// An event that is accepted.
fn event() -> v1::EventToSave {
    v1::EventToSave {
        event_type: "SeatReserved".to_owned(),
        data: Bytes::from_static(br#"{"seat":"4A"}"#),
        ..Default::default()
    }
}

/// A save of `events` that is accepted if they are.
fn request(events: Vec<v1::EventToSave>) -> v1::SaveEventsRequest {
    v1::SaveEventsRequest { boundary: "flights".to_owned(), events, ..Default::default() }
}

fn text(key: &str, value: &str) -> v1::Attribute {
    v1::Attribute { key: key.to_owned(), value: Some(v1::attribute::Value::Text(value.to_owned())) }
}

fn integer(key: &str, value: i64) -> v1::Attribute {
    v1::Attribute { key: key.to_owned(), value: Some(v1::attribute::Value::Integer(value)) }
}

fn try_save(request: v1::SaveEventsRequest) -> Result<ValidSave, ApiError> {
    super::save(request, &Limits::DEFAULT, || "made".to_owned())
}

/// Checks that `result` refuses `field` and that the reason has `why` in it.
#[track_caller]
fn assert_invalid<T: std::fmt::Debug>(result: Result<T, ApiError>, field: &str, why: &str) {
    match result {
        Err(ApiError::InvalidRequest { field: found, why: reason }) => {
            assert_eq!(found, field, "{reason}");
            assert!(reason.contains(why), "{reason:?} has no {why:?} in it");
        }
        other => panic!("expected {field} to be invalid, got {other:?}"),
    }
}

#[track_caller]
fn assert_over_limit<T: std::fmt::Debug>(
    result: Result<T, ApiError>,
    limit: &str,
    maximum: u64,
    actual: u64,
) {
    let expected =
        ApiError::LimitExceeded { limit: limit.to_owned(), maximum, actual, kind: LimitKind::Size };
    assert_eq!(result.expect_err("it is over the limit"), expected);
}

#[track_caller]
fn assert_not_supported<T: std::fmt::Debug>(result: Result<T, ApiError>, what: &str) {
    assert_eq!(result.expect_err("it is not supported"), ApiError::NotSupported { what: what.to_owned() });
}
