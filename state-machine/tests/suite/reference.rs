//! A naive reference of the state machine: lists, searched from end to end, without keys, rows or caches.

use tidemark_state_machine::{
    AppendOutcome, AppendRejection, Boundary, BoundaryState, Command, CreateBoundaryOutcome,
    CreateBoundaryRejection, Outcome,
    command::{AppendRequest, BoundaryDefinition, CreateBoundary, Due},
    outcome::{DELAY_MS_MAX, WrittenEvents},
};
use tidemark_storage::{BoundaryHash, EventId, Position};

const DAY_MS: u64 = 86_400_000;

#[derive(Clone, Debug, PartialEq)]
pub struct RefEvent {
    pub boundary: BoundaryHash,
    pub bucket: u64,
    pub event_id: u64,
    pub appended_at_ms: u64,
    pub happened_at_ms: u64,
    pub expires_at_ms: Option<u64>,
    pub first_of_save: Position,
    pub stored: bytes::Bytes,
}

impl RefEvent {
    pub fn position(&self) -> Position {
        Position { commit_position: self.bucket as i64, prepare_position: self.event_id as i64 }
    }
}

#[derive(Clone, Debug)]
pub struct RefSave {
    pub boundary: BoundaryHash,
    pub key_hash: [u8; 16],
    pub request_digest: [u8; 32],
    pub written: WrittenEvents,
    pub expires_at_ms: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Reference {
    pub clock_ms: u64,
    pub last_id: u64,
    pub boundaries: Vec<Boundary>,
    pub events: Vec<RefEvent>,
    pub saves: Vec<RefSave>,
}

impl Reference {
    pub fn apply(&mut self, command: &Command) -> Outcome {
        match command {
            Command::Tick(tick) => {
                self.clock_ms = self.clock_ms.max(tick.time_ms);
                Outcome::Ticked { clock_ms: self.clock_ms }
            }
            Command::Digest(digest) => Outcome::Digest { digest_id: digest.digest_id },
            Command::CreateBoundary(create) => {
                self.clock_ms = self.clock_ms.max(create.time_ms);
                if create.event_id.get() <= self.last_id {
                    return self.stale();
                }
                self.last_id = create.event_id.get();
                Outcome::CreateBoundary(self.create(create))
            }
            Command::AppendBatch(batch) => {
                self.clock_ms = self.clock_ms.max(batch.time_ms);
                if batch.first_event_id.get() <= self.last_id {
                    return self.stale();
                }
                let mut next = batch.first_event_id.get();
                let mut outcomes = Vec::new();
                for request in &batch.requests {
                    outcomes.push(self.append(request, next));
                    for _ in &request.events {
                        self.last_id = next;
                        next += 1;
                    }
                }
                Outcome::AppendBatch(outcomes)
            }
        }
    }

    /// The positions that a reader of the boundary can see, ascending.
    pub fn visible(&self, boundary: &Boundary) -> Vec<Position> {
        let bucket = self.clock_ms / boundary.definition.time_bucket_ms;
        let mut visible: Vec<Position> = self
            .events
            .iter()
            .filter(|event| event.boundary == boundary.hash())
            .filter(|event| event.bucket <= bucket && event.expires_at_ms.is_none_or(|at| at > self.clock_ms))
            .map(RefEvent::position)
            .collect();
        visible.sort();
        visible
    }

    /// The save that a key stands for now.
    pub fn save(&self, boundary: BoundaryHash, key_hash: [u8; 16]) -> Option<&RefSave> {
        self.saves.iter().find(|save| {
            save.boundary == boundary && save.key_hash == key_hash && save.expires_at_ms > self.clock_ms
        })
    }

    fn stale(&self) -> Outcome {
        Outcome::StaleBatch { last_id: EventId::new(self.last_id).expect("in range") }
    }

    fn create(&mut self, create: &CreateBoundary) -> CreateBoundaryOutcome {
        let wanted = &create.definition;
        let name = &wanted.name;
        let definition = BoundaryDefinition {
            time_bucket_ms: if wanted.time_bucket_ms == 0 { 1 } else { wanted.time_bucket_ms },
            idempotency_retention_ms: match wanted.idempotency_retention_ms {
                0 => DAY_MS,
                retention => retention,
            },
            ..wanted.clone()
        };
        if name.starts_with(|first: char| first.is_ascii_digit()) {
            return CreateBoundaryOutcome::Rejected(CreateBoundaryRejection::InvalidName);
        }
        if let Some(existing) = self.boundaries.iter().find(|boundary| boundary.definition.name == *name) {
            return if existing.definition == definition {
                CreateBoundaryOutcome::AlreadyExists(existing.clone())
            } else {
                CreateBoundaryOutcome::Rejected(CreateBoundaryRejection::BoundaryExists(existing.clone()))
            };
        }
        let boundary = Boundary {
            definition,
            incarnation: create.event_id,
            created_at_ms: self.clock_ms,
            state: BoundaryState::Active,
        };
        self.boundaries.push(boundary.clone());
        CreateBoundaryOutcome::Created(boundary)
    }

    fn append(&mut self, request: &AppendRequest, first_id: u64) -> AppendOutcome {
        let Some(boundary) = self.boundaries.iter().find(|known| known.hash() == request.boundary).cloned()
        else {
            return AppendOutcome::Rejected(AppendRejection::BoundaryUnknown);
        };
        if boundary.incarnation != request.incarnation {
            let incarnation = boundary.incarnation;
            return AppendOutcome::Rejected(AppendRejection::BoundaryRecreated { incarnation });
        }
        if request.events.is_empty() {
            return AppendOutcome::Rejected(AppendRejection::NoEvents);
        }
        if let Some(idempotency) = &request.idempotency
            && let Some(save) = self.save(request.boundary, idempotency.key_hash)
        {
            return if save.request_digest == idempotency.request_digest {
                AppendOutcome::AlreadyApplied(save.written)
            } else {
                AppendOutcome::Rejected(AppendRejection::IdempotencyKeyReused)
            };
        }
        let mut placed = Vec::new();
        for (index, event) in request.events.iter().enumerate() {
            let Some((bucket, happened_at_ms)) = self.place(event.due, boundary.definition.time_bucket_ms)
            else {
                let event_index = index as u32;
                return AppendOutcome::Rejected(AppendRejection::DueTooFarAhead { event_index });
            };
            placed.push(RefEvent {
                boundary: request.boundary,
                bucket,
                event_id: first_id + index as u64,
                appended_at_ms: self.clock_ms,
                happened_at_ms,
                expires_at_ms: event.ttl_ms.map(|ttl| happened_at_ms + ttl.get()),
                first_of_save: Position::START,
                stored: event.stored.clone(),
            });
        }
        let first = placed[0].position();
        placed.iter_mut().for_each(|event| event.first_of_save = first);
        let written = WrittenEvents { first, last: placed[placed.len() - 1].position() };
        self.events.extend(placed);
        if let Some(idempotency) = &request.idempotency {
            self.saves
                .retain(|save| save.boundary != request.boundary || save.key_hash != idempotency.key_hash);
            self.saves.push(RefSave {
                boundary: request.boundary,
                key_hash: idempotency.key_hash,
                request_digest: idempotency.request_digest,
                written,
                expires_at_ms: self.clock_ms + boundary.definition.idempotency_retention_ms,
            });
        }
        AppendOutcome::Written(written)
    }

    /// Bucket and moment of happening; `None` if that is too far ahead.
    fn place(&self, due: Due, width: u64) -> Option<(u64, u64)> {
        let fires_at_ms = match due {
            Due::Now => self.clock_ms,
            Due::After { delay_ms } => self.clock_ms.checked_add(delay_ms)?,
            Due::At { time_ms } => time_ms,
        };
        if fires_at_ms <= self.clock_ms {
            return Some((self.clock_ms / width, self.clock_ms));
        }
        if fires_at_ms > self.clock_ms + DELAY_MS_MAX {
            return None;
        }
        let rounded_up = fires_at_ms / width + u64::from(!fires_at_ms.is_multiple_of(width));
        Some((rounded_up, rounded_up * width))
    }
}
