//! Checks a read of one page of events.

use tidemark_proto::{ApiError, v1};
use tidemark_storage::{Direction, Position};

use super::field::{Field, boundary_name, size};
use crate::api::limits::Limits;

/// A read that can be answered once its boundary is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidRead {
    /// The boundary's name.
    pub boundary: String,
    /// Where the page begins, inclusive; nothing: at the oldest event ascending, the newest descending.
    pub from: Option<Position>,
    /// Which way the page goes.
    pub direction: Direction,
    /// Events wanted, from 1 to `max_count`.
    pub count: u32,
    /// How fresh the answer must be.
    pub level: ReadLevel,
}

/// How fresh the answer to a read must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadLevel {
    /// It has everything that was acknowledged before the read began.
    Linearizable,
    /// It has at least this position; [`Position::NONE`] asks for nothing.
    AtLeast(Position),
    /// It has what this node has.
    Local,
}

/// Checks `request`.
///
/// # Errors
/// [`ApiError::InvalidRequest`] with the field, [`ApiError::LimitExceeded`] for a count above `max_count`,
/// [`ApiError::NotSupported`].
pub fn get_events(request: &v1::GetEventsRequest, limits: &Limits) -> Result<ValidRead, ApiError> {
    boundary_name(&request.boundary, limits)?;
    if request.count == 0 {
        return Err(Field::Request("count").invalid("must be at least 1"));
    }
    size("max_count", request.count.into(), limits.max_count.into())?;
    let from = request.from_position.as_ref().map(from_position).transpose()?;
    let direction = direction(request.direction)?;
    let level = level(request.consistency.as_ref())?;
    if request.query.is_some() {
        return Err(ApiError::NotSupported { what: "query".to_owned() });
    }
    Ok(ValidRead { boundary: request.boundary.clone(), from, direction, count: request.count, level })
}

fn from_position(position: &v1::Position) -> Result<Position, ApiError> {
    let position = to_position(position);
    if !is_place(position) {
        return Err(Field::Request("from_position").invalid("both parts must be at least 0"));
    }
    Ok(position)
}

fn direction(direction: i32) -> Result<Direction, ApiError> {
    match v1::Direction::try_from(direction) {
        Ok(v1::Direction::Unspecified | v1::Direction::Ascending) => Ok(Direction::Ascending),
        Ok(v1::Direction::Descending) => Ok(Direction::Descending),
        Err(_) => Err(Field::Request("direction").invalid(format!("{direction} is no direction"))),
    }
}

fn level(consistency: Option<&v1::ReadConsistency>) -> Result<ReadLevel, ApiError> {
    match consistency.and_then(|consistency| consistency.level.as_ref()) {
        None | Some(v1::read_consistency::Level::Linearizable(_)) => Ok(ReadLevel::Linearizable),
        Some(v1::read_consistency::Level::Local(_)) => Ok(ReadLevel::Local),
        Some(v1::read_consistency::Level::AtLeast(position)) => {
            let position = to_position(position);
            // A client that has seen no match holds (-1,-1) and may hand it on.
            if position != Position::NONE && !is_place(position) {
                let field = Field::Request("consistency.at_least");
                return Err(field.invalid("must be (-1,-1), or both parts at least 0"));
            }
            Ok(ReadLevel::AtLeast(position))
        }
    }
}

fn to_position(position: &v1::Position) -> Position {
    Position { commit_position: position.commit_position, prepare_position: position.prepare_position }
}

fn is_place(position: Position) -> bool {
    position.commit_position >= 0 && position.prepare_position >= 0
}
