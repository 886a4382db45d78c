//! What a caller of the client can get instead of an answer.

use tidemark_proto::ApiError;

/// An error of one call. Nothing here is worth repeating unchanged at once: the client has done that already.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// A node answered, definitely and finally. For a save: nothing was written.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The deadline passed, and the save may or may not have been written. Saving the same request again with this
    /// key returns the first result if it was, and writes it if it was not.
    #[error("the outcome is unknown: save again with the idempotency key {idempotency_key:?} to find out")]
    OutcomeUnknown {
        /// The key of the save, the caller's or the generated one.
        idempotency_key: String,
    },
    /// No node could serve the call before the deadline. For a save: nothing was written.
    #[error("no node could serve the call in time{}", Because(.last))]
    Unavailable {
        /// What the last attempt ran into; absent if there was no time for one.
        last: Option<ApiError>,
    },
    /// An address is not of the form `host:port` or `http://host:port`.
    #[error("{address:?} is no address: give host:port")]
    InvalidAddress {
        /// As given.
        address: String,
    },
    /// The options name no address at all.
    #[error("no address to connect to: give at least one")]
    NoAddress,
}

impl Error {
    /// A fact that the save was based on has changed: read again and decide again.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Api(ApiError::ContextConflict { .. }))
    }
}

struct Because<'a>(&'a Option<ApiError>);

impl std::fmt::Display for Because<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(last) => write!(f, ": {last}"),
            None => Ok(()),
        }
    }
}
