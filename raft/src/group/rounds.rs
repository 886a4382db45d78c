//! Rounds of the read barrier: from this member's own leadership, or from whoever leads.

use async_trait::async_trait;
use openraft::{
    AsyncRuntime, ReadPolicy,
    async_runtime::watch::WatchReceiver,
    errors::{LinearizableReadError, RaftError},
};
use tokio::sync::watch;

use super::Raft;
use crate::{
    barrier::{ReadIndex, Round},
    convert,
    environment::Environment,
    error::BarrierError,
    handle::Leadership,
    network::{Lane, PeerAddress, PeerError},
    types::{LogId, NodeId},
};

/// A read index from this member's own leadership.
pub(super) struct OwnRound<RT: AsyncRuntime> {
    pub(super) raft: Raft<RT>,
}

#[async_trait]
impl<RT: AsyncRuntime> Round for OwnRound<RT> {
    async fn read_index(&self) -> Result<LogId, BarrierError> {
        match self.raft.get_read_log_id(ReadPolicy::ReadIndex).await {
            Ok((read_log_id, _)) => Ok(*read_log_id.log_id()),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(_))) => {
                Err(BarrierError::NoLeader)
            }
            Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))) => {
                Err(BarrierError::NoQuorum)
            }
            Err(RaftError::Fatal(_)) => Err(BarrierError::Stopped),
        }
    }
}

/// A read index from whoever leads.
pub(super) struct AnyRound<RT: AsyncRuntime> {
    pub(super) own: ReadIndex,
    pub(super) own_id: NodeId,
    pub(super) leadership: watch::Receiver<Leadership>,
    pub(super) raft: Raft<RT>,
    pub(super) environment: Environment,
}

#[async_trait]
impl<RT: AsyncRuntime> Round for AnyRound<RT> {
    async fn read_index(&self) -> Result<LogId, BarrierError> {
        let leadership = *self.leadership.borrow();
        let leader = match leadership {
            Leadership::Ready { .. } | Leadership::Preparing => return self.own.local().await,
            Leadership::Unknown => return Err(BarrierError::NoLeader),
            Leadership::Following { leader } => leader,
        };
        debug_assert_ne!(leader, self.own_id);
        let address = {
            let metrics = self.raft.server_metrics();
            let metrics = metrics.borrow_watched();
            metrics.membership_config.membership().get_node(&leader).map(|member| member.address.clone())
        };
        let address = PeerAddress { node_id: leader, address: address.ok_or(BarrierError::NoLeader)? };
        let peer = self.environment.transport.connect(&address, Lane::Control);
        let answer = peer.read_index(tidemark_proto::peer::ReadIndexRequest {}).await;
        let answer = answer.map_err(|error: PeerError| BarrierError::LeaderUnreachable(error.to_string()))?;
        let log_id = answer.log_id.as_ref().map(convert::log_id_from_record);
        log_id.ok_or_else(|| BarrierError::LeaderUnreachable("an answer without a log id".to_owned()))
    }
}
