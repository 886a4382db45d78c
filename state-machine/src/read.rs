//! Reads over one view of the state: a snapshot, an overlay or the newest state of a database.
//!
//! All times are the replicated clock of that same view, so the answers of one view fit together and do not
//! change while it lives. An event is visible when its bucket is not above the clock's and it has not expired.

use std::ops::ControlFlow;

use bytes::Bytes;
use tidemark_storage::{
    BoundaryHash, Direction, EventId, EventKey, KeyRange, Position, Read,
    event_repository::{self, ClockMs},
    key,
    tables::{self, IdempotencyKey, KEY_HASH_LENGTH},
};

use crate::{
    boundary::Boundary,
    fault::Fault,
    idempotency::{self, RecordedSave},
    stored_event,
};

/// The replicated clock, milliseconds since 1970; 0 before the first stamped entry.
pub fn clock_ms(source: &(impl Read + ?Sized)) -> Result<u64, Fault> {
    let ClockMs(clock_ms) = event_repository::read_clock(source)?;
    Ok(clock_ms)
}

/// The last assigned event id; 0 if there is none yet.
pub fn last_event_id(source: &(impl Read + ?Sized)) -> Result<EventId, Fault> {
    Ok(event_repository::read_last_id(source)?)
}

/// The encoded log id of the last applied entry.
pub fn applied(source: &(impl Read + ?Sized)) -> Result<Option<Bytes>, Fault> {
    Ok(source.get(&tables::raft_applied_key())?)
}

/// The encoded membership.
pub fn membership(source: &(impl Read + ?Sized)) -> Result<Option<Bytes>, Fault> {
    Ok(source.get(&tables::raft_membership_key())?)
}

/// The boundary with this hash.
pub fn boundary(source: &(impl Read + ?Sized), hash: BoundaryHash) -> Result<Option<Boundary>, Fault> {
    let physical = tables::boundary_key(hash);
    source.get(&physical)?.map(|value| Boundary::decode(&physical, &value)).transpose()
}

/// The boundary of this name.
pub fn boundary_by_name(source: &(impl Read + ?Sized), name: &str) -> Result<Option<Boundary>, Fault> {
    let found = boundary(source, BoundaryHash::of(name))?;
    // Another name may have this hash.
    Ok(found.filter(|boundary| boundary.definition.name == name))
}

/// Some of the boundaries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundaryPage {
    /// The boundaries, in the order of their hashes.
    pub boundaries: Vec<Boundary>,
    /// Where the next page begins; `None` if there is none.
    pub next: Option<BoundaryHash>,
}

/// At most `count_max` boundaries, whatever their state, from the hash `from` on, in the order of their hashes.
pub fn boundaries(
    source: &(impl Read + ?Sized),
    from: Option<BoundaryHash>,
    count_max: usize,
) -> Result<BoundaryPage, Fault> {
    let whole = tables::table_range(tables::BOUNDARIES);
    let range = KeyRange { lower: from.map(tables::boundary_key).or(whole.lower), upper: whole.upper };
    let mut page = BoundaryPage { boundaries: Vec::new(), next: None };
    let mut fault = None;
    source.scan(&range, Direction::Ascending, &mut |key, value| {
        let row = tables::parse_boundary_key(key).map_err(Fault::from);
        match row.and_then(|hash| Ok((hash, Boundary::decode(key, value)?))) {
            Ok((_, boundary)) if page.boundaries.len() < count_max => {
                page.boundaries.push(boundary);
                return ControlFlow::Continue(());
            }
            Ok((hash, _)) => page.next = Some(hash),
            Err(error) => fault = Some(error),
        }
        ControlFlow::Break(())
    })?;
    fault.map_or(Ok(page), Err)
}

/// The save that was accepted under an idempotency key of `boundary`, unless the key has expired.
pub fn recorded_save(
    source: &(impl Read + ?Sized),
    boundary: BoundaryHash,
    key_hash: [u8; KEY_HASH_LENGTH],
) -> Result<Option<RecordedSave>, Fault> {
    let clock_ms = clock_ms(source)?;
    let save = idempotency::lookup(source, &IdempotencyKey { boundary, key_hash })?;
    Ok(save.filter(|save| save.expires_at_ms > clock_ms))
}

/// Which events to read, and how many at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// The first position of the page, itself included; it need not be an event's. `None` is the oldest event
    /// when ascending, the newest visible one when descending.
    pub from: Option<Position>,
    /// Ascending is oldest first.
    pub direction: Direction,
    /// At most this many events.
    pub count_max: usize,
    /// At most this many bytes of values, except that one event always fits.
    pub bytes_max: usize,
    /// At most this many rows are looked at, expired ones included; 0 counts as 1, so that pages advance.
    pub scan_rows_max: usize,
}

/// Some of the visible events of a boundary, in the direction that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Keys and values; [`crate::Event::decode`] reads them.
    pub events: Vec<(EventKey, Bytes)>,
    /// Where the next page begins, itself included; `None` if nothing more is visible in this view. A page that
    /// ended at its scan limit has a next one even if it holds no event.
    pub next: Option<Position>,
    /// Bucket of the clock and last event id of the view. Whatever becomes visible later sorts after it, so an
    /// ascending reader whose `next` is `None` goes on right behind it.
    pub frontier: Position,
}

/// Reads a page of the visible events of `boundary`.
pub fn read_events(
    source: &(impl Read + ?Sized),
    boundary: &Boundary,
    request: &PageRequest,
) -> Result<Page, Fault> {
    let clock_ms = clock_ms(source)?;
    let clock_bucket = boundary.clock_bucket(clock_ms);
    let frontier = Position::new(clock_bucket, last_event_id(source)?);
    let mut page = PageBuilder {
        page: Page { events: Vec::new(), next: None, frontier },
        request,
        clock_ms,
        bytes: 0,
        rows: 0,
    };
    let range = visible_range(boundary.hash(), request, key::due_upper(boundary.hash(), clock_bucket));
    let mut fault = None;
    if !range.is_empty() {
        source.scan(&range, request.direction, &mut |key, value| {
            page.visit(key, value).unwrap_or_else(|error| {
                fault = Some(error);
                ControlFlow::Break(())
            })
        })?;
    }
    fault.map_or(Ok(page.page), Err)
}

/// The rows of the boundary that are not in a future bucket, from the page's first position on.
fn visible_range(boundary: BoundaryHash, request: &PageRequest, due_upper: Bytes) -> KeyRange {
    let lower = key::boundary_lower(boundary);
    match (request.direction, request.from) {
        (Direction::Ascending | Direction::Descending, None) => KeyRange::new(lower, due_upper),
        (Direction::Ascending, Some(from)) => KeyRange::new(key::position_lower(boundary, from), due_upper),
        (Direction::Descending, Some(from)) => {
            KeyRange::new(lower, key::position_upper(boundary, from).min(due_upper))
        }
    }
}

struct PageBuilder<'a> {
    page: Page,
    request: &'a PageRequest,
    clock_ms: u64,
    bytes: usize,
    rows: usize,
}

impl PageBuilder<'_> {
    fn visit(&mut self, physical_key: &[u8], value: &[u8]) -> Result<ControlFlow<()>, Fault> {
        let key = tables::parse_event_key(physical_key)?;
        if self.rows >= self.request.scan_rows_max.max(1) {
            return Ok(self.end_before(key));
        }
        self.rows += 1;
        let expires_at_ms = stored_event::expires_at_ms(physical_key, value)?;
        if expires_at_ms.is_some_and(|expires_at_ms| expires_at_ms <= self.clock_ms) {
            return Ok(ControlFlow::Continue(()));
        }
        if !self.has_room_for(value) {
            return Ok(self.end_before(key));
        }
        self.bytes += value.len();
        self.page.events.push((key, Bytes::copy_from_slice(value)));
        Ok(ControlFlow::Continue(()))
    }

    fn has_room_for(&self, value: &[u8]) -> bool {
        let count = self.page.events.len();
        count < self.request.count_max && (count == 0 || self.bytes + value.len() <= self.request.bytes_max)
    }

    fn end_before(&mut self, key: EventKey) -> ControlFlow<()> {
        self.page.next = Some(key.position());
        ControlFlow::Break(())
    }
}
