//! Between openraft's types and the messages that are stored, logged and sent.
//!
//! A committed leader is known by its term alone, so `LogId.node_id` is 0 in what this crate writes and is
//! ignored in what it reads.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use prost::Message;
use tidemark_proto::record;

use crate::types::{
    CommittedLeaderId, EncodedCommand, Entry, LeaderId, LogId, Member, Membership, NodeId, Payload,
    StoredMembership, Vote,
};

/// A message that does not describe what it should.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Bytes that are not an encoding of the message.
    #[error("could not decode a {message}")]
    Decode {
        /// Name of the message.
        message: &'static str,
        /// Why.
        #[source]
        source: prost::DecodeError,
    },
    /// A field without which the message means nothing.
    #[error("field {0} is missing")]
    Missing(&'static str),
    /// A membership that names a voter without an address, or no voter.
    #[error("the membership is not valid")]
    Membership(#[from] openraft::errors::MembershipError<NodeId>),
}

/// The log id of an entry.
pub fn log_id(term: u64, index: u64) -> LogId {
    LogId::new(CommittedLeaderId::from(term), index)
}

/// The term of a log id.
pub fn term_of(log_id: &LogId) -> u64 {
    log_id.leader_id.term
}

/// To the message.
pub fn log_id_to_record(log_id: &LogId) -> record::LogId {
    record::LogId { term: term_of(log_id), node_id: 0, index: log_id.index }
}

/// From the message.
pub fn log_id_from_record(message: &record::LogId) -> LogId {
    log_id(message.term, message.index)
}

/// To the message.
pub fn vote_to_record(vote: &Vote) -> record::Vote {
    record::Vote { term: vote.leader_id.term, node_id: vote.leader_id.voted_for, committed: vote.committed }
}

/// From the message.
pub fn vote_from_record(message: &record::Vote) -> Vote {
    let leader_id = LeaderId { term: message.term, voted_for: message.node_id };
    Vote { leader_id, committed: message.committed }
}

/// To the message; members ascend by id, so that equal memberships have equal encodings.
pub fn membership_to_record(membership: &Membership) -> record::Membership {
    let configs = membership.get_joint_config().iter();
    record::Membership {
        configs: configs
            .map(|voters| record::NodeIds { node_ids: voters.iter().copied().collect() })
            .collect(),
        members: membership
            .nodes()
            .map(|(node_id, member)| record::Member {
                node_id: *node_id,
                address: member.address.clone(),
                store_id: member.store_id.clone(),
            })
            .collect(),
    }
}

/// From the message.
///
/// # Errors
/// [`Error::Membership`] when a voter is not among the members.
pub fn membership_from_record(message: &record::Membership) -> Result<Membership, Error> {
    let configs: Vec<BTreeSet<NodeId>> =
        message.configs.iter().map(|voters| voters.node_ids.iter().copied().collect()).collect();
    let members: BTreeMap<NodeId, Member> = message
        .members
        .iter()
        .map(|member| {
            (member.node_id, Member { address: member.address.clone(), store_id: member.store_id.clone() })
        })
        .collect();
    if configs.is_empty() && members.is_empty() {
        // The membership before the first one, which openraft's own validation refuses.
        return Ok(Membership::default());
    }
    Ok(Membership::new(configs, members)?)
}

/// To the message.
pub fn stored_membership_to_record(stored: &StoredMembership) -> record::StoredMembership {
    record::StoredMembership {
        log_id: stored.log_id().as_ref().map(log_id_to_record),
        membership: Some(membership_to_record(stored.membership())),
    }
}

/// From the message.
///
/// # Errors
/// As [`membership_from_record`].
pub fn stored_membership_from_record(message: &record::StoredMembership) -> Result<StoredMembership, Error> {
    let membership = message.membership.as_ref().ok_or(Error::Missing("membership"))?;
    let log_id = message.log_id.as_ref().map(log_id_from_record);
    Ok(StoredMembership::new(log_id, membership_from_record(membership)?))
}

/// What kind of payload an entry carries, as stored beside its encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadKind {
    /// None: a new leader's first entry.
    Blank,
    /// An encoded `Command`.
    Command,
    /// An encoded `Membership`.
    Membership,
}

/// The kind of a payload and its encoding. A command is encoded already, so this copies nothing of it.
pub fn payload_to_bytes(payload: &Payload) -> (PayloadKind, Bytes) {
    match payload {
        Payload::Blank => (PayloadKind::Blank, Bytes::new()),
        Payload::Normal(EncodedCommand(bytes)) => (PayloadKind::Command, bytes.clone()),
        Payload::Membership(membership) => {
            (PayloadKind::Membership, membership_to_record(membership).encode_to_vec().into())
        }
    }
}

/// From the kind and the encoding. A command stays encoded.
///
/// # Errors
/// When a membership cannot be decoded or is not valid.
pub fn payload_from_bytes(kind: PayloadKind, bytes: Bytes) -> Result<Payload, Error> {
    Ok(match kind {
        PayloadKind::Blank => Payload::Blank,
        PayloadKind::Command => Payload::Normal(EncodedCommand(bytes)),
        PayloadKind::Membership => {
            let message = record::Membership::decode(bytes)
                .map_err(|source| Error::Decode { message: "Membership", source })?;
            Payload::Membership(membership_from_record(&message)?)
        }
    })
}

/// Approximate size of an entry in memory and on the wire, in bytes.
pub fn entry_bytes(entry: &Entry) -> u64 {
    const FIXED_BYTES: usize = 64;
    let payload = match &entry.payload {
        Payload::Blank => 0,
        Payload::Normal(EncodedCommand(bytes)) => bytes.len(),
        Payload::Membership(membership) => membership
            .nodes()
            .map(|(_, member)| FIXED_BYTES + member.address.len() + member.store_id.len())
            .sum(),
    };
    (FIXED_BYTES + payload) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(port: u16) -> Member {
        Member { address: format!("host:{port}"), store_id: Bytes::from_static(b"0123456789abcdef") }
    }

    #[test]
    fn ids_and_votes_survive_the_round_trip() {
        let id = log_id(7, 42);
        assert_eq!(log_id_from_record(&log_id_to_record(&id)), id);
        for committed in [false, true] {
            let vote = Vote { leader_id: LeaderId { term: 3, voted_for: 9 }, committed };
            assert_eq!(vote_from_record(&vote_to_record(&vote)), vote);
        }
    }

    #[test]
    fn memberships_survive_the_round_trip() {
        let members: BTreeMap<_, _> = [(1, member(1)), (2, member(2)), (5, member(5))].into();
        let joint = Membership::new(vec![[1].into(), [1, 2].into()], members).unwrap();
        for membership in [joint, Membership::default()] {
            let (kind, bytes) = payload_to_bytes(&Payload::Membership(membership.clone()));
            assert_eq!(payload_from_bytes(kind, bytes).unwrap(), Payload::Membership(membership.clone()));
            let stored = StoredMembership::new(Some(log_id(1, 2)), membership);
            assert_eq!(stored_membership_from_record(&stored_membership_to_record(&stored)).unwrap(), stored);
        }
    }

    #[test]
    fn a_membership_with_an_unknown_voter_is_refused() {
        let message =
            record::Membership { configs: vec![record::NodeIds { node_ids: vec![1] }], members: Vec::new() };
        assert!(matches!(membership_from_record(&message), Err(Error::Membership(_))));
        let garbage = Bytes::from_static(&[0xff; 5]);
        assert!(matches!(payload_from_bytes(PayloadKind::Membership, garbage), Err(Error::Decode { .. })));
    }

    #[test]
    fn a_command_is_not_copied() {
        let bytes = Bytes::from(vec![1, 2, 3]);
        let (kind, encoded) = payload_to_bytes(&Payload::Normal(EncodedCommand(bytes.clone())));
        assert_eq!(encoded.as_ptr(), bytes.as_ptr());
        assert_eq!(payload_from_bytes(kind, encoded).unwrap(), Payload::Normal(EncodedCommand(bytes)));
    }
}
