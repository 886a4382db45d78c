//! The one place where [`ApiError`] turns into a gRPC status or a [`v1::Error`] and back.
//!
//! A status carries two details: a `google.rpc.ErrorInfo` with the reason, which any gRPC client can read, and the
//! whole `tidemark.v1.Error`. Inside streams the `Error` message is an answer like any other. Whatever cannot be
//! read, a status of a proxy for example, becomes [`ApiError::Transport`] and keeps its code.

use prost::{Message, Name};
use prost_types::Any;
use tonic::{Code, Status};
use tonic_types::pb;

use crate::error::{ApiError, LimitKind, UnknownCause};
use crate::v1;
use crate::v1::Reason;
use crate::v1::error::Detail;

/// `ErrorInfo.domain` of all errors of this system.
pub const ERROR_DOMAIN: &str = "tidemark";

/// Longest text of an error on the wire. A status travels in HTTP/2 headers, several times over, and many peers
/// refuse header lists of more than 16 KiB.
const TEXT_BYTES_MAX: usize = 1024;

const ERROR_INFO_URL: &str = "type.googleapis.com/google.rpc.ErrorInfo";

impl Name for v1::Error {
    const NAME: &'static str = "Error";
    const PACKAGE: &'static str = "tidemark.v1";
}

impl ApiError {
    /// The gRPC code that the error travels under.
    pub fn code(&self) -> Code {
        match self {
            Self::InvalidRequest { .. } | Self::IdempotencyKeyReused => Code::InvalidArgument,
            Self::ContextConflict { .. }
            | Self::BoundaryExists { .. }
            | Self::BoundaryHashCollision { .. } => Code::AlreadyExists,
            Self::BoundaryUnknown { .. }
            | Self::BoundaryProvisioning { .. }
            | Self::BoundaryFailed { .. }
            | Self::BoundaryNotInstalled { .. } => Code::FailedPrecondition,
            Self::NotLeader { .. } | Self::NoQuorum | Self::Stopping | Self::Recovering => Code::Unavailable,
            Self::OutcomeUnknown { cause } => match cause {
                UnknownCause::Deadline => Code::DeadlineExceeded,
                UnknownCause::LeadershipLost | UnknownCause::Stopping => Code::Unavailable,
            },
            Self::LimitExceeded { kind, .. } => match kind {
                LimitKind::Size => Code::InvalidArgument,
                LimitKind::Queue => Code::ResourceExhausted,
            },
            Self::NotCaughtUp { .. } | Self::DeadlineExceeded => Code::DeadlineExceeded,
            Self::NotSupported { .. } => Code::Unimplemented,
            Self::Internal { .. } => Code::Internal,
            Self::NotFound { .. } => Code::NotFound,
            Self::Transport { code, .. } => *code,
        }
    }
}

impl From<ApiError> for v1::Error {
    fn from(error: ApiError) -> Self {
        let message = match &error {
            // Its text is the message itself; the code stands beside it.
            ApiError::Transport { message, .. } => cut(message.clone()),
            typed => cut(typed.to_string()),
        };
        v1::Error {
            code: error.code() as i32,
            message,
            reason: error.reason() as i32,
            detail: detail_of(error),
        }
    }
}

fn detail_of(error: ApiError) -> Option<Detail> {
    match error {
        ApiError::InvalidRequest { field, why } => {
            Some(Detail::InvalidArgument(v1::InvalidArgument { field: cut(field), why: cut(why) }))
        }
        ApiError::ContextConflict { observation_index, expected, actual } => {
            Some(Detail::ContextConflict(v1::ContextConflict {
                observation_index,
                expected: Some(expected),
                actual: Some(actual),
            }))
        }
        ApiError::BoundaryUnknown { boundary }
        | ApiError::BoundaryProvisioning { boundary }
        | ApiError::BoundaryNotInstalled { boundary }
        | ApiError::BoundaryExists { boundary } => unavailable(boundary, String::new(), String::new()),
        ApiError::BoundaryFailed { boundary, failure } => unavailable(boundary, failure, String::new()),
        ApiError::BoundaryHashCollision { boundary, other } => unavailable(boundary, String::new(), other),
        ApiError::NotLeader { leader } => leader.map(Detail::LeaderHint),
        ApiError::OutcomeUnknown { cause } => {
            let cause = match cause {
                UnknownCause::LeadershipLost => v1::UnknownCause::LeadershipLost,
                UnknownCause::Deadline => v1::UnknownCause::Deadline,
                UnknownCause::Stopping => v1::UnknownCause::Stopping,
            };
            Some(Detail::OutcomeUnknown(v1::OutcomeUnknown { cause: cause as i32 }))
        }
        ApiError::LimitExceeded { limit, maximum, actual, kind } => {
            let kind = match kind {
                LimitKind::Size => v1::LimitKind::Size,
                LimitKind::Queue => v1::LimitKind::Queue,
            } as i32;
            Some(Detail::LimitExceeded(v1::LimitExceeded { limit: cut(limit), maximum, actual, kind }))
        }
        ApiError::NotCaughtUp { applied_event_id, wanted_event_id } => {
            Some(Detail::NotCaughtUp(v1::NotCaughtUp { applied_event_id, wanted_event_id }))
        }
        ApiError::NotSupported { what } | ApiError::Internal { what } | ApiError::NotFound { what } => {
            Some(Detail::Subject(v1::Subject { what: cut(what) }))
        }
        ApiError::IdempotencyKeyReused
        | ApiError::NoQuorum
        | ApiError::Stopping
        | ApiError::Recovering
        | ApiError::DeadlineExceeded
        | ApiError::Transport { .. } => None,
    }
}

fn unavailable(boundary: String, failure: String, other: String) -> Option<Detail> {
    Some(Detail::BoundaryUnavailable(v1::BoundaryUnavailable {
        boundary: cut(boundary),
        failure: cut(failure),
        other: cut(other),
    }))
}

impl From<v1::Error> for ApiError {
    /// An error whose reason this release does not know, or whose detail is missing, becomes
    /// [`ApiError::Transport`].
    fn from(error: v1::Error) -> Self {
        let v1::Error { code, message, reason, detail } = error;
        let typed = Reason::try_from(reason).ok().and_then(|reason| typed(reason, detail));
        typed.unwrap_or_else(|| ApiError::Transport { code: Code::from_i32(code), message })
    }
}

fn typed(reason: Reason, detail: Option<Detail>) -> Option<ApiError> {
    Some(match reason {
        Reason::Unspecified => return None,
        Reason::InvalidRequest => {
            let Detail::InvalidArgument(v1::InvalidArgument { field, why }) = detail? else { return None };
            ApiError::InvalidRequest { field, why }
        }
        Reason::IdempotencyKeyReused => ApiError::IdempotencyKeyReused,
        Reason::ContextConflict => {
            let Detail::ContextConflict(conflict) = detail? else { return None };
            ApiError::ContextConflict {
                observation_index: conflict.observation_index,
                expected: conflict.expected?,
                actual: conflict.actual?,
            }
        }
        Reason::BoundaryUnknown => ApiError::BoundaryUnknown { boundary: boundary(detail)?.boundary },
        Reason::BoundaryProvisioning => {
            ApiError::BoundaryProvisioning { boundary: boundary(detail)?.boundary }
        }
        Reason::BoundaryFailed => {
            let v1::BoundaryUnavailable { boundary, failure, .. } = boundary(detail)?;
            ApiError::BoundaryFailed { boundary, failure }
        }
        Reason::BoundaryNotInstalled => {
            ApiError::BoundaryNotInstalled { boundary: boundary(detail)?.boundary }
        }
        Reason::BoundaryExists => ApiError::BoundaryExists { boundary: boundary(detail)?.boundary },
        Reason::BoundaryHashCollision => {
            let v1::BoundaryUnavailable { boundary, other, .. } = boundary(detail)?;
            ApiError::BoundaryHashCollision { boundary, other }
        }
        Reason::NotLeader => {
            let leader = if let Some(Detail::LeaderHint(hint)) = detail { Some(hint) } else { None };
            ApiError::NotLeader { leader }
        }
        Reason::NoQuorum => ApiError::NoQuorum,
        Reason::Stopping => ApiError::Stopping,
        Reason::Recovering => ApiError::Recovering,
        Reason::OutcomeUnknown => ApiError::OutcomeUnknown { cause: cause(detail) },
        Reason::LimitExceeded => limit_exceeded(detail?)?,
        Reason::NotCaughtUp => {
            let Detail::NotCaughtUp(v1::NotCaughtUp { applied_event_id, wanted_event_id }) = detail? else {
                return None;
            };
            ApiError::NotCaughtUp { applied_event_id, wanted_event_id }
        }
        Reason::DeadlineExceeded => ApiError::DeadlineExceeded,
        Reason::NotSupported => ApiError::NotSupported { what: subject(detail)? },
        Reason::Internal => ApiError::Internal { what: subject(detail)? },
        Reason::NotFound => ApiError::NotFound { what: subject(detail)? },
    })
}

fn boundary(detail: Option<Detail>) -> Option<v1::BoundaryUnavailable> {
    let Detail::BoundaryUnavailable(boundary) = detail? else { return None };
    Some(boundary)
}

fn subject(detail: Option<Detail>) -> Option<String> {
    let Detail::Subject(v1::Subject { what }) = detail? else { return None };
    Some(what)
}

/// Never fails: that the outcome is unknown must not get lost because a cause is new.
fn cause(detail: Option<Detail>) -> UnknownCause {
    let wire = if let Some(Detail::OutcomeUnknown(unknown)) = detail {
        unknown.cause()
    } else {
        v1::UnknownCause::Unspecified
    };
    match wire {
        v1::UnknownCause::Unspecified | v1::UnknownCause::LeadershipLost => UnknownCause::LeadershipLost,
        v1::UnknownCause::Deadline => UnknownCause::Deadline,
        v1::UnknownCause::Stopping => UnknownCause::Stopping,
    }
}

fn limit_exceeded(detail: Detail) -> Option<ApiError> {
    let Detail::LimitExceeded(exceeded) = detail else { return None };
    let kind = match exceeded.kind() {
        v1::LimitKind::Unspecified | v1::LimitKind::Size => LimitKind::Size,
        v1::LimitKind::Queue => LimitKind::Queue,
    };
    let v1::LimitExceeded { limit, maximum, actual, .. } = exceeded;
    Some(ApiError::LimitExceeded { limit, maximum, actual, kind })
}

impl From<ApiError> for Status {
    fn from(error: ApiError) -> Self {
        let (code, reason) = (error.code(), error.reason());
        let detail = v1::Error::from(error);
        let message = detail.message.clone();
        if reason == Reason::Unspecified {
            return Status::new(code, message);
        }
        let info = pb::ErrorInfo {
            reason: reason.as_str_name().to_owned(),
            domain: ERROR_DOMAIN.to_owned(),
            metadata: Default::default(),
        };
        let details = vec![
            Any { type_url: ERROR_INFO_URL.to_owned(), value: info.encode_to_vec() },
            Any { type_url: error_url(), value: detail.encode_to_vec() },
        ];
        let packed = pb::Status { code: code as i32, message: message.clone(), details };
        Status::with_details(code, message, packed.encode_to_vec().into())
    }
}

impl From<Status> for ApiError {
    fn from(status: Status) -> Self {
        Self::from(&status)
    }
}

impl From<&Status> for ApiError {
    /// A status without a readable `tidemark.v1.Error` becomes [`ApiError::Transport`].
    fn from(status: &Status) -> Self {
        unpack(status).map_or_else(
            || ApiError::Transport { code: status.code(), message: status.message().to_owned() },
            ApiError::from,
        )
    }
}

fn unpack(status: &Status) -> Option<v1::Error> {
    if status.details().is_empty() {
        return None;
    }
    let packed = pb::Status::decode(status.details()).ok()?;
    let url = error_url();
    let detail = packed.details.iter().find(|detail| detail.type_url == url)?;
    v1::Error::decode(detail.value.as_slice()).ok()
}

fn error_url() -> String {
    format!("type.googleapis.com/{}", v1::Error::full_name())
}

fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Retry;
    use crate::v1::{LeaderHint, Position};

    fn position(commit: i64, prepare: i64) -> Position {
        Position { commit_position: commit, prepare_position: prepare }
    }

    /// At least one of every variant, with every value of the enums inside.
    fn every_error() -> Vec<ApiError> {
        let boundary = || "orders".to_owned();
        let hint = LeaderHint { node_id: 2, address: "10.0.0.2:7400".to_owned() };
        let limit = |kind| ApiError::LimitExceeded {
            limit: "max_event_bytes".to_owned(),
            maximum: 10,
            actual: 11,
            kind,
        };
        let mut errors = vec![
            ApiError::invalid("events[3].data", "not a JSON object"),
            ApiError::IdempotencyKeyReused,
            ApiError::ContextConflict {
                observation_index: 7,
                expected: position(-1, -1),
                actual: position(5, 6),
            },
            ApiError::BoundaryUnknown { boundary: boundary() },
            ApiError::BoundaryProvisioning { boundary: boundary() },
            ApiError::BoundaryFailed { boundary: boundary(), failure: "disk full".to_owned() },
            ApiError::BoundaryNotInstalled { boundary: boundary() },
            ApiError::BoundaryExists { boundary: boundary() },
            ApiError::BoundaryHashCollision { boundary: boundary(), other: "items".to_owned() },
            ApiError::NotLeader { leader: None },
            ApiError::NotLeader { leader: Some(hint) },
            ApiError::NoQuorum,
            ApiError::Stopping,
            ApiError::Recovering,
            ApiError::OutcomeUnknown { cause: UnknownCause::LeadershipLost },
            ApiError::OutcomeUnknown { cause: UnknownCause::Deadline },
            ApiError::OutcomeUnknown { cause: UnknownCause::Stopping },
            limit(LimitKind::Size),
            limit(LimitKind::Queue),
            ApiError::NotCaughtUp { applied_event_id: 4, wanted_event_id: 9 },
            ApiError::DeadlineExceeded,
            ApiError::NotSupported { what: "retention".to_owned() },
            ApiError::Internal { what: "reading the log".to_owned() },
            ApiError::NotFound { what: "event (1,2)".to_owned() },
        ];
        errors.extend(
            (1..=16).map(|code| ApiError::Transport { code: Code::from_i32(code), message: "x".to_owned() }),
        );
        errors
    }

    #[test]
    fn every_reason_has_an_error() {
        let reasons: Vec<Reason> = (0..).map_while(|value| Reason::try_from(value).ok()).collect();
        assert!(reasons.len() > 20, "the reasons are numbered without gaps");
        for reason in reasons {
            assert!(every_error().iter().any(|error| error.reason() == reason), "{reason:?}");
        }
    }

    #[test]
    fn every_error_comes_back_from_a_status() {
        for error in every_error() {
            let status = Status::from(error.clone());
            assert_eq!(status.code(), error.code());
            assert_eq!(ApiError::from(&status), error);
            assert_eq!(ApiError::from(status), error);
        }
    }

    #[test]
    fn every_error_comes_back_from_a_message() {
        for error in every_error() {
            let message = v1::Error::from(error.clone());
            let decoded = v1::Error::decode(message.encode_to_vec().as_slice()).expect("it was just encoded");
            assert_eq!(ApiError::from(decoded), error);
        }
    }

    #[test]
    fn a_status_names_the_reason_for_foreign_clients() {
        use tonic_types::StatusExt;
        let status = Status::from(ApiError::NoQuorum);
        let info = status.get_details_error_info().expect("a typed error carries an ErrorInfo");
        assert_eq!((info.reason.as_str(), info.domain.as_str()), ("NO_QUORUM", "tidemark"));
    }

    #[test]
    fn a_save_that_may_have_been_written_is_repeated_only_with_its_key() {
        for error in every_error() {
            let may_be_written = matches!(
                error,
                ApiError::OutcomeUnknown { .. }
                    | ApiError::Transport {
                        code: Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal,
                        ..
                    }
            );
            if may_be_written {
                assert_eq!(error.retryable(), Retry::WithIdempotencyKey, "{error}");
            }
        }
    }

    #[test]
    fn an_error_of_a_newer_release_keeps_its_code_and_message() {
        let newer = v1::Error { code: 9, message: "new".to_owned(), reason: 999, detail: None };
        let expected = ApiError::Transport { code: Code::FailedPrecondition, message: "new".to_owned() };
        assert_eq!(ApiError::from(newer), expected);
    }

    #[test]
    fn a_reason_without_its_detail_is_not_given_invented_fields() {
        let bare = v1::Error {
            code: 6,
            message: "conflict".to_owned(),
            reason: Reason::ContextConflict as i32,
            detail: None,
        };
        let expected = ApiError::Transport { code: Code::AlreadyExists, message: "conflict".to_owned() };
        assert_eq!(ApiError::from(bare), expected);
    }

    #[test]
    fn an_unknown_outcome_stays_one_without_its_cause() {
        let bare = v1::Error { reason: Reason::OutcomeUnknown as i32, ..Default::default() };
        assert!(matches!(ApiError::from(bare), ApiError::OutcomeUnknown { .. }));
    }

    #[test]
    fn a_status_with_unreadable_details_keeps_its_code() {
        let status = Status::with_details(Code::Unavailable, "proxy", vec![0xff, 1, 2].into());
        let expected = ApiError::Transport { code: Code::Unavailable, message: "proxy".to_owned() };
        assert_eq!(ApiError::from(status), expected);
    }

    #[test]
    fn long_texts_are_cut_so_that_the_status_fits_into_headers() {
        let status = Status::from(ApiError::invalid("é".repeat(5_000), "ü".repeat(5_000)));
        assert!(status.details().len() < 6 * TEXT_BYTES_MAX);
        assert!(status.message().len() <= TEXT_BYTES_MAX);
        assert!(matches!(ApiError::from(status), ApiError::InvalidRequest { .. }));
    }
}
