//! The replicated row of a boundary, typed.

use prost::Message;
use tidemark_proto::record;
use tidemark_storage::{BoundaryHash, Bucket, EventId, key};

use crate::{command::BoundaryDefinition, fault::Fault};

/// Length limit of a boundary's name in bytes.
pub const NAME_BYTES_MAX: usize = 63;

/// Length limit of a boundary's description in bytes.
pub const DESCRIPTION_BYTES_MAX: usize = 4_096;

/// Widest time bucket in milliseconds: 365 days. A scheduled event may be late by one bucket, so a wider one
/// serves nobody.
pub const TIME_BUCKET_MS_MAX: u64 = 365 * 24 * 60 * 60 * 1_000;

/// How long idempotency keys are remembered unless the definition says otherwise: 24 hours, in milliseconds.
pub const IDEMPOTENCY_RETENTION_MS_DEFAULT: u64 = 24 * 60 * 60 * 1_000;

/// How long idempotency keys can be remembered: 365 days, in milliseconds.
pub const IDEMPOTENCY_RETENTION_MS_MAX: u64 = 365 * 24 * 60 * 60 * 1_000;

/// A boundary as all replicas know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boundary {
    /// What was asked for, with the defaults filled in.
    pub definition: BoundaryDefinition,
    /// The event id consumed by its creation. Requests name it, so that none reaches a later boundary of the
    /// same name.
    pub incarnation: EventId,
    /// Replicated time of its creation, milliseconds since 1970.
    pub created_at_ms: u64,
    /// What it can do at present.
    pub state: BoundaryState,
}

/// What a boundary can do at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundaryState {
    /// It is being prepared.
    Provisioning,
    /// It takes events.
    Active,
    /// It could not be prepared.
    Failed,
    /// It is gone; its data is being removed.
    Deleted,
}

impl Boundary {
    /// The hash of the name.
    pub fn hash(&self) -> BoundaryHash {
        BoundaryHash::of(&self.definition.name)
    }

    /// The bucket that the replicated clock is in, for this boundary.
    pub fn clock_bucket(&self, clock_ms: u64) -> Bucket {
        key::bucket_now(clock_ms, self.definition.time_bucket_ms)
    }

    /// The row's value.
    pub fn encode(&self) -> Vec<u8> {
        record::BoundaryRow {
            name: self.definition.name.clone(),
            description: self.definition.description.clone(),
            time_bucket_ms: self.definition.time_bucket_ms,
            placement_group: self.definition.placement_group,
            idempotency_retention_ms: self.definition.idempotency_retention_ms,
            incarnation: self.incarnation.get(),
            created_at_ms: self.created_at_ms,
            state: self.state.to_record().into(),
        }
        .encode_to_vec()
    }

    /// Reads the row's value; `key` is named in the fault.
    pub fn decode(key: &[u8], value: &[u8]) -> Result<Self, Fault> {
        let corrupt = |source| Fault::CorruptRow { table: "boundaries", key: key.to_vec(), source };
        let row = record::BoundaryRow::decode(value).map_err(|source| corrupt(Some(source)))?;
        let state = BoundaryState::from_record(row.state()).ok_or_else(|| corrupt(None))?;
        if row.time_bucket_ms == 0 || row.time_bucket_ms > TIME_BUCKET_MS_MAX {
            return Err(corrupt(None));
        }
        Ok(Self {
            incarnation: EventId::new(row.incarnation).map_err(|_| corrupt(None))?,
            created_at_ms: row.created_at_ms,
            state,
            definition: BoundaryDefinition {
                name: row.name,
                description: row.description,
                time_bucket_ms: row.time_bucket_ms,
                placement_group: row.placement_group,
                idempotency_retention_ms: row.idempotency_retention_ms,
            },
        })
    }
}

impl BoundaryState {
    fn to_record(self) -> record::boundary_row::State {
        match self {
            Self::Provisioning => record::boundary_row::State::Provisioning,
            Self::Active => record::boundary_row::State::Active,
            Self::Failed => record::boundary_row::State::Failed,
            Self::Deleted => record::boundary_row::State::Deleted,
        }
    }

    fn from_record(state: record::boundary_row::State) -> Option<Self> {
        match state {
            record::boundary_row::State::Unspecified => None,
            record::boundary_row::State::Provisioning => Some(Self::Provisioning),
            record::boundary_row::State::Active => Some(Self::Active),
            record::boundary_row::State::Failed => Some(Self::Failed),
            record::boundary_row::State::Deleted => Some(Self::Deleted),
        }
    }
}

/// Whether `name` matches `^[A-Za-z_][A-Za-z0-9_]{0,62}$`.
pub fn is_valid_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let starts_well = bytes.first().is_some_and(|first| first.is_ascii_alphabetic() || *first == b'_');
    starts_well
        && bytes.len() <= NAME_BYTES_MAX
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boundary(state: BoundaryState) -> Boundary {
        Boundary {
            definition: BoundaryDefinition {
                name: "orders".into(),
                description: "all of them".into(),
                time_bucket_ms: 250,
                placement_group: 3,
                idempotency_retention_ms: 60_000,
            },
            incarnation: EventId::new(17).expect("in range"),
            created_at_ms: 99,
            state,
        }
    }

    #[test]
    fn a_row_round_trips_in_every_state() {
        for state in [
            BoundaryState::Provisioning,
            BoundaryState::Active,
            BoundaryState::Failed,
            BoundaryState::Deleted,
        ] {
            let row = boundary(state);
            assert_eq!(Boundary::decode(b"key", &row.encode()).expect("well formed"), row);
        }
    }

    #[test]
    fn a_row_without_state_or_width_is_corrupt() {
        let no_width = Boundary {
            definition: BoundaryDefinition {
                time_bucket_ms: 0,
                ..boundary(BoundaryState::Active).definition
            },
            ..boundary(BoundaryState::Active)
        };
        let fault = Boundary::decode(&[0x62, 0xff], &no_width.encode()).expect_err("corrupt");
        assert_eq!(fault.to_string(), "a row of table boundaries is corrupt, its key is 62ff");
        assert!(Boundary::decode(b"key", b"").is_err());
        assert!(Boundary::decode(b"key", &[0xff]).is_err());
    }

    #[test]
    fn names_are_identifiers_of_at_most_63_bytes() {
        let longest = "a".repeat(63);
        for name in ["a", "_", "Orders_2", "__x", &longest] {
            assert!(is_valid_name(name), "{name}");
        }
        for name in ["", "1a", "a-b", "a b", "ä", "a\0", &"a".repeat(64), "a\n"] {
            assert!(!is_valid_name(name), "{name}");
        }
    }
}
