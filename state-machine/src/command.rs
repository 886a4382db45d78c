//! The commands of the replicated log, typed, and their conversion from and to `record::Command`.
//!
//! The leader encodes a command once; log, peers and apply use those bytes. Decoding copies no payload: the
//! stored bytes of an event point into the entry. What a command must not hold is refused here, so that apply
//! finds valid values only.

use std::num::NonZeroU64;

use bytes::Bytes;
use prost::Message;
use tidemark_proto::record;
use tidemark_storage::{BoundaryHash, EventId, tables::KEY_HASH_LENGTH};

use crate::fault::{Fault, Malformed};

/// The first feature level: append batches, ticks, boundaries and digests.
pub const FEATURE_LEVEL_FIRST: u32 = 1;

/// The newest feature level that this build can apply.
pub const FEATURE_LEVEL: u32 = FEATURE_LEVEL_FIRST;

/// Largest time that an entry may carry, in milliseconds. Far above every real clock; it leaves room for delays
/// and retentions to be added without overflow.
pub const TIME_MS_MAX: u64 = i64::MAX as u64 / 2;

/// One command of the replicated log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Saves under one stamp of the leader.
    AppendBatch(AppendBatch),
    /// Moves the replicated clock.
    Tick(Tick),
    /// Creates a boundary.
    CreateBoundary(CreateBoundary),
    /// Makes every replica digest its state at this entry.
    Digest(Digest),
}

/// Saves under one stamp of the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendBatch {
    /// The leader's stamp, milliseconds since 1970; at most [`TIME_MS_MAX`].
    pub time_ms: u64,
    /// Id of the first event. All events of the batch take ids in order from here, rejected ones included.
    pub first_event_id: EventId,
    /// The saves, in queue order.
    pub requests: Vec<AppendRequest>,
}

/// One save: all of its events or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendRequest {
    /// The boundary that is written to.
    pub boundary: BoundaryHash,
    /// The incarnation of the boundary that the request was checked against.
    pub incarnation: EventId,
    /// The events, in the order of the save.
    pub events: Vec<EventToAppend>,
    /// Present if the client gave an idempotency key.
    pub idempotency: Option<Idempotency>,
}

/// One event of a save.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventToAppend {
    /// Encoded `StoredEvent`, fields 1 to 15.
    pub stored: Bytes,
    /// When the event happens.
    pub due: Due,
    /// Lifetime in milliseconds, counted from the moment at which the event happens; `None` is for ever.
    pub ttl_ms: Option<NonZeroU64>,
}

/// When an event happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// With its entry.
    Now,
    /// This many milliseconds after its entry; 0 means with its entry.
    After {
        /// The delay.
        delay_ms: u64,
    },
    /// At this time, milliseconds since 1970; the past means with its entry.
    At {
        /// The time.
        time_ms: u64,
    },
}

/// What identifies a save that may be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idempotency {
    /// The first 16 bytes of BLAKE3 of the key, as in [`tidemark_storage::tables::IdempotencyKey::of`].
    pub key_hash: [u8; KEY_HASH_LENGTH],
    /// BLAKE3 over the request's events and consistency.
    pub request_digest: [u8; 32],
}

/// Moves the replicated clock when something waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    /// The leader's stamp, milliseconds since 1970; at most [`TIME_MS_MAX`].
    pub time_ms: u64,
}

/// Creates a boundary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateBoundary {
    /// The leader's stamp, milliseconds since 1970; at most [`TIME_MS_MAX`].
    pub time_ms: u64,
    /// Consumed whether or not the boundary is created; the incarnation of the created one.
    pub event_id: EventId,
    /// What to create.
    pub definition: BoundaryDefinition,
}

/// What a client says about a boundary; immutable once it exists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BoundaryDefinition {
    /// The name.
    pub name: String,
    /// Free text for people.
    pub description: String,
    /// Width of a time bucket in milliseconds; 0 means 1.
    pub time_bucket_ms: u64,
    /// The group that orders the boundary.
    pub placement_group: u32,
    /// How long idempotency keys are remembered, in milliseconds of replicated time; 0 means 24 hours.
    pub idempotency_retention_ms: u64,
}

/// Makes every replica digest its state at this entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    /// Chosen by the proposer; names the report.
    pub digest_id: u64,
}

impl Command {
    /// The feature level that a replica must support to apply this command.
    pub fn feature_level(&self) -> u32 {
        match self {
            Self::AppendBatch(_) | Self::Tick(_) | Self::CreateBoundary(_) | Self::Digest(_) => {
                FEATURE_LEVEL_FIRST
            }
        }
    }

    /// Encodes the command for the log of group `group_id`.
    pub fn encode(&self, group_id: u32) -> Bytes {
        let kind = match self {
            Self::AppendBatch(batch) => record::command::Kind::AppendBatch(batch.to_record()),
            Self::Tick(tick) => record::command::Kind::Tick(record::Tick { time_ms: tick.time_ms }),
            Self::CreateBoundary(create) => record::command::Kind::CreateBoundary(create.to_record()),
            Self::Digest(digest) => {
                record::command::Kind::Digest(record::Digest { digest_id: digest.digest_id })
            }
        };
        let command = record::Command { feature_level: self.feature_level(), group_id, kind: Some(kind) };
        command.encode_to_vec().into()
    }

    /// Decodes an entry of the log of group `group_id`. Payloads point into `entry`.
    ///
    /// Every error is a fault: an entry that this build cannot apply must stop it, for skipping the entry would
    /// make the replicas differ.
    pub fn decode(entry: Bytes, group_id: u32) -> Result<Self, Fault> {
        let command = record::Command::decode(entry).map_err(|source| Fault::Undecodable { source })?;
        if command.feature_level > FEATURE_LEVEL {
            return Err(Fault::UnknownCommand {
                level_needed: command.feature_level,
                level_supported: FEATURE_LEVEL,
            });
        }
        if command.group_id != group_id {
            return Err(Fault::ForeignGroup { expected: group_id, found: command.group_id });
        }
        Self::from_kind(command.kind.ok_or(Malformed::NoKind { feature_level: command.feature_level })?)
    }

    fn from_kind(kind: record::command::Kind) -> Result<Self, Fault> {
        Ok(match kind {
            record::command::Kind::AppendBatch(batch) => Self::AppendBatch(AppendBatch::from_record(batch)?),
            record::command::Kind::Tick(tick) => Self::Tick(Tick { time_ms: checked_time(tick.time_ms)? }),
            record::command::Kind::CreateBoundary(create) => {
                Self::CreateBoundary(CreateBoundary::from_record(create)?)
            }
            record::command::Kind::Digest(digest) => Self::Digest(Digest { digest_id: digest.digest_id }),
        })
    }
}

impl AppendBatch {
    /// The number of ids that the batch takes.
    pub fn event_count(&self) -> u64 {
        self.requests.iter().map(|request| request.events.len() as u64).sum()
    }

    fn to_record(&self) -> record::AppendBatch {
        record::AppendBatch {
            time_ms: self.time_ms,
            first_event_id: self.first_event_id.get(),
            requests: self.requests.iter().map(AppendRequest::to_record).collect(),
        }
    }

    fn from_record(batch: record::AppendBatch) -> Result<Self, Malformed> {
        let requests =
            batch.requests.into_iter().map(AppendRequest::from_record).collect::<Result<Vec<_>, _>>()?;
        let batch = Self {
            time_ms: checked_time(batch.time_ms)?,
            first_event_id: checked_id(batch.first_event_id)?,
            requests,
        };
        // Also behind the last event there is an id, so that apply can step past the batch.
        batch.first_event_id.checked_add(batch.event_count()).ok_or(Malformed::EventIdTooLarge)?;
        Ok(batch)
    }
}

impl AppendRequest {
    /// The request as it is forwarded and logged.
    pub fn to_record(&self) -> record::AppendRequest {
        record::AppendRequest {
            boundary_hash: self.boundary.0,
            incarnation: self.incarnation.get(),
            events: self.events.iter().map(EventToAppend::to_record).collect(),
            idempotency: self.idempotency.map(|idempotency| record::Idempotency {
                key_hash: Bytes::copy_from_slice(&idempotency.key_hash),
                request_digest: Bytes::copy_from_slice(&idempotency.request_digest),
            }),
        }
    }

    /// Reads a forwarded or logged request. A leader refuses what is malformed before it proposes it: in the log
    /// it would stop every replica.
    pub fn from_record(request: record::AppendRequest) -> Result<Self, Malformed> {
        Ok(Self {
            boundary: BoundaryHash(request.boundary_hash),
            incarnation: checked_id(request.incarnation)?,
            events: request
                .events
                .into_iter()
                .map(EventToAppend::from_record)
                .collect::<Result<Vec<_>, _>>()?,
            idempotency: request.idempotency.map(Idempotency::from_record).transpose()?,
        })
    }
}

impl EventToAppend {
    fn to_record(&self) -> record::EventToAppend {
        let (delay_ms, deliver_at_ms) = match self.due {
            Due::Now => (None, None),
            Due::After { delay_ms } => (Some(delay_ms), None),
            Due::At { time_ms } => (None, Some(time_ms)),
        };
        record::EventToAppend {
            stored: self.stored.clone(),
            delay_ms,
            deliver_at_ms,
            ttl_ms: self.ttl_ms.map(NonZeroU64::get),
        }
    }

    fn from_record(event: record::EventToAppend) -> Result<Self, Malformed> {
        let due = match (event.delay_ms, event.deliver_at_ms) {
            (None, None) => Due::Now,
            (Some(delay_ms), None) => Due::After { delay_ms },
            (None, Some(time_ms)) => Due::At { time_ms },
            (Some(_), Some(_)) => return Err(Malformed::DelayAndDeliverAt),
        };
        let ttl_ms = match event.ttl_ms {
            None => None,
            Some(ttl_ms) => Some(NonZeroU64::new(ttl_ms).ok_or(Malformed::TtlZero)?),
        };
        Ok(Self { stored: event.stored, due, ttl_ms })
    }
}

impl Idempotency {
    fn from_record(idempotency: record::Idempotency) -> Result<Self, Malformed> {
        let key_hash = idempotency.key_hash.as_ref().try_into().map_err(|_| Malformed::KeyHashLength)?;
        let request_digest =
            idempotency.request_digest.as_ref().try_into().map_err(|_| Malformed::RequestDigestLength)?;
        Ok(Self { key_hash, request_digest })
    }
}

impl BoundaryDefinition {
    /// What a forwarded or logged command wants created.
    pub fn from_record(create: record::CreateBoundary) -> Self {
        Self {
            name: create.name,
            description: create.description,
            time_bucket_ms: create.time_bucket_ms,
            placement_group: create.placement_group,
            idempotency_retention_ms: create.idempotency_retention_ms,
        }
    }
}

impl CreateBoundary {
    fn to_record(&self) -> record::CreateBoundary {
        let definition = &self.definition;
        record::CreateBoundary {
            time_ms: self.time_ms,
            event_id: self.event_id.get(),
            name: definition.name.clone(),
            description: definition.description.clone(),
            time_bucket_ms: definition.time_bucket_ms,
            placement_group: definition.placement_group,
            idempotency_retention_ms: definition.idempotency_retention_ms,
        }
    }

    fn from_record(create: record::CreateBoundary) -> Result<Self, Malformed> {
        Ok(Self {
            time_ms: checked_time(create.time_ms)?,
            event_id: checked_id(create.event_id)?,
            definition: BoundaryDefinition::from_record(create),
        })
    }
}

fn checked_time(time_ms: u64) -> Result<u64, Malformed> {
    if time_ms <= TIME_MS_MAX { Ok(time_ms) } else { Err(Malformed::TimeTooLarge { time_ms }) }
}

fn checked_id(event_id: u64) -> Result<EventId, Malformed> {
    EventId::new(event_id).map_err(|_| Malformed::EventIdTooLarge)
}
