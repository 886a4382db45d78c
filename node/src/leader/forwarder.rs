//! Carries work to the leader over one stream: any number of requests are on their way at once.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::StreamExt;
use parking_lot::Mutex;
use prost::Message;
use tidemark_proto::{
    ApiError, UnknownCause,
    peer::{ForwardRequest, ForwardResponse, forward_request, forward_response},
    record, v1,
};
use tidemark_raft::{Handle, environment::Environment, network::Peer, types::NodeId};
use tidemark_state_machine::{AppendOutcome, CreateBoundaryOutcome, outcome::WrittenEvents};
use tidemark_storage::Position;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_stream::wrappers::ReceiverStream;

use super::work::{Answer, SubmitError, Work};
use crate::api::outcome;

type Reply = oneshot::Sender<Result<Answer, SubmitError>>;

struct Outgoing {
    request: ForwardRequest,
    reply: Reply,
}

struct Link {
    leader: NodeId,
    outgoing: mpsc::Sender<Outgoing>,
}

/// Requests that wait to be sent to the leader; the leader's own queue is the real bound.
const LINK_REQUESTS: usize = 4_096;

/// A leader that was replaced may still answer what it was asked, for this long.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// The way to whoever leads.
pub(super) struct Forwarder {
    raft: Handle,
    environment: Environment,
    link: Mutex<Option<Link>>,
}

impl Forwarder {
    pub(super) fn new(raft: Handle, environment: Environment) -> Self {
        Self { raft, environment, link: Mutex::default() }
    }

    /// Sends `work` to `leader` and waits for the answer.
    pub(super) async fn submit(
        &self,
        leader: NodeId,
        work: Work,
        deadline: Instant,
    ) -> Result<Answer, SubmitError> {
        let outgoing = self.link(leader).ok_or(SubmitError::NotLeader)?;
        let timeout = deadline.saturating_duration_since(Instant::now());
        let request = ForwardRequest {
            request_id: 0,
            timeout_ms: u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX),
            kind: Some(encode(work)),
            correlation_id: String::new(),
        };
        let (reply, answer) = oneshot::channel();
        match tokio::time::timeout_at(deadline, outgoing.send(Outgoing { request, reply })).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(SubmitError::NotLeader),
            Err(_) => return Err(SubmitError::Expired),
        }
        match tokio::time::timeout_at(deadline + LAST_ANSWERS, answer).await {
            Ok(answer) => answer.unwrap_or(Err(SubmitError::Unknown(UnknownCause::LeadershipLost))),
            Err(_) => Err(SubmitError::Unknown(UnknownCause::Deadline)),
        }
    }

    fn link(&self, leader: NodeId) -> Option<mpsc::Sender<Outgoing>> {
        let mut link = self.link.lock();
        if let Some(link) = link.as_ref().filter(|link| link.leader == leader && !link.outgoing.is_closed()) {
            return Some(link.outgoing.clone());
        }
        let member = self.raft.status().members.into_iter().find(|member| member.node_id == leader)?;
        let peer = self.raft.peer(&member);
        let (outgoing, inbox) = mpsc::channel(LINK_REQUESTS);
        self.environment.executor.spawn(Box::pin(run(peer, inbox)));
        *link = Some(Link { leader, outgoing: outgoing.clone() });
        Some(outgoing)
    }
}

async fn run(peer: Arc<dyn Peer>, mut inbox: mpsc::Receiver<Outgoing>) {
    while let Some(first) = inbox.recv().await {
        let (requests, queued) = mpsc::channel(LINK_REQUESTS);
        match peer.forward(ReceiverStream::new(queued).boxed()).await {
            Ok(answers) => Session::new(requests).run(first, &mut inbox, answers).await,
            Err(error) => {
                tracing::debug!(%error, "cannot forward to the leader");
                // It was not sent. The caller may have gone away.
                let _ = first.reply.send(Err(SubmitError::NotLeader));
            }
        }
    }
}

/// One stream to the leader.
struct Session {
    requests: mpsc::Sender<ForwardRequest>,
    /// Ordered, so that a broken stream fails its requests in the order in which they were sent.
    pending: BTreeMap<u64, Reply>,
    next_id: u64,
}

impl Session {
    fn new(requests: mpsc::Sender<ForwardRequest>) -> Self {
        Self { requests, pending: BTreeMap::new(), next_id: 0 }
    }

    async fn run(
        mut self,
        first: Outgoing,
        inbox: &mut mpsc::Receiver<Outgoing>,
        mut answers: tidemark_raft::network::Stream<
            Result<ForwardResponse, tidemark_raft::network::PeerError>,
        >,
    ) {
        let mut open = self.send(first).await;
        let mut last_answers = None;
        while open {
            let patience = last_answers.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
            tokio::select! {
                outgoing = inbox.recv(), if last_answers.is_none() => match outgoing {
                    Some(outgoing) => open = self.send(outgoing).await,
                    None => last_answers = Some(Instant::now() + LAST_ANSWERS),
                },
                answer = answers.next() => match answer {
                    Some(Ok(answer)) => self.complete(answer),
                    Some(Err(error)) => {
                        tracing::debug!(%error, "the stream to the leader broke");
                        open = false;
                    }
                    None => open = false,
                },
                () = tokio::time::sleep_until(patience) => open = false,
            }
            open &= last_answers.is_none() || !self.pending.is_empty();
        }
        for reply in self.pending.into_values() {
            let _ = reply.send(Err(SubmitError::Unknown(UnknownCause::LeadershipLost)));
        }
    }

    async fn send(&mut self, outgoing: Outgoing) -> bool {
        self.next_id += 1;
        let request = ForwardRequest { request_id: self.next_id, ..outgoing.request };
        if self.requests.send(request).await.is_err() {
            let _ = outgoing.reply.send(Err(SubmitError::NotLeader));
            return false;
        }
        self.pending.insert(self.next_id, outgoing.reply);
        true
    }

    fn complete(&mut self, response: ForwardResponse) {
        if let Some(reply) = self.pending.remove(&response.request_id) {
            let _ = reply.send(decode(response));
        }
    }
}

fn encode(work: Work) -> forward_request::Kind {
    match work {
        Work::Append(request) => forward_request::Kind::Append(request.to_record()),
        Work::CreateBoundary(definition) => forward_request::Kind::CreateBoundary(record::CreateBoundary {
            time_ms: 0,
            event_id: 0,
            name: definition.name,
            description: definition.description,
            time_bucket_ms: definition.time_bucket_ms,
            placement_group: definition.placement_group,
            idempotency_retention_ms: definition.idempotency_retention_ms,
        }),
        Work::Digest(digest_id) => forward_request::Kind::Digest(record::Digest { digest_id }),
    }
}

fn decode(response: ForwardResponse) -> Result<Answer, SubmitError> {
    let malformed = || SubmitError::Unknown(UnknownCause::LeadershipLost);
    Ok(match response.result.ok_or_else(malformed)? {
        forward_response::Result::Append(result) => {
            let position = |position: Option<record::Position>| {
                position.map(|position| Position {
                    commit_position: position.commit_position,
                    prepare_position: position.prepare_position,
                })
            };
            let first = position(result.first).ok_or_else(malformed)?;
            let written = WrittenEvents { first, last: position(result.last).ok_or_else(malformed)? };
            Answer::Append(if result.already_applied {
                AppendOutcome::AlreadyApplied(written)
            } else {
                AppendOutcome::Written(written)
            })
        }
        forward_response::Result::Boundary(row) => {
            let boundary = outcome::boundary_from_row(&row).map_err(|_| malformed())?;
            Answer::CreateBoundary(CreateBoundaryOutcome::AlreadyExists(boundary))
        }
        forward_response::Result::DigestAt(log_id) => {
            Answer::Digest(tidemark_raft::log_id_from_record(&log_id))
        }
        forward_response::Result::Error(encoded) => refused(encoded)?,
    })
}

fn refused(encoded: Bytes) -> Result<Answer, SubmitError> {
    let error = v1::Error::decode(encoded).map_err(|_| SubmitError::Unknown(UnknownCause::LeadershipLost))?;
    match ApiError::from(error) {
        ApiError::NotLeader { .. } => Err(SubmitError::NotLeader),
        ApiError::Stopping => Err(SubmitError::NotLeader),
        ApiError::OutcomeUnknown { cause } => Err(SubmitError::Unknown(cause)),
        ApiError::DeadlineExceeded => Err(SubmitError::Expired),
        error => Ok(Answer::Refused(error)),
    }
}
