//! The one way into a Raft group: propose, read, look.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use tidemark_state_machine::Outcome;
use tidemark_storage::contract::Db;
use tokio::{sync::watch, time::Instant};

use crate::{
    barrier::ReadIndex,
    error::{BarrierError, ProposeError},
    identity::Identity,
    log::LogHandle,
    machine::{Digests, Progress, Replica},
    network::{
        Lane, Peer, PeerAddress, Transport,
        service::{Contacts, Upcalls},
    },
    types::{LogId, NodeId},
};

/// Who leads, as this member sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// This member leads and has applied everything that earlier leaders committed: it may stamp.
    Ready {
        /// The term of the leadership; proposals name it.
        term: u64,
    },
    /// This member leads but has not yet applied the blank entry of its own term.
    Preparing,
    /// Another member leads.
    Following {
        /// That member.
        leader: NodeId,
    },
    /// No leader is known.
    Unknown,
}

/// A member's part in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It leads.
    Leader,
    /// It votes and follows.
    Follower,
    /// It campaigns.
    Candidate,
    /// It follows without a vote.
    Learner,
    /// It has stopped.
    Stopped,
}

impl Role {
    /// In lower case, for people and wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Follower => "follower",
            Self::Candidate => "candidate",
            Self::Learner => "learner",
            Self::Stopped => "stopped",
        }
    }
}

/// One member of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its id.
    pub node_id: NodeId,
    /// `host:port` of its peer listener.
    pub peer_address: String,
    /// Whether it votes.
    pub voter: bool,
}

/// What this member knows about consensus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// This member's part.
    pub role: Role,
    /// The current term.
    pub term: u64,
    /// The leader, if one is known.
    pub leader: Option<NodeId>,
    /// Index of the last entry in the log.
    pub last_log_index: u64,
    /// Index of the last entry known to be committed.
    pub committed_index: u64,
    /// All members, ascending by id.
    pub members: Vec<MemberStatus>,
}

/// openraft behind an object-safe face, so that nothing outside this crate is generic over the runtime.
#[async_trait]
pub(crate) trait Consensus: Send + Sync + 'static {
    async fn propose(&self, command: Bytes, term: u64) -> Result<Proposal, ProposeError>;
    async fn transfer_leader(&self, to: NodeId);
    async fn trigger_snapshot(&self);
    async fn wait_for_recovery(&self);
    async fn shutdown(&self);
    fn status(&self) -> Status;
}

type ProposalResult = Result<(LogId, Outcome), ProposeError>;

/// A proposal that has been handed to consensus. Dropping it does not take it back.
pub struct Proposal {
    pub(crate) answer: futures::future::BoxFuture<'static, ProposalResult>,
}

impl Future for Proposal {
    type Output = ProposalResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.answer.poll_unpin(context)
    }
}

pub(crate) struct Inner {
    pub(crate) identity: Identity,
    pub(crate) group_id: u32,
    pub(crate) consensus: Arc<dyn Consensus>,
    pub(crate) replica: Arc<Replica>,
    pub(crate) contacts: Arc<Contacts>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) leadership: watch::Receiver<Leadership>,
    pub(crate) fault: watch::Receiver<Option<String>>,
    /// Read indexes from whoever leads.
    pub(crate) barrier: ReadIndex,
    pub(crate) upcalls: Arc<OnceLock<Arc<dyn Upcalls>>>,
    pub(crate) peer: Arc<dyn Peer>,
}

/// A cheap, cloneable handle to one Raft group on this node.
#[derive(Clone)]
pub struct Handle {
    pub(crate) inner: Arc<Inner>,
}

/// A failed read index is asked for again after this long.
const BARRIER_RETRY: Duration = Duration::from_millis(25);

impl Handle {
    /// Who this member is.
    pub fn identity(&self) -> Identity {
        self.inner.identity
    }

    /// The group.
    pub fn group_id(&self) -> u32 {
        self.inner.group_id
    }

    /// Hands an encoded command to consensus under the leadership of `term`. Commands enter the log in the order
    /// of these calls; the outcome is awaited separately.
    ///
    /// # Errors
    ///
    /// [`ProposeError`], from here or from the proposal.
    pub async fn propose(&self, command: Bytes, term: u64) -> Result<Proposal, ProposeError> {
        self.inner.consensus.propose(command, term).await
    }

    /// Who leads; changes are announced.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.inner.leadership.clone()
    }

    /// How far this replica's state is; changes are announced.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.inner.replica.progress.subscribe()
    }

    /// The current database. A snapshot install replaces it, so take it anew for each read.
    pub fn database(&self) -> Arc<dyn Db> {
        self.inner.replica.databases.current()
    }

    /// Waits until this replica has applied everything that was acknowledged anywhere before the call.
    ///
    /// # Errors
    ///
    /// [`BarrierError`] if that cannot be shown before `deadline`: on a partitioned or removed member it never
    /// can.
    pub async fn read_barrier(&self, deadline: Instant) -> Result<(), BarrierError> {
        let log_id = loop {
            match tokio::time::timeout_at(deadline, self.inner.barrier.local()).await {
                Ok(Ok(log_id)) => break log_id,
                Ok(Err(error)) if !error.retryable() || Instant::now() + BARRIER_RETRY >= deadline => {
                    return Err(error);
                }
                Ok(Err(_)) => tokio::time::sleep(BARRIER_RETRY).await,
                Err(_) => return Err(BarrierError::NoQuorum),
            }
        };
        let mut progress = self.progress();
        let reached = progress.wait_for(|progress| progress.index() >= log_id.index);
        let reached = tokio::time::timeout_at(deadline, reached).await.map(|waited| waited.map(|_| ()));
        match reached {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(BarrierError::Stopped),
            Err(_) => Err(BarrierError::NotApplied {
                wanted: log_id.index,
                applied: self.inner.replica.progress.borrow().index(),
            }),
        }
    }

    /// What this member knows about consensus.
    pub fn status(&self) -> Status {
        self.inner.consensus.status()
    }

    /// Index of the last entry that the database has on stable storage; 0 if there is none. Blocks on disk.
    ///
    /// # Errors
    ///
    /// When the database cannot be read.
    pub fn durable_applied_index(&self) -> Result<u64, tidemark_state_machine::Fault> {
        Ok(self.inner.replica.durable_applied()?.map_or(0, |log_id| log_id.index))
    }

    /// The segment log: figures and durability.
    pub fn log(&self) -> &LogHandle {
        &self.inner.replica.log
    }

    /// Digests that `Digest` commands asked for.
    pub fn digests(&self) -> &Arc<Digests> {
        &self.inner.replica.digests
    }

    /// What is known about other members from their messages.
    pub fn contacts(&self) -> &Contacts {
        &self.inner.contacts
    }

    /// A stub for another member, on the lane for forwarded requests.
    pub fn peer(&self, member: &MemberStatus) -> Arc<dyn Peer> {
        let address = PeerAddress { node_id: member.node_id, address: member.peer_address.clone() };
        self.inner.transport.connect(&address, Lane::Forward)
    }

    /// This member's side of the peer protocol, to be served on its peer listener.
    pub fn peer_service(&self) -> Arc<dyn Peer> {
        Arc::clone(&self.inner.peer)
    }

    /// Says who answers forwarded requests and questions about the node. Only the first call counts.
    pub fn serve_upcalls(&self, upcalls: Arc<dyn Upcalls>) {
        // A second registration is a mistake of the composition root; the first one keeps working.
        let _ = self.inner.upcalls.set(upcalls);
    }

    /// Waits until this member has applied everything that it knew to be committed before it restarted, as
    /// confirmed by a leader.
    pub async fn wait_for_recovery(&self) {
        self.inner.consensus.wait_for_recovery().await;
    }

    /// Hands leadership to `to`; nothing happens unless this member leads.
    pub async fn transfer_leader(&self, to: NodeId) {
        self.inner.consensus.transfer_leader(to).await;
    }

    /// Makes the state durable and lets old log entries go.
    pub async fn trigger_snapshot(&self) {
        self.inner.consensus.trigger_snapshot().await;
    }

    /// Why this member had to stop; `None` while it runs. Changes are announced.
    pub fn fault(&self) -> watch::Receiver<Option<String>> {
        self.inner.fault.clone()
    }

    /// Stops consensus, puts everything applied on stable storage and closes the log.
    pub async fn shutdown(&self) {
        self.inner.consensus.shutdown().await;
        let replica = Arc::clone(&self.inner.replica);
        let flushed = replica.environment.clone().blocking(move || replica.flush()).await;
        if let Err(fault) = flushed {
            tracing::error!(%fault, "could not flush the database at shutdown; the log will replay it");
        }
        if let Err(error) = self.inner.replica.log.close().await {
            tracing::error!(%error, "could not close the log properly; the next start recovers it");
        }
    }
}
