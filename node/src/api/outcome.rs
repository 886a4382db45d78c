//! Outcomes of the state machine and faults of consensus as errors and results of the API.

use prost::Message;
use tidemark_proto::{ApiError, LimitKind, record, v1};
use tidemark_raft::error::BarrierError;
use tidemark_state_machine::{
    AppendOutcome, AppendRejection, Boundary, BoundaryState, CreateBoundaryOutcome, CreateBoundaryRejection,
    Fault, WriteId,
    boundary::{DESCRIPTION_BYTES_MAX, IDEMPOTENCY_RETENTION_MS_MAX, TIME_BUCKET_MS_MAX},
    outcome::{DELAY_MS_MAX, WrittenEvents},
};
use tidemark_storage::{BoundaryHash, EventKey, Position};

/// A position as clients see it.
pub fn position(position: Position) -> v1::Position {
    v1::Position { commit_position: position.commit_position, prepare_position: position.prepare_position }
}

/// The answer to a save of `boundary`.
pub fn write_result(outcome: AppendOutcome, boundary: &str) -> Result<v1::WriteResult, ApiError> {
    match outcome {
        AppendOutcome::Written(written) => Ok(written_events(written, boundary, false)),
        AppendOutcome::AlreadyApplied(written) => Ok(written_events(written, boundary, true)),
        AppendOutcome::Rejected(rejection) => Err(append_rejection(rejection, boundary)),
    }
}

fn written_events(written: WrittenEvents, boundary: &str, already_applied: bool) -> v1::WriteResult {
    let key = EventKey::at(BoundaryHash::of(boundary), written.first);
    v1::WriteResult {
        log_position: Some(position(written.last)),
        write_id: WriteId::new(key).to_string(),
        already_applied,
    }
}

/// Why a save of `boundary` was not written.
pub fn append_rejection(rejection: AppendRejection, boundary: &str) -> ApiError {
    let boundary = boundary.to_owned();
    match rejection {
        AppendRejection::NoEvents => ApiError::InvalidRequest {
            field: "events".to_owned(),
            why: "a save holds at least one event".to_owned(),
        },
        AppendRejection::BoundaryUnknown => ApiError::BoundaryUnknown { boundary },
        AppendRejection::BoundaryNotActive { state } => boundary_state(state, boundary),
        // The node that asked knew an earlier boundary of this name.
        AppendRejection::BoundaryRecreated { .. } => ApiError::BoundaryNotInstalled { boundary },
        AppendRejection::IdempotencyKeyReused => ApiError::IdempotencyKeyReused,
        AppendRejection::DueTooFarAhead { event_index } => ApiError::InvalidRequest {
            field: format!("events[{event_index}].delivery"),
            why: format!("it is more than {DELAY_MS_MAX} ms ahead"),
        },
    }
}

fn boundary_state(state: BoundaryState, boundary: String) -> ApiError {
    match state {
        BoundaryState::Provisioning => ApiError::BoundaryProvisioning { boundary },
        BoundaryState::Active => ApiError::BoundaryNotInstalled { boundary },
        BoundaryState::Failed => {
            ApiError::BoundaryFailed { boundary, failure: "provisioning failed".to_owned() }
        }
        BoundaryState::Deleted => ApiError::BoundaryUnknown { boundary },
    }
}

/// An error that was made without the boundary's name, with it.
pub fn with_boundary(error: ApiError, name: &str) -> ApiError {
    let boundary = name.to_owned();
    match error {
        ApiError::BoundaryUnknown { .. } => ApiError::BoundaryUnknown { boundary },
        ApiError::BoundaryProvisioning { .. } => ApiError::BoundaryProvisioning { boundary },
        ApiError::BoundaryFailed { failure, .. } => ApiError::BoundaryFailed { boundary, failure },
        ApiError::BoundaryNotInstalled { .. } => ApiError::BoundaryNotInstalled { boundary },
        ApiError::BoundaryExists { .. } => ApiError::BoundaryExists { boundary },
        ApiError::BoundaryHashCollision { other, .. } => ApiError::BoundaryHashCollision { boundary, other },
        error => error,
    }
}

/// The answer to the creation of `name`.
pub fn created(outcome: CreateBoundaryOutcome, name: &str) -> Result<Boundary, ApiError> {
    match outcome {
        CreateBoundaryOutcome::Created(boundary) | CreateBoundaryOutcome::AlreadyExists(boundary) => {
            Ok(boundary)
        }
        CreateBoundaryOutcome::Rejected(rejection) => Err(create_rejection(rejection, name)),
    }
}

/// Why boundary `name` was not created.
pub fn create_rejection(rejection: CreateBoundaryRejection, name: &str) -> ApiError {
    let size = |limit: &str, maximum: u64| ApiError::LimitExceeded {
        limit: limit.to_owned(),
        maximum,
        actual: maximum + 1,
        kind: LimitKind::Size,
    };
    match rejection {
        CreateBoundaryRejection::InvalidName => ApiError::InvalidRequest {
            field: "definition.name".to_owned(),
            why: "it does not match ^[A-Za-z_][A-Za-z0-9_]{0,62}$".to_owned(),
        },
        CreateBoundaryRejection::DescriptionTooLong => {
            size("definition.description", DESCRIPTION_BYTES_MAX as u64)
        }
        CreateBoundaryRejection::TimeBucketTooWide => size("definition.time_bucket_ms", TIME_BUCKET_MS_MAX),
        CreateBoundaryRejection::IdempotencyRetentionTooLong => {
            size("definition.idempotency_retention_ms", IDEMPOTENCY_RETENTION_MS_MAX)
        }
        CreateBoundaryRejection::BoundaryExists(_) => ApiError::BoundaryExists { boundary: name.to_owned() },
        CreateBoundaryRejection::HashCollision { existing } => {
            ApiError::BoundaryHashCollision { boundary: name.to_owned(), other: existing }
        }
    }
}

/// A boundary's row, for another node.
pub fn boundary_row(boundary: &Boundary) -> record::BoundaryRow {
    record::BoundaryRow::decode(boundary.encode().as_slice()).expect("a boundary encodes to its own row")
}

/// A boundary from another node.
pub fn boundary_from_row(row: &record::BoundaryRow) -> Result<Boundary, Fault> {
    Boundary::decode(b"", &row.encode_to_vec())
}

/// A failing read of the database. The client learns that it failed; the log says why.
pub fn fault(fault: &Fault) -> ApiError {
    tracing::error!(fault = %Chain(fault), "cannot read the database");
    ApiError::Internal { what: "read the database".to_owned() }
}

/// An error with its sources, for the log.
struct Chain<'a>(&'a dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

/// Why a linearizable read could not begin.
pub fn barrier(error: BarrierError) -> ApiError {
    match error {
        BarrierError::NoLeader | BarrierError::NoQuorum | BarrierError::LeaderUnreachable(_) => {
            ApiError::NoQuorum
        }
        // Applied is a log index here, wanted too; positions are another currency, so no figures.
        BarrierError::NotApplied { .. } => ApiError::Recovering,
        BarrierError::Stopped => ApiError::Stopping,
    }
}
