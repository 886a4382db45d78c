//! Applies the creation of a boundary.

use tidemark_storage::BoundaryHash;

use crate::{
    boundary::{
        self, Boundary, BoundaryState, DESCRIPTION_BYTES_MAX, IDEMPOTENCY_RETENTION_MS_DEFAULT,
        IDEMPOTENCY_RETENTION_MS_MAX, TIME_BUCKET_MS_MAX,
    },
    command::{BoundaryDefinition, CreateBoundary},
    fault::Fault,
    outcome::{CreateBoundaryOutcome, CreateBoundaryRejection, Outcome},
    state::State,
};

pub(super) fn apply(state: &mut State<'_>, create: &CreateBoundary) -> Result<Outcome, Fault> {
    let now_ms = state.advance_clock(create.time_ms);
    if create.event_id <= state.memory.last_id {
        return Ok(Outcome::StaleBatch { last_id: state.memory.last_id });
    }
    state.observe_id(create.event_id);
    let outcome = match check(&create.definition) {
        Some(rejection) => CreateBoundaryOutcome::Rejected(rejection),
        None => create_checked(state, create, now_ms)?,
    };
    Ok(Outcome::CreateBoundary(outcome))
}

fn create_checked(
    state: &mut State<'_>,
    create: &CreateBoundary,
    now_ms: u64,
) -> Result<CreateBoundaryOutcome, Fault> {
    let definition = with_defaults(&create.definition);
    let hash = BoundaryHash::of(&definition.name);
    if let Some(existing) = state.boundary(hash)? {
        return Ok(compare(existing, &definition));
    }
    let boundary = Boundary {
        definition,
        incarnation: create.event_id,
        created_at_ms: now_ms,
        state: BoundaryState::Active,
    };
    state.put_boundary(hash, boundary.clone());
    Ok(CreateBoundaryOutcome::Created(boundary))
}

fn compare(existing: &Boundary, wanted: &BoundaryDefinition) -> CreateBoundaryOutcome {
    if existing.definition.name != wanted.name {
        // The hash is all that an event key knows of its boundary: two names under one hash would read each
        // other's events.
        let existing = existing.definition.name.clone();
        return CreateBoundaryOutcome::Rejected(CreateBoundaryRejection::HashCollision { existing });
    }
    if existing.definition == *wanted {
        CreateBoundaryOutcome::AlreadyExists(existing.clone())
    } else {
        CreateBoundaryOutcome::Rejected(CreateBoundaryRejection::BoundaryExists(existing.clone()))
    }
}

fn check(definition: &BoundaryDefinition) -> Option<CreateBoundaryRejection> {
    if !boundary::is_valid_name(&definition.name) {
        Some(CreateBoundaryRejection::InvalidName)
    } else if definition.description.len() > DESCRIPTION_BYTES_MAX {
        Some(CreateBoundaryRejection::DescriptionTooLong)
    } else if definition.time_bucket_ms > TIME_BUCKET_MS_MAX {
        Some(CreateBoundaryRejection::TimeBucketTooWide)
    } else if definition.idempotency_retention_ms > IDEMPOTENCY_RETENTION_MS_MAX {
        Some(CreateBoundaryRejection::IdempotencyRetentionTooLong)
    } else {
        None
    }
}

fn with_defaults(definition: &BoundaryDefinition) -> BoundaryDefinition {
    let idempotency_retention_ms = match definition.idempotency_retention_ms {
        0 => IDEMPOTENCY_RETENTION_MS_DEFAULT,
        retention_ms => retention_ms,
    };
    BoundaryDefinition {
        time_bucket_ms: definition.time_bucket_ms.max(1),
        idempotency_retention_ms,
        ..definition.clone()
    }
}
