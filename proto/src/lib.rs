//! The messages of Tidemark: what is stored, logged, sent between peers and offered to clients.
//!
//! Without features there are only [`record`] and [`peer`] messages, with prost and bytes and nothing else. The
//! feature `grpc` adds the generated services, `ApiError` and its mapping to and from gRPC status.
//! Fields of type `bytes` are [`bytes::Bytes`]: a payload is never copied after it was decoded.

#[cfg(feature = "grpc")]
mod error;
#[cfg(feature = "grpc")]
mod status;

#[cfg(feature = "grpc")]
pub use error::{ApiError, LeaderHint, LimitKind, Retry, UnknownCause};
#[cfg(feature = "grpc")]
pub use status::ERROR_DOMAIN;

/// What is stored and logged (package `tidemark.record`).
#[allow(missing_docs)]
pub mod record {
    include!(concat!(env!("OUT_DIR"), "/record/tidemark.record.rs"));
}

/// What the members of a cluster send each other (package `tidemark.peer.v1`); with the feature `grpc` also the
/// service, in `peer_client` and `peer_server`.
#[allow(missing_docs)]
pub mod peer {
    include!(concat!(env!("OUT_DIR"), "/peer/tidemark.peer.v1.rs"));

    #[cfg(feature = "grpc")]
    include!(concat!(env!("OUT_DIR"), "/peer_service/tidemark.peer.v1.rs"));
}

/// What clients see (package `tidemark.v1`): messages, clients and servers of the services `EventStore`,
/// `Boundaries` and `Cluster`.
#[cfg(feature = "grpc")]
#[allow(missing_docs)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/api/tidemark.v1.rs"));
}

/// The encoded `google.protobuf.FileDescriptorSet` of `tidemark.v1` and its imports, for server reflection.
#[cfg(feature = "grpc")]
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
