//! Boundaries: create, list, and what this node remembers about them.

use std::collections::HashMap;

use parking_lot::RwLock;
use tidemark_proto::{ApiError, v1};
use tidemark_state_machine::{Boundary, BoundaryState, command::BoundaryDefinition, read};
use tidemark_storage::EventId;
use tokio::time::Instant;

use super::{Api, outcome, validate};
use crate::leader::{Answer, Work};

/// Incarnations of boundaries that this node has seen. A definition never changes, and apply refuses an
/// incarnation that is gone, so an entry may be outdated but never does harm.
#[derive(Default)]
pub(super) struct Registry {
    incarnations: RwLock<HashMap<String, EventId>>,
}

/// Boundaries that are remembered; above it the memory starts anew.
const REMEMBERED: usize = 65_536;

impl Registry {
    pub(super) fn forget(&self, name: &str) {
        self.incarnations.write().remove(name);
    }

    fn get(&self, name: &str) -> Option<EventId> {
        self.incarnations.read().get(name).copied()
    }

    fn remember(&self, name: &str, incarnation: EventId) {
        let mut incarnations = self.incarnations.write();
        if incarnations.len() >= REMEMBERED {
            incarnations.clear();
        }
        incarnations.insert(name.to_owned(), incarnation);
    }
}

/// Where knowledge about a boundary comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// From memory or from this replica, which may be behind.
    Before,
    /// From a read that saw everything acknowledged before the request came.
    ByBarrier,
}

impl Known {
    pub(super) fn may_be_outdated(self) -> bool {
        self == Self::Before
    }
}

/// Boundaries read at a time when all are listed.
const LIST_PAGE: usize = 1_000;

impl Api {
    /// Creates a boundary; the same name and definition again is no error.
    ///
    /// # Errors
    ///
    /// [`ApiError`]; only `OutcomeUnknown` means that it may have been created.
    pub async fn create_boundary(
        &self,
        request: v1::CreateBoundaryRequest,
        deadline: Instant,
    ) -> Result<v1::CreateBoundaryResponse, ApiError> {
        let missing =
            || ApiError::InvalidRequest { field: "definition".to_owned(), why: "it is missing".to_owned() };
        let definition = validate::boundary_definition(request.definition.as_ref().ok_or_else(missing)?)?;
        self.serving(deadline).await?;
        let name = definition.name.clone();
        let work = Work::CreateBoundary(BoundaryDefinition::from_record(definition));
        let answer = self.router.submit(work, deadline).await;
        match answer.map_err(|error| outcome::with_boundary(error, &name))? {
            Answer::CreateBoundary(created) => {
                let boundary = outcome::created(created, &name)?;
                Ok(v1::CreateBoundaryResponse { boundary: Some(to_message(boundary)) })
            }
            Answer::Refused(error) => Err(outcome::with_boundary(error, &name)),
            Answer::Append(_) | Answer::Digest(_) => {
                Err(ApiError::Internal { what: "match an answer to the creation of a boundary".to_owned() })
            }
        }
    }

    /// All boundaries, ascending by name.
    ///
    /// # Errors
    ///
    /// [`ApiError`] when the list cannot be shown to be current.
    pub async fn list_boundaries(&self, deadline: Instant) -> Result<v1::ListBoundariesResponse, ApiError> {
        self.serving(deadline).await?;
        self.raft.read_barrier(deadline).await.map_err(outcome::barrier)?;
        let db = self.raft.database();
        let listed = self.environment.blocking(move || {
            let snapshot = db.snapshot()?;
            let (mut all, mut from) = (Vec::new(), None);
            loop {
                let page = read::boundaries(&*snapshot, from, LIST_PAGE)?;
                all.extend(page.boundaries);
                match page.next {
                    Some(next) => from = Some(next),
                    None => return Ok::<_, tidemark_state_machine::Fault>(all),
                }
            }
        });
        let mut boundaries = listed.await.map_err(|fault| outcome::fault(&fault))?;
        boundaries.retain(|boundary| boundary.state != BoundaryState::Deleted);
        boundaries.sort_by(|a, b| a.definition.name.cmp(&b.definition.name));
        Ok(v1::ListBoundariesResponse { boundaries: boundaries.into_iter().map(to_message).collect() })
    }

    /// The incarnation of a boundary that takes events.
    pub(super) async fn incarnation(
        &self,
        name: &str,
        deadline: Instant,
    ) -> Result<(EventId, Known), ApiError> {
        if let Some(incarnation) = self.registry.get(name) {
            return Ok((incarnation, Known::Before));
        }
        if let Some(boundary) = self.look_up(name).await? {
            self.registry.remember(name, boundary.incarnation);
            return Ok((boundary.incarnation, Known::Before));
        }
        // This replica may be behind one that has just created the boundary.
        self.raft.read_barrier(deadline).await.map_err(outcome::barrier)?;
        let boundary = self.look_up(name).await?;
        let boundary = boundary.ok_or_else(|| ApiError::BoundaryUnknown { boundary: name.to_owned() })?;
        self.registry.remember(name, boundary.incarnation);
        Ok((boundary.incarnation, Known::ByBarrier))
    }

    async fn look_up(&self, name: &str) -> Result<Option<Boundary>, ApiError> {
        let (db, name) = (self.raft.database(), name.to_owned());
        let found = self.environment.blocking(move || read::boundary_by_name(&*db, &name)).await;
        let found = found.map_err(|fault| outcome::fault(&fault))?;
        Ok(found.filter(|boundary| boundary.state != BoundaryState::Deleted))
    }
}

fn to_message(boundary: Boundary) -> v1::Boundary {
    let state = match boundary.state {
        BoundaryState::Provisioning => v1::BoundaryState::Provisioning,
        BoundaryState::Active => v1::BoundaryState::Active,
        BoundaryState::Failed => v1::BoundaryState::Failed,
        BoundaryState::Deleted => v1::BoundaryState::Inactive,
    };
    let definition = boundary.definition;
    v1::Boundary {
        definition: Some(v1::BoundaryDefinition {
            name: definition.name,
            description: definition.description,
            placement: Some(v1::Placement { group: definition.placement_group }),
            time_bucket_ms: definition.time_bucket_ms,
            retention: None,
            idempotency_retention_ms: definition.idempotency_retention_ms,
        }),
        state: state.into(),
        incarnation: boundary.incarnation.get(),
        created_at: Some(super::event::timestamp(boundary.created_at_ms)),
        failure: String::new(),
    }
}
