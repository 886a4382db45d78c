//! Answers the peer protocol: consensus calls go to openraft, the rest to the node.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::StreamExt;
use openraft::{AsyncRuntime, raft::AppendEntriesRequest};
use parking_lot::Mutex;
use tidemark_proto::peer;

use super::{Peer, PeerError, Stream, messages};
use crate::{
    barrier::ReadIndex,
    convert,
    environment::{Clock, Environment},
    machine::{Digests, Machine},
    snapshot::{self, SnapshotData},
    types::{NodeId, Types},
};

/// What the node answers itself.
#[async_trait]
pub trait Upcalls: Send + Sync + 'static {
    /// Requests that other members forwarded.
    async fn forward(
        &self,
        requests: Stream<peer::ForwardRequest>,
    ) -> Result<Stream<Result<peer::ForwardResponse, PeerError>>, PeerError>;

    /// What to tell about this node.
    async fn describe(&self) -> Result<peer::DescribeResponse, PeerError>;
}

/// What a member knows about the others from their messages.
pub struct Contacts {
    own_client_address: String,
    clock: Arc<dyn Clock>,
    client_addresses: Mutex<BTreeMap<NodeId, String>>,
    /// Monotonic milliseconds of the last message of a leader, plus one; 0: none yet.
    leader_contact: AtomicU64,
}

impl Contacts {
    pub(crate) fn new(own_client_address: String, clock: Arc<dyn Clock>) -> Self {
        Self {
            own_client_address,
            clock,
            client_addresses: Mutex::default(),
            leader_contact: AtomicU64::new(0),
        }
    }

    pub(crate) fn own_client_address(&self) -> String {
        self.own_client_address.clone()
    }

    pub(crate) fn learn(&self, node: NodeId, address: &str) {
        if address.is_empty() {
            return;
        }
        let mut addresses = self.client_addresses.lock();
        if addresses.get(&node).is_none_or(|known| known != address) {
            addresses.insert(node, address.to_owned());
        }
    }

    /// Where clients reach `node`, if it ever said so.
    pub fn client_address(&self, node: NodeId) -> Option<String> {
        self.client_addresses.lock().get(&node).cloned()
    }

    fn heard_leader(&self) {
        let now = u64::try_from(self.clock.monotonic().as_millis()).unwrap_or(u64::MAX - 1);
        self.leader_contact.store(now + 1, Ordering::Relaxed);
    }

    /// Time since a leader was last heard; `None` if never.
    pub fn since_leader_contact(&self) -> Option<Duration> {
        let heard = self.leader_contact.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.clock.monotonic().saturating_sub(Duration::from_millis(heard)))
    }
}

/// One member's side of the peer protocol.
pub(crate) struct Service<RT: AsyncRuntime> {
    pub(crate) raft: openraft::Raft<Types<RT>, Machine<RT>>,
    pub(crate) environment: Environment,
    pub(crate) contacts: Arc<Contacts>,
    pub(crate) digests: Arc<Digests>,
    pub(crate) read_index: ReadIndex,
    pub(crate) receiver: snapshot::Receiver,
    pub(crate) upcalls: Arc<OnceLock<Arc<dyn Upcalls>>>,
}

fn malformed(error: messages::Malformed) -> PeerError {
    PeerError::Failed(error.to_string())
}

/// A fatal error of openraft: this member no longer takes part.
fn stopped(error: &dyn std::error::Error) -> PeerError {
    PeerError::Unavailable(format!("the member has stopped: {error}"))
}

impl<RT: AsyncRuntime> Service<RT> {
    fn read_request(
        contacts: &Contacts,
        message: peer::AppendEntriesRequest,
    ) -> Result<AppendEntriesRequest<Types<RT>>, PeerError> {
        contacts.heard_leader();
        if let Some(vote) = &message.vote {
            contacts.learn(vote.node_id, &message.client_address);
        }
        messages::append_request_from::<RT>(message).map_err(malformed)
    }

    fn upcalls(&self) -> Result<&Arc<dyn Upcalls>, PeerError> {
        self.upcalls.get().ok_or_else(|| PeerError::Unavailable("the member is starting".to_owned()))
    }
}

#[async_trait]
impl<RT: AsyncRuntime> Peer for Service<RT> {
    async fn append(
        &self,
        requests: Stream<peer::AppendEntriesRequest>,
    ) -> Result<Stream<Result<peer::AppendEntriesResponse, PeerError>>, PeerError> {
        let contacts = Arc::clone(&self.contacts);
        // A malformed request ends the stream: what follows it cannot be trusted either.
        let requests = requests.scan((), move |(), message| {
            let request = Self::read_request(&contacts, message);
            std::future::ready(
                request.inspect_err(|error| tracing::warn!(%error, "closed an append stream")).ok(),
            )
        });
        let contacts = Arc::clone(&self.contacts);
        let answers = self.raft.stream_append(requests).map(move |answer| match answer {
            Ok(result) => Ok(messages::append_answer::<RT>(result, contacts.own_client_address())),
            Err(fatal) => Err(stopped(&fatal)),
        });
        Ok(answers.boxed())
    }

    async fn heartbeat(
        &self,
        request: peer::AppendEntriesRequest,
    ) -> Result<peer::AppendEntriesResponse, PeerError> {
        let request = Self::read_request(&self.contacts, request)?;
        let previous = request.prev_log_id;
        let answer = self.raft.append_entries(request).await.map_err(|error| stopped(&error))?;
        let result = answer.into_stream_result(previous, previous);
        Ok(messages::append_answer::<RT>(result, self.contacts.own_client_address()))
    }

    async fn vote(&self, request: peer::VoteRequest) -> Result<peer::VoteResponse, PeerError> {
        let request = messages::vote_request_from::<RT>(request).map_err(malformed)?;
        let answer = self.raft.vote(request).await.map_err(|error| stopped(&error))?;
        Ok(messages::vote_answer::<RT>(answer))
    }

    async fn pre_vote(&self, request: peer::VoteRequest) -> Result<peer::VoteResponse, PeerError> {
        let request = messages::vote_request_from::<RT>(request).map_err(malformed)?;
        let answer = self.raft.pre_vote(request).await.map_err(|error| stopped(&error))?;
        Ok(messages::vote_answer::<RT>(answer))
    }

    async fn transfer_leader(
        &self,
        request: peer::TransferLeaderRequest,
    ) -> Result<peer::TransferLeaderResponse, PeerError> {
        let request = messages::transfer_request_from::<RT>(request).map_err(malformed)?;
        let answer = self.raft.handle_transfer_leader(request).await.map_err(|error| stopped(&error))?;
        Ok(messages::transfer_answer::<RT>(answer))
    }

    async fn install_snapshot(
        &self,
        chunks: Stream<peer::SnapshotChunk>,
    ) -> Result<peer::InstallSnapshotResponse, PeerError> {
        let received = match self.receiver.receive(&self.environment, chunks).await? {
            snapshot::Reception::Complete(received) => received,
            snapshot::Reception::AlreadyApplied { vote } => {
                return Ok(peer::InstallSnapshotResponse { vote: Some(convert::vote_to_record(&vote)) });
            }
        };
        let vote = received.vote;
        let snapshot = openraft::storage::Snapshot {
            meta: received.meta.clone(),
            snapshot: SnapshotData::Received(received),
        };
        let answer =
            self.raft.install_full_snapshot(vote, snapshot).await.map_err(|error| stopped(&error))?;
        Ok(peer::InstallSnapshotResponse { vote: Some(convert::vote_to_record(&answer.vote)) })
    }

    async fn read_index(&self, _: peer::ReadIndexRequest) -> Result<peer::ReadIndexResponse, PeerError> {
        let log_id =
            self.read_index.local().await.map_err(|error| PeerError::Unavailable(error.to_string()))?;
        Ok(peer::ReadIndexResponse { log_id: Some(convert::log_id_to_record(&log_id)) })
    }

    async fn forward(
        &self,
        requests: Stream<peer::ForwardRequest>,
    ) -> Result<Stream<Result<peer::ForwardResponse, PeerError>>, PeerError> {
        self.upcalls()?.forward(requests).await
    }

    async fn describe(&self, _: peer::DescribeRequest) -> Result<peer::DescribeResponse, PeerError> {
        self.upcalls()?.describe().await
    }

    async fn get_digest(
        &self,
        request: peer::GetDigestRequest,
    ) -> Result<peer::GetDigestResponse, PeerError> {
        let timeout = Duration::from_millis(request.timeout_ms.into());
        self.digests.wait(request.digest_id, timeout).await.ok_or(PeerError::TimedOut)
    }
}
