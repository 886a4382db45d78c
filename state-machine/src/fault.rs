//! Faults: what stops the node, as opposed to a rejection, which is an outcome.

use thiserror::Error;
use tidemark_storage::error::Error as StorageError;

/// Why the state cannot be read or advanced. The node stops writing and says so; nothing is retried here.
#[derive(Debug, Error)]
pub enum Fault {
    /// The database failed.
    #[error("the database failed")]
    Storage(#[from] StorageError),
    /// The log holds a command of a newer feature level than this build supports.
    #[error(
        "the log holds a command of feature level {level_needed}, but this build supports level \
         {level_supported}: start a release that supports level {level_needed}"
    )]
    UnknownCommand {
        /// The level that a release must support to apply the command.
        level_needed: u32,
        /// The newest level that this build supports.
        level_supported: u32,
    },
    /// The entry is no protobuf message of a command.
    #[error("decoding a command of the log failed")]
    Undecodable {
        /// Where decoding stopped.
        #[source]
        source: prost::DecodeError,
    },
    /// The entry decodes, and holds what no leader may propose.
    #[error("a command of the log is malformed")]
    Malformed(#[from] Malformed),
    /// The entry belongs to the log of another group.
    #[error("the log of group {expected} holds a command of group {found}")]
    ForeignGroup {
        /// The group whose log is read.
        expected: u32,
        /// The group that the command names.
        found: u32,
    },
    /// A row of the database does not have the form that its table prescribes.
    #[error("a row of table {table} is corrupt, its key is {}", Hex(.key))]
    CorruptRow {
        /// The table's name.
        table: &'static str,
        /// The physical key.
        key: Vec<u8>,
        /// What the value's decoder says, if it was the decoder that refused it.
        #[source]
        source: Option<prost::DecodeError>,
    },
}

/// What no leader may propose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// The command is of a supported level, yet of no known kind.
    #[error("a command of feature level {feature_level} is of no kind known at that level")]
    NoKind {
        /// The level that it names.
        feature_level: u32,
    },
    /// The entry's time is above [`crate::command::TIME_MS_MAX`].
    #[error("the time {time_ms} ms is out of range")]
    TimeTooLarge {
        /// The time.
        time_ms: u64,
    },
    /// An event id would exceed `i64::MAX`.
    #[error("an event id exceeds the largest signed 64-bit number")]
    EventIdTooLarge,
    /// An event has both a delay and a time of delivery.
    #[error("an event has both a delay and a time of delivery")]
    DelayAndDeliverAt,
    /// A lifetime of 0 ms.
    #[error("an event has a lifetime of 0 ms")]
    TtlZero,
    /// The hash of an idempotency key is not 16 bytes long.
    #[error("the hash of an idempotency key is not 16 bytes long")]
    KeyHashLength,
    /// The digest of a request is not 32 bytes long.
    #[error("the digest of a request is not 32 bytes long")]
    RequestDigestLength,
}

struct Hex<'a>(&'a [u8]);

impl std::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
