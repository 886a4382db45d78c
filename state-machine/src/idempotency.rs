//! The idempotency rows: which saves were accepted under which key, each with a twin in the expiry table.
//!
//! **Invariant**: every row has exactly one twin, under the time at which the row expires, and every twin has
//! its row. So removing both by the twin's key alone is safe.

use std::ops::ControlFlow;

use bytes::Bytes;
use prost::Message;
use tidemark_proto::record;
use tidemark_storage::{
    Direction, KeyRange, Position, Read,
    tables::{self, Expiring, IdempotencyKey},
};

use crate::{fault::Fault, outcome::WrittenEvents, state::State};

/// An accepted save, as its idempotency row remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedSave {
    /// BLAKE3 over the request's events and consistency.
    pub request_digest: [u8; 32],
    /// Where the save's events are.
    pub written: WrittenEvents,
    /// From this replicated time on the row counts as absent.
    pub expires_at_ms: u64,
}

impl RecordedSave {
    fn encode(&self) -> Vec<u8> {
        record::IdempotencyRow {
            request_digest: Bytes::copy_from_slice(&self.request_digest),
            first: Some(position_to_record(self.written.first)),
            last: Some(position_to_record(self.written.last)),
            expires_at_ms: self.expires_at_ms,
        }
        .encode_to_vec()
    }

    fn decode(key: &[u8], value: Bytes) -> Result<Self, Fault> {
        let corrupt = |source| Fault::CorruptRow { table: "idempotency", key: key.to_vec(), source };
        let row = record::IdempotencyRow::decode(value).map_err(|source| corrupt(Some(source)))?;
        let (Some(first), Some(last), Ok(request_digest)) =
            (row.first, row.last, row.request_digest.as_ref().try_into())
        else {
            return Err(corrupt(None));
        };
        let written = WrittenEvents { first: position(first), last: position(last) };
        Ok(Self { request_digest, written, expires_at_ms: row.expires_at_ms })
    }
}

/// The row of `key`, whether or not it has expired.
pub(crate) fn lookup(
    source: &(impl Read + ?Sized),
    key: &IdempotencyKey,
) -> Result<Option<RecordedSave>, Fault> {
    let physical = tables::idempotency_key(key);
    source.get(&physical)?.map(|value| RecordedSave::decode(&physical, value)).transpose()
}

/// Stores a row and its twin, in place of one that expired at `replaced_ms`.
pub(crate) fn record(
    state: &mut State<'_>,
    key: &IdempotencyKey,
    save: &RecordedSave,
    replaced_ms: Option<u64>,
) {
    let twin = Expiring::Idempotency(*key);
    if let Some(replaced_ms) = replaced_ms {
        state.overlay.delete(tables::expiry_key(replaced_ms, &twin));
    }
    state.overlay.put(tables::idempotency_key(key), save.encode());
    state.overlay.put(tables::expiry_key(save.expires_at_ms, &twin), Bytes::new());
    let memory = &mut state.memory;
    memory.nothing_expires_before_ms = memory.nothing_expires_before_ms.min(save.expires_at_ms);
}

/// Removes idempotency rows that have expired, oldest first, looking at no more than `rows_max` expiry rows.
///
/// Rows of other kinds are left to their own removal; they only delay this one, and an expired row counts as
/// absent anyway.
pub(crate) fn remove_expired(state: &mut State<'_>, now_ms: u64, rows_max: usize) -> Result<(), Fault> {
    let known_from_ms = state.memory.nothing_expires_before_ms;
    if known_from_ms > now_ms || rows_max == 0 {
        return Ok(());
    }
    // Starting behind what was removed before spares the engine its deletion markers.
    let range = KeyRange {
        lower: Some(tables::prefixed(tables::EXPIRY, &known_from_ms.to_be_bytes())),
        ..tables::table_range(tables::EXPIRY)
    };
    let mut expired = Vec::new();
    let mut first_left_ms = Ok(u64::MAX);
    state.overlay.scan(&range, Direction::Ascending, &mut |key, _| {
        match tables::parse_expiry_key(key) {
            Ok((expires_at_ms, row)) if expires_at_ms <= now_ms && expired.len() < rows_max => {
                expired.push((expires_at_ms, row));
                return ControlFlow::Continue(());
            }
            Ok((expires_at_ms, _)) => first_left_ms = Ok(expires_at_ms),
            Err(error) => first_left_ms = Err(error),
        }
        ControlFlow::Break(())
    })?;
    let mut first_left_ms = first_left_ms?;
    for (expires_at_ms, row) in expired {
        match &row {
            Expiring::Idempotency(key) => {
                state.overlay.delete(tables::idempotency_key(key));
                state.overlay.delete(tables::expiry_key(expires_at_ms, &row));
            }
            Expiring::Event(_) => first_left_ms = first_left_ms.min(expires_at_ms),
        }
    }
    state.memory.nothing_expires_before_ms = first_left_ms;
    Ok(())
}

fn position_to_record(position: Position) -> record::Position {
    record::Position {
        commit_position: position.commit_position,
        prepare_position: position.prepare_position,
    }
}

fn position(position: record::Position) -> Position {
    Position { commit_position: position.commit_position, prepare_position: position.prepare_position }
}
