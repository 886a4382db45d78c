//! The type configuration of openraft, generic over the async runtime so that the simulator can run the same
//! code on a deterministic one.

use std::{fmt, marker::PhantomData};

use bytes::Bytes;
use openraft::{AsyncRuntime, OptionalSend, RaftTypeConfig, impls};
use tidemark_state_machine::Outcome;

/// A member's id: unique in a cluster and never reused.
pub type NodeId = u64;

/// One leader per term: the design relies on election safety as Raft section 5.2 states it.
pub type LeaderId = impls::leader_id_std::LeaderId<u64, NodeId>;

/// The leader part of a log id (a term).
pub type CommittedLeaderId = <LeaderId as openraft::vote::RaftLeaderId>::Committed;

/// Term and index of an entry.
pub type LogId = openraft::LogId<CommittedLeaderId>;

/// A vote or a leadership.
pub type Vote = impls::Vote<LeaderId>;

/// What an entry carries.
pub type Payload = openraft::EntryPayload<EncodedCommand, NodeId, Member>;

/// One entry of the log.
pub type Entry = openraft::Entry<CommittedLeaderId, Payload>;

/// Voters and learners.
pub type Membership = openraft::Membership<NodeId, Member>;

/// A membership and the log id of the entry that set it.
pub type StoredMembership = openraft::StoredMembership<CommittedLeaderId, NodeId, Member>;

/// A command in its encoded form (`tidemark.record.Command`). It is encoded once, by the proposer; log, peers
/// and apply use these bytes.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct EncodedCommand(pub Bytes);

impl fmt::Debug for EncodedCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "command of {} bytes", self.0.len())
    }
}

impl fmt::Display for EncodedCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Where a member is reached.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Member {
    /// `host:port` of its peer listener.
    pub address: String,
    /// Random identity of its data directory; empty for a member of the initial set.
    pub store_id: Bytes,
}

/// What apply answers to the proposer: one outcome, or nothing for entries without a command.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Applied(pub Option<Outcome>);

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// The configuration. `RT` is `TokioRuntime` in production and a deterministic runtime in simulations.
pub struct Types<RT>(PhantomData<fn() -> RT>);

// Written by hand: derives would demand the same traits of `RT`.
impl<RT> Clone for Types<RT> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<RT> Copy for Types<RT> {}

impl<RT> Default for Types<RT> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<RT> fmt::Debug for Types<RT> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Types")
    }
}

impl<RT> PartialEq for Types<RT> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<RT> Eq for Types<RT> {}

impl<RT> PartialOrd for Types<RT> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<RT> Ord for Types<RT> {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

impl<RT: AsyncRuntime> RaftTypeConfig for Types<RT> {
    type D = EncodedCommand;
    type R = Applied;
    type NodeId = NodeId;
    type Node = Member;
    type Term = u64;
    type LeaderId = LeaderId;
    type Vote = Vote;
    type Payload = Payload;
    type Entry = Entry;
    type AsyncRuntime = RT;
    type Responder<T>
        = impls::OneshotResponder<Self, T>
    where
        T: OptionalSend + 'static;
    type Batch<T>
        = openraft::batch::InlineBatch<T>
    where
        T: OptionalSend + 'static;
    type ErrorSource = anyerror::AnyError;
}
