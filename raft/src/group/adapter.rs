//! openraft behind the object-safe face that the handle sees.

use std::collections::BTreeSet;

use async_trait::async_trait;
use bytes::Bytes;
use openraft::{
    AsyncRuntime, ServerState, async_runtime::watch::WatchReceiver, errors::ClientWriteError,
    impls::OneshotResponder, type_config::TypeConfigExt,
};

use super::Raft;
use crate::{
    error::ProposeError,
    handle::{Consensus, MemberStatus, Proposal, Role, Status},
    types::{Applied, EncodedCommand, NodeId, Types},
};

/// openraft behind the face that the handle sees.
pub(super) struct Openraft<RT: AsyncRuntime> {
    pub(super) raft: Raft<RT>,
}

#[async_trait]
impl<RT: AsyncRuntime> Consensus for Openraft<RT> {
    async fn propose(&self, command: Bytes, term: u64) -> Result<Proposal, ProposeError> {
        let (sender, answer) = Types::<RT>::oneshot();
        let responder = OneshotResponder::new(sender);
        let request = self.raft.write(EncodedCommand(command)).with_leader(term).responder(responder);
        // Nothing reached the log if the core is gone.
        request.await.map_err(|_| ProposeError::NotProposed { leader: None })?;
        let answer = async move {
            match answer.await {
                Ok(Ok(written)) => match written.data {
                    Applied(Some(outcome)) => Ok((written.log_id, outcome)),
                    Applied(None) => Err(ProposeError::Unknown),
                },
                Ok(Err(error)) => Err(not_written(error)),
                // The core stopped with the command in its hands.
                Err(_) => Err(ProposeError::Unknown),
            }
        };
        Ok(Proposal { answer: Box::pin(answer) })
    }

    async fn transfer_leader(&self, to: NodeId) {
        // An error means that the core has stopped, and with it the leadership.
        let _ = self.raft.trigger().transfer_leader(to).await;
    }

    async fn trigger_snapshot(&self) {
        // As above.
        let _ = self.raft.trigger().snapshot().await;
    }

    async fn wait_for_recovery(&self) {
        // Without a time limit the only error is that the core stopped, which the fault tells.
        let _ = self.raft.wait_for_recovery(None).await;
    }

    async fn shutdown(&self) {
        // A core that panicked has nothing left to shut down.
        let _ = self.raft.shutdown().await;
    }

    fn status(&self) -> Status {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let membership = metrics.membership_config.membership();
        let voters: BTreeSet<NodeId> = membership.voter_ids().collect();
        Status {
            role: match metrics.state {
                ServerState::Leader => Role::Leader,
                ServerState::Follower => Role::Follower,
                ServerState::Candidate => Role::Candidate,
                ServerState::Learner => Role::Learner,
                ServerState::Shutdown => Role::Stopped,
            },
            term: metrics.current_term,
            leader: metrics.current_leader,
            last_log_index: metrics.last_log_index.unwrap_or(0),
            committed_index: metrics.local_committed.map_or(0, |log_id| log_id.index),
            members: membership
                .nodes()
                .map(|(id, member)| MemberStatus {
                    node_id: *id,
                    peer_address: member.address.clone(),
                    voter: voters.contains(id),
                })
                .collect(),
        }
    }
}

/// openraft refuses with `ForwardToLeader` before anything enters the log; an entry that entered it and lost its
/// leader is `LogEntryDiscarded`.
fn not_written<RT: AsyncRuntime>(error: ClientWriteError<Types<RT>>) -> ProposeError {
    match error {
        ClientWriteError::ForwardToLeader(forward) => ProposeError::NotProposed { leader: forward.leader_id },
        ClientWriteError::PreconditionFailed(_) => ProposeError::NotProposed { leader: None },
        ClientWriteError::LogEntryDiscarded(_) | ClientWriteError::ChangeMembershipError(_) => {
            ProposeError::Unknown
        }
    }
}
