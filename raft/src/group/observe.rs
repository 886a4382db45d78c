//! Follows openraft's metrics and says who leads and whether this member had to stop.

use openraft::{AsyncRuntime, ServerState, async_runtime::watch::WatchReceiver};
use tokio::sync::watch;

use super::Raft;
use crate::{environment::Environment, handle::Leadership, log::LogHandle, machine::Progress, types::NodeId};

pub(super) fn watch_leadership<RT: AsyncRuntime>(
    environment: &Environment,
    own_id: NodeId,
    raft: &Raft<RT>,
    mut progress: watch::Receiver<Progress>,
) -> watch::Receiver<Leadership> {
    let mut server = raft.server_metrics();
    let (sender, receiver) = watch::channel(Leadership::Unknown);
    environment.executor.spawn(Box::pin(async move {
        loop {
            let metrics = server.borrow_watched().clone();
            let leadership = if metrics.state == ServerState::Leader && metrics.vote.is_committed() {
                let term = metrics.vote.leader_id().term;
                let applied = progress.borrow_and_update().log_id;
                match applied {
                    Some(log_id) if log_id.committed_leader_id().term == term => Leadership::Ready { term },
                    _ => Leadership::Preparing,
                }
            } else {
                match metrics.current_leader {
                    Some(leader) if leader != own_id => Leadership::Following { leader },
                    _ => Leadership::Unknown,
                }
            };
            sender.send_if_modified(|current| {
                let changed = *current != leadership;
                *current = leadership;
                changed
            });
            let changed = if leadership == Leadership::Preparing {
                tokio::select! {
                    changed = server.changed() => changed.is_ok(),
                    changed = progress.changed() => changed.is_ok(),
                }
            } else {
                server.changed().await.is_ok()
            };
            if !changed {
                sender.send_replace(Leadership::Unknown);
                return;
            }
        }
    }));
    receiver
}

pub(super) fn watch_fault<RT: AsyncRuntime>(
    environment: &Environment,
    raft: &Raft<RT>,
    log: &LogHandle,
) -> watch::Receiver<Option<String>> {
    let (sender, receiver) = watch::channel(None);
    let mut metrics = raft.metrics();
    let log = log.clone();
    environment.executor.spawn(Box::pin(async move {
        loop {
            let fault = match &metrics.borrow_watched().running_state {
                Ok(()) | Err(openraft::errors::Fatal::Stopped) => None,
                // The log's own words say more than what consensus makes of them.
                Err(fatal) => {
                    Some(log.current_fault().map_or_else(|| fatal.to_string(), |fault| fault.to_string()))
                }
            };
            if fault.is_some() {
                sender.send_replace(fault);
                return;
            }
            tokio::select! {
                changed = metrics.changed() => if changed.is_err() { return },
                fault = log.fault() => {
                    sender.send_replace(Some(fault.to_string()));
                    return;
                }
            }
        }
    }));
    receiver
}
