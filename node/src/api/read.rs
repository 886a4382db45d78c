//! Reads: a barrier, a position to wait for, or neither; then one page from one snapshot.

use std::sync::Arc;

use tidemark_proto::{ApiError, v1};
use tidemark_raft::Leadership;
use tidemark_state_machine::{
    Boundary, BoundaryState, Event, Fault,
    read::{self, Page, PageRequest},
};
use tidemark_storage::{Direction, Position, contract::Db};
use tokio::time::Instant;

use super::{
    Api, event, outcome,
    validate::{self, ReadLevel, ValidRead},
};

/// A page and what the view that it comes from had.
struct View {
    page: Option<Page>,
    applied_index: u64,
    clock_ms: u64,
    last_event_id: u64,
}

impl Api {
    /// One page of events.
    ///
    /// # Errors
    ///
    /// [`ApiError`]: of the request, of the boundary, or because the wanted freshness was not there in time.
    pub async fn get_events(
        &self,
        request: v1::GetEventsRequest,
        deadline: Instant,
    ) -> Result<v1::GetEventsResponse, ApiError> {
        let read = validate::get_events(&request, &self.limits)?;
        self.fresh_enough(&read, deadline).await?;
        let mut view = self.view(&read).await?;
        if view.page.is_none() && read.level != ReadLevel::Local {
            // Unknown here may be unknown so far.
            self.raft.read_barrier(deadline).await.map_err(outcome::barrier)?;
            view = self.view(&read).await?;
        }
        let page =
            view.page.take().ok_or_else(|| ApiError::BoundaryUnknown { boundary: read.boundary.clone() })?;
        let state = self.read_state(&view);
        answer(page, &read, state).map_err(|fault| outcome::fault(&fault))
    }

    async fn fresh_enough(&self, read: &ValidRead, deadline: Instant) -> Result<(), ApiError> {
        match read.level {
            ReadLevel::Linearizable => {
                self.serving(deadline).await?;
                self.raft.read_barrier(deadline).await.map_err(outcome::barrier)
            }
            ReadLevel::AtLeast(position) => {
                let wanted = u64::try_from(position.prepare_position).unwrap_or(0);
                let mut progress = self.raft.progress();
                let reached = progress.wait_for(|progress| progress.last_event_id >= wanted);
                match tokio::time::timeout_at(deadline, reached).await {
                    Ok(Ok(_)) => Ok(()),
                    Ok(Err(_)) => Err(ApiError::Stopping),
                    Err(_) => Err(ApiError::NotCaughtUp {
                        applied_event_id: self.raft.progress().borrow().last_event_id,
                        wanted_event_id: wanted,
                    }),
                }
            }
            ReadLevel::Local => Ok(()),
        }
    }

    async fn view(&self, read: &ValidRead) -> Result<View, ApiError> {
        let applied_index = self.raft.progress().borrow().index();
        let db = self.raft.database();
        let request = PageRequest {
            from: read.from,
            direction: read.direction,
            count_max: read.count as usize,
            bytes_max: usize::try_from(self.limits.max_page_bytes).unwrap_or(usize::MAX),
            scan_rows_max: usize::try_from(self.limits.read_scan_keys).unwrap_or(usize::MAX),
        };
        let name = read.boundary.clone();
        let view = self.environment.blocking(move || read_view(&db, &name, &request, applied_index)).await;
        view.map_err(|fault| outcome::fault(&fault))
    }

    fn read_state(&self, view: &View) -> v1::ReadState {
        let leads =
            matches!(*self.raft.leadership().borrow(), Leadership::Ready { .. } | Leadership::Preparing);
        let contact = self.raft.contacts().since_leader_contact();
        v1::ReadState {
            node_id: self.raft.identity().node_id,
            applied_index: view.applied_index,
            applied_event_id: view.last_event_id,
            clock_ms: view.clock_ms,
            leader_contact_ms: if leads {
                Some(0)
            } else {
                contact.map(|contact| u64::try_from(contact.as_millis()).unwrap_or(u64::MAX))
            },
        }
    }
}

fn read_view(db: &Arc<dyn Db>, name: &str, request: &PageRequest, applied_index: u64) -> Result<View, Fault> {
    let snapshot = db.snapshot()?;
    let boundary: Option<Boundary> = read::boundary_by_name(&*snapshot, name)?;
    let boundary = boundary.filter(|boundary| boundary.state != BoundaryState::Deleted);
    let page = boundary.map(|boundary| read::read_events(&*snapshot, &boundary, request)).transpose()?;
    Ok(View {
        page,
        // Taken before the snapshot, so the snapshot has at least this.
        applied_index,
        clock_ms: read::clock_ms(&*snapshot)?,
        last_event_id: read::last_event_id(&*snapshot)?.get(),
    })
}

fn answer(page: Page, read: &ValidRead, state: v1::ReadState) -> Result<v1::GetEventsResponse, Fault> {
    let newest = match read.direction {
        Direction::Ascending => page.events.last(),
        Direction::Descending => page.events.first(),
    };
    let context = newest.map_or(Position::NONE, |(key, _)| key.position());
    let events = page
        .events
        .into_iter()
        .map(|(key, value)| event::to_message(Event::decode(key, value)?))
        .collect::<Result<Vec<_>, Fault>>()?;
    Ok(v1::GetEventsResponse {
        events,
        has_more: page.next.is_some(),
        next_position: page.next.map(outcome::position),
        context_position: Some(outcome::position(context)),
        read_state: Some(state),
    })
}
