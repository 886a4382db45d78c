//! The peer network: what members say to each other, over gRPC in production and over a simulated network in
//! simulations.
//!
//! [`Peer`] is one member's side of the protocol of `tidemark.peer.v1`, in terms of its messages: a client stub
//! implements it by sending, `service::Service` implements it by answering.

pub(crate) mod client;
pub mod grpc;
mod messages;
pub mod service;

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use futures::stream::BoxStream;
use tidemark_proto::peer;

pub(crate) use client::Network;

use crate::types::NodeId;

/// Which connection to a member a call uses. Lanes do not share connections, so that a snapshot or a large
/// append cannot delay a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Appends.
    Append,
    /// Heartbeats, votes and other small calls of consensus.
    Control,
    /// Snapshots.
    Snapshot,
    /// Forwarded requests, read indexes and status.
    Forward,
}

/// A member and where it is reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PeerAddress {
    /// Its id.
    pub node_id: NodeId,
    /// `host:port` of its peer listener.
    pub address: String,
}

/// Why a call to a member failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// No connection, or it broke.
    #[error("cannot reach the member: {0}")]
    Unreachable(String),
    /// No answer in time.
    #[error("no answer from the member in time")]
    TimedOut,
    /// The member is of another cluster or has another id than expected.
    #[error("refused by the member: {0}")]
    Refused(String),
    /// The member cannot do it now, for example because it does not lead.
    #[error("the member cannot answer now: {0}")]
    Unavailable(String),
    /// The member answered with an error, or with something that makes no sense.
    #[error("the member answered with an error: {0}")]
    Failed(String),
}

/// A stream of requests or of answers.
pub type Stream<T> = BoxStream<'static, T>;

/// The peer protocol. Deadlines are the caller's business, except that a transport detects a broken connection.
#[async_trait]
pub trait Peer: Send + Sync + 'static {
    /// Replicates: answers come in the order of the requests; the stream ends after the first answer that is not
    /// `flushed`.
    async fn append(
        &self,
        requests: Stream<peer::AppendEntriesRequest>,
    ) -> Result<Stream<Result<peer::AppendEntriesResponse, PeerError>>, PeerError>;

    /// An append without entries.
    async fn heartbeat(
        &self,
        request: peer::AppendEntriesRequest,
    ) -> Result<peer::AppendEntriesResponse, PeerError>;

    /// Asks for a vote.
    async fn vote(&self, request: peer::VoteRequest) -> Result<peer::VoteResponse, PeerError>;

    /// Asks whether a vote would be granted; changes nothing.
    async fn pre_vote(&self, request: peer::VoteRequest) -> Result<peer::VoteResponse, PeerError>;

    /// Hands leadership over.
    async fn transfer_leader(
        &self,
        request: peer::TransferLeaderRequest,
    ) -> Result<peer::TransferLeaderResponse, PeerError>;

    /// Sends a whole snapshot and waits until it is installed.
    async fn install_snapshot(
        &self,
        chunks: Stream<peer::SnapshotChunk>,
    ) -> Result<peer::InstallSnapshotResponse, PeerError>;

    /// The log id that a linearizable read must have applied; answered by the leader only.
    async fn read_index(&self, request: peer::ReadIndexRequest)
    -> Result<peer::ReadIndexResponse, PeerError>;

    /// Requests of clients for the leader.
    async fn forward(
        &self,
        requests: Stream<peer::ForwardRequest>,
    ) -> Result<Stream<Result<peer::ForwardResponse, PeerError>>, PeerError>;

    /// What the member says about itself.
    async fn describe(&self, request: peer::DescribeRequest) -> Result<peer::DescribeResponse, PeerError>;

    /// The digest that the member computed for a `Digest` command.
    async fn get_digest(&self, request: peer::GetDigestRequest)
    -> Result<peer::GetDigestResponse, PeerError>;
}

/// The way to other members.
pub trait Transport: Send + Sync + 'static {
    /// A stub for `target`. Connecting happens on first use and again after a failure.
    fn connect(&self, target: &PeerAddress, lane: Lane) -> Arc<dyn Peer>;
}

impl fmt::Debug for dyn Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transport")
    }
}
