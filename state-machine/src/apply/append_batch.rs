//! Applies a batch of saves, in queue order, as if they ran one after another.

use std::num::NonZeroU64;

use tidemark_storage::{
    BoundaryHash, Bucket, EventId, EventKey, Position, key,
    tables::{self, IdempotencyKey},
};

use crate::{
    boundary::BoundaryState,
    command::{AppendBatch, AppendRequest, Due, EventToAppend, TIME_MS_MAX},
    fault::{Fault, Malformed},
    idempotency::{self, RecordedSave},
    outcome::{AppendOutcome, AppendRejection, DELAY_MS_MAX, Outcome, WrittenEvents},
    state::State,
    stored_event::{Times, append_times},
};

/// Each request removes at most this many expired idempotency rows: twice what it can add, so that the table
/// shrinks under load, and bounded, so that apply stays so.
const EXPIRED_ROWS_PER_REQUEST_MAX: usize = 2;

pub(super) fn apply(state: &mut State<'_>, batch: &AppendBatch) -> Result<Outcome, Fault> {
    // First of all, so that every request of the entry goes by one time.
    let now_ms = state.advance_clock(batch.time_ms);
    if batch.first_event_id <= state.memory.last_id {
        return Ok(Outcome::StaleBatch { last_id: state.memory.last_id });
    }
    idempotency::remove_expired(state, now_ms, EXPIRED_ROWS_PER_REQUEST_MAX * batch.requests.len())?;
    let mut next_id = batch.first_event_id;
    let mut outcomes = Vec::with_capacity(batch.requests.len());
    for request in &batch.requests {
        outcomes.push(append(state, request, next_id, now_ms)?);
        // A rejected request takes its ids too: the leader numbered the batch before it knew.
        next_id = id_after(next_id, request.events.len())?;
    }
    if next_id > batch.first_event_id {
        let last_id = EventId::new(next_id.get() - 1)?;
        state.observe_id(last_id);
    }
    Ok(Outcome::AppendBatch(outcomes))
}

fn append(
    state: &mut State<'_>,
    request: &AppendRequest,
    first_id: EventId,
    now_ms: u64,
) -> Result<AppendOutcome, Fault> {
    let target = match admit(state, request)? {
        Ok(target) => target,
        Err(rejection) => return Ok(AppendOutcome::Rejected(rejection)),
    };
    let mut expired_at_ms = None;
    if let Some(idempotency) = &request.idempotency {
        let key = IdempotencyKey { boundary: request.boundary, key_hash: idempotency.key_hash };
        match idempotency::lookup(&state.overlay, &key)? {
            Some(save) if save.expires_at_ms > now_ms => {
                return Ok(repeat(&save, idempotency.request_digest));
            }
            // It counts as absent; its twin in the expiry table goes when this save takes its place.
            Some(save) => expired_at_ms = Some(save.expires_at_ms),
            None => {}
        }
    }
    let written = match write_events(state, request, &target, first_id, now_ms)? {
        Ok(written) => written,
        Err(rejection) => return Ok(AppendOutcome::Rejected(rejection)),
    };
    if let Some(idempotency) = &request.idempotency {
        let key = IdempotencyKey { boundary: request.boundary, key_hash: idempotency.key_hash };
        let save = RecordedSave {
            request_digest: idempotency.request_digest,
            written,
            expires_at_ms: now_ms.saturating_add(target.idempotency_retention_ms),
        };
        idempotency::record(state, &key, &save, expired_at_ms);
    }
    Ok(AppendOutcome::Written(written))
}

/// What the events of a request need to know of their boundary.
struct Target {
    boundary: BoundaryHash,
    time_bucket_ms: u64,
    idempotency_retention_ms: u64,
}

fn admit(state: &mut State<'_>, request: &AppendRequest) -> Result<Result<Target, AppendRejection>, Fault> {
    let Some(boundary) = state.boundary(request.boundary)? else {
        return Ok(Err(AppendRejection::BoundaryUnknown));
    };
    Ok(if boundary.incarnation != request.incarnation {
        Err(AppendRejection::BoundaryRecreated { incarnation: boundary.incarnation })
    } else if boundary.state != BoundaryState::Active {
        Err(AppendRejection::BoundaryNotActive { state: boundary.state })
    } else if request.events.is_empty() {
        Err(AppendRejection::NoEvents)
    } else {
        Ok(Target {
            boundary: request.boundary,
            time_bucket_ms: boundary.definition.time_bucket_ms,
            idempotency_retention_ms: boundary.definition.idempotency_retention_ms,
        })
    })
}

fn repeat(save: &RecordedSave, request_digest: [u8; 32]) -> AppendOutcome {
    if save.request_digest == request_digest {
        AppendOutcome::AlreadyApplied(save.written)
    } else {
        AppendOutcome::Rejected(AppendRejection::IdempotencyKeyReused)
    }
}

/// Writes all events of the request, or none.
fn write_events(
    state: &mut State<'_>,
    request: &AppendRequest,
    target: &Target,
    first_id: EventId,
    now_ms: u64,
) -> Result<Result<WrittenEvents, AppendRejection>, Fault> {
    // All events are placed once before any is written, because a rejected save writes nothing.
    for (index, event) in (0..).zip(&request.events) {
        if fire_at(event.due, now_ms).is_none() {
            return Ok(Err(AppendRejection::DueTooFarAhead { event_index: index }));
        }
    }
    let mut event_id = first_id;
    let mut written: Option<WrittenEvents> = None;
    for event in &request.events {
        let fires = fire_at(event.due, now_ms).expect("checked for every event above");
        let placement = place(event, fires, target.time_bucket_ms, now_ms);
        let position = Position::new(placement.bucket, event_id);
        let first = written.map_or(position, |written| written.first);
        let times = Times {
            appended_at_ms: now_ms,
            happened_at_ms: placement.happened_at_ms,
            expires_at_ms: placement.expires_at_ms,
            write_commit_position: first.commit_position as u64,
        };
        let key = EventKey { boundary: target.boundary, bucket: placement.bucket, event_id };
        state.overlay.put(tables::event_key(&key), append_times(&event.stored, &times));
        written = Some(WrittenEvents { first, last: position });
        event_id = id_after(event_id, 1)?;
    }
    Ok(written.ok_or(AppendRejection::NoEvents))
}

/// When an event fires.
#[derive(Clone, Copy)]
enum Fires {
    WithItsEntry,
    Later { at_ms: u64 },
}

/// When an event with this due time fires; `None` if that is too far ahead.
fn fire_at(due: Due, now_ms: u64) -> Option<Fires> {
    let delay_ms = match due {
        Due::Now => 0,
        Due::After { delay_ms } => delay_ms,
        Due::At { time_ms } => time_ms.saturating_sub(now_ms),
    };
    match delay_ms {
        0 => Some(Fires::WithItsEntry),
        1..=DELAY_MS_MAX => Some(Fires::Later { at_ms: now_ms + delay_ms }),
        _ => None,
    }
}

/// Where an event goes.
struct Placement {
    bucket: Bucket,
    happened_at_ms: u64,
    expires_at_ms: Option<u64>,
}

fn place(event: &EventToAppend, fires: Fires, time_bucket_ms: u64, now_ms: u64) -> Placement {
    let (bucket, happened_at_ms) = match fires {
        Fires::WithItsEntry => (key::bucket_now(now_ms, time_bucket_ms), now_ms),
        Fires::Later { at_ms } => {
            let bucket = key::bucket_due(at_ms, time_bucket_ms);
            assert!(
                bucket > key::bucket_now(now_ms, time_bucket_ms),
                "a scheduled event comes after everything visible"
            );
            (bucket, bucket.get() * time_bucket_ms)
        }
    };
    // Counted from the moment at which the event happens, so that a delay cannot use the lifetime up.
    let expires_at_ms =
        event.ttl_ms.map(NonZeroU64::get).and_then(|ttl_ms| happened_at_ms.checked_add(ttl_ms));
    Placement { bucket, happened_at_ms, expires_at_ms }
}

fn id_after(event_id: EventId, count: usize) -> Result<EventId, Fault> {
    Ok(event_id.checked_add(count as u64).ok_or(Malformed::EventIdTooLarge)?)
}

// Neither a bucket nor the time at which it begins can overflow: both stay below what a signed number holds.
const _: () = assert!(TIME_MS_MAX + DELAY_MS_MAX + crate::boundary::TIME_BUCKET_MS_MAX < i64::MAX as u64);
