//! Tests of reads.

use tidemark_proto::{ApiError, v1};
use tidemark_storage::{Direction, Position};

use super::{assert_invalid, assert_not_supported, assert_over_limit};
use crate::api::{
    limits::Limits,
    validate::{ReadLevel, ValidRead, get_events},
};

fn request() -> v1::GetEventsRequest {
    v1::GetEventsRequest { boundary: "flights".to_owned(), count: 100, ..Default::default() }
}

fn position(commit_position: i64, prepare_position: i64) -> v1::Position {
    v1::Position { commit_position, prepare_position }
}

fn check(request: &v1::GetEventsRequest) -> Result<ValidRead, ApiError> {
    get_events(request, &Limits::DEFAULT)
}

fn check_level(level: Option<v1::read_consistency::Level>) -> Result<ReadLevel, ApiError> {
    let consistency = Some(v1::ReadConsistency { level });
    check(&v1::GetEventsRequest { consistency, ..request() }).map(|read| read.level)
}

#[test]
fn the_least_request_reads_ascending_from_the_oldest_and_linearizable() {
    let expected = ValidRead {
        boundary: "flights".to_owned(),
        from: None,
        direction: Direction::Ascending,
        count: 100,
        level: ReadLevel::Linearizable,
    };
    assert_eq!(check(&request()), Ok(expected));
}

#[test]
fn the_boundary_is_required() {
    let unnamed = v1::GetEventsRequest { boundary: String::new(), ..request() };
    assert_invalid(check(&unnamed), "boundary", "must not be empty");
    let with_nul = v1::GetEventsRequest { boundary: "a\0".to_owned(), ..request() };
    assert_invalid(check(&with_nul), "boundary", "NUL");
}

#[test]
fn the_count_is_at_least_1_and_at_most_the_limit() {
    let count = |count| check(&v1::GetEventsRequest { count, ..request() }).map(|read| read.count);
    assert_invalid(count(0), "count", "at least 1");
    assert_eq!(count(1), Ok(1));
    assert_eq!(count(10_000), Ok(10_000));
    assert_over_limit(count(10_001), "max_count", 10_000, 10_001);
    assert_over_limit(count(u32::MAX), "max_count", 10_000, u32::MAX.into());
}

#[test]
fn a_read_begins_at_a_place_in_the_boundary() {
    let from = |from| check(&v1::GetEventsRequest { from_position: Some(from), ..request() });
    for (commit, prepare) in [(0, 0), (0, 5), (7, 0), (i64::MAX, i64::MAX)] {
        let expected = Position { commit_position: commit, prepare_position: prepare };
        assert_eq!(from(position(commit, prepare)).map(|read| read.from), Ok(Some(expected)));
    }
    for (commit, prepare) in [(-1, -1), (-1, 0), (0, -1), (i64::MIN, 5)] {
        assert_invalid(from(position(commit, prepare)), "from_position", "at least 0");
    }
}

#[test]
fn directions_are_those_of_the_protocol() {
    let direction =
        |direction| check(&v1::GetEventsRequest { direction, ..request() }).map(|read| read.direction);
    assert_eq!(direction(0), Ok(Direction::Ascending));
    assert_eq!(direction(1), Ok(Direction::Ascending));
    assert_eq!(direction(2), Ok(Direction::Descending));
    assert_invalid(direction(3), "direction", "3 is no direction");
    assert_invalid(direction(-1), "direction", "-1 is no direction");
}

#[test]
fn every_level_of_freshness_is_taken() {
    use v1::read_consistency::Level;
    assert_eq!(check_level(None), Ok(ReadLevel::Linearizable));
    assert_eq!(check_level(Some(Level::Linearizable(v1::Linearizable {}))), Ok(ReadLevel::Linearizable));
    assert_eq!(check_level(Some(Level::Local(v1::Local {}))), Ok(ReadLevel::Local));
    let wanted = Position { commit_position: 7, prepare_position: 3 };
    assert_eq!(check_level(Some(Level::AtLeast(position(7, 3)))), Ok(ReadLevel::AtLeast(wanted)));
}

#[test]
fn a_position_to_wait_for_may_be_that_of_no_match() {
    use v1::read_consistency::Level;
    let at_least = |commit, prepare| check_level(Some(Level::AtLeast(position(commit, prepare))));
    assert_eq!(at_least(-1, -1), Ok(ReadLevel::AtLeast(Position::NONE)));
    assert_eq!(at_least(0, 0), Ok(ReadLevel::AtLeast(Position::START)));
    for (commit, prepare) in [(-1, 0), (0, -1), (-2, -2), (i64::MIN, i64::MIN)] {
        assert_invalid(at_least(commit, prepare), "consistency.at_least", "(-1,-1)");
    }
}

#[test]
fn queries_are_not_supported() {
    let queried = v1::GetEventsRequest { query: Some(v1::Query::default()), ..request() };
    assert_not_supported(check(&queried), "query");
}
