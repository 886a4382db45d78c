//! openraft's view of the peer network: one [`Connection`] per target and lane.

use std::{collections::VecDeque, future::Future, marker::PhantomData, sync::Arc, time::Duration};

use futures::StreamExt;
use openraft::{
    AsyncRuntime, OptionalSend, RPCTypes,
    base::{BoxFuture, BoxStream},
    errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable},
    network::{
        Backoff, NetBackoff, NetSnapshot, NetStreamAppend, NetTransferLeader, NetVote, RPCOption,
        RaftNetworkFactory,
    },
    raft::{
        AppendEntriesRequest, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
        TransferLeaderResponse, VoteRequest, VoteResponse,
    },
};
use parking_lot::Mutex;
use prost::Message;
use tokio::{sync::Notify, time::Instant};

use super::{Lane, Peer, PeerAddress, PeerError, messages};
use crate::{
    environment::Environment,
    snapshot::{self, SnapshotData},
    types::{Member, NodeId, Types, Vote},
};

type SnapshotOf<RT> = openraft::type_config::alias::SnapshotOf<Types<RT>, SnapshotData>;

/// Facts that all connections of a member share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) node_id: NodeId,
    pub(crate) cluster_id: [u8; 16],
    pub(crate) group_id: u32,
    pub(crate) environment: Environment,
    pub(crate) contacts: Arc<super::service::Contacts>,
    pub(crate) snapshot: snapshot::Options,
    /// An answer inside an append stream may take this long, plus the transfer time of the body.
    pub(crate) append_timeout: Duration,
}

/// Makes connections for openraft.
pub(crate) struct Network<RT> {
    shared: Shared,
    runtime: PhantomData<fn() -> RT>,
}

impl<RT> Network<RT> {
    pub(crate) fn new(shared: Shared) -> Self {
        Self { shared, runtime: PhantomData }
    }

    fn connect(&self, target: NodeId, member: &Member, lane: Lane) -> Connection<RT> {
        let address = PeerAddress { node_id: target, address: member.address.clone() };
        let peer = self.shared.environment.transport.connect(&address, lane);
        let control = match lane {
            Lane::Control => Arc::clone(&peer),
            Lane::Append | Lane::Snapshot | Lane::Forward => {
                self.shared.environment.transport.connect(&address, Lane::Control)
            }
        };
        Connection { shared: self.shared.clone(), target, lane, peer, control, runtime: PhantomData }
    }
}

impl<RT: AsyncRuntime> RaftNetworkFactory<Types<RT>> for Network<RT> {
    type Network = Connection<RT>;

    async fn new_client(&mut self, target: NodeId, node: &Member) -> Connection<RT> {
        self.connect(target, node, Lane::Append)
    }

    async fn new_heartbeat_client(&mut self, target: NodeId, node: &Member) -> Connection<RT> {
        self.connect(target, node, Lane::Control)
    }

    async fn new_snapshot_client(&mut self, target: NodeId, node: &Member) -> Connection<RT> {
        self.connect(target, node, Lane::Snapshot)
    }
}

/// The way to one member on one lane.
pub(crate) struct Connection<RT> {
    shared: Shared,
    target: NodeId,
    lane: Lane,
    peer: Arc<dyn Peer>,
    /// Votes go here whatever the lane: openraft asks on a connection that it made for appends.
    control: Arc<dyn Peer>,
    runtime: PhantomData<fn() -> RT>,
}

impl<RT: AsyncRuntime> Connection<RT> {
    fn timed_out(&self, action: RPCTypes, timeout: Duration) -> Timeout<Types<RT>> {
        Timeout { action, id: self.shared.node_id, target: self.target, timeout }
    }

    async fn within<T>(
        &self,
        action: RPCTypes,
        option: &RPCOption,
        call: impl Future<Output = Result<T, PeerError>>,
    ) -> Result<T, RPCError<Types<RT>>> {
        let limit = option.hard_ttl();
        match tokio::time::timeout(limit, call).await {
            Ok(answer) => answer.map_err(|error| self.failed(action, error, limit)),
            Err(_) => Err(RPCError::Timeout(self.timed_out(action, limit))),
        }
    }

    fn failed(&self, action: RPCTypes, error: PeerError, limit: Duration) -> RPCError<Types<RT>> {
        Self::rpc_error(self.timed_out(action, limit), error)
    }

    /// `timeout` says what to report if `error` is one.
    fn rpc_error(timeout: Timeout<Types<RT>>, error: PeerError) -> RPCError<Types<RT>> {
        match error {
            PeerError::TimedOut => RPCError::Timeout(timeout),
            // A refusal lasts: back off, as for a member that is not there.
            PeerError::Unreachable(_) | PeerError::Refused(_) => {
                RPCError::Unreachable(Unreachable::new(&error))
            }
            PeerError::Unavailable(_) | PeerError::Failed(_) => RPCError::Network(NetworkError::new(&error)),
        }
    }

    fn malformed(what: messages::Malformed) -> RPCError<Types<RT>> {
        RPCError::Network(NetworkError::new(&what))
    }

    async fn stream<S>(
        &mut self,
        mut input: S,
    ) -> Result<
        BoxStream<'static, Result<StreamAppendResult<Types<RT>>, RPCError<Types<RT>>>>,
        RPCError<Types<RT>>,
    >
    where
        S: futures::Stream<Item = AppendEntriesRequest<Types<RT>>> + OptionalSend + Unpin + 'static,
    {
        // openraft waits out its backoff when the first request is asked for, so that comes before connecting: a
        // member that is down would be tried thousands of times per second otherwise.
        let Some(first) = input.next().await else {
            return Ok(futures::stream::empty().boxed());
        };
        let input = futures::stream::once(std::future::ready(first)).chain(input);
        let outstanding = Arc::new(Outstanding::new(self.shared.append_timeout));
        let (contacts, sent) = (Arc::clone(&self.shared.contacts), Arc::clone(&outstanding));
        let requests = input.map(move |request| {
            let message = messages::append_request::<RT>(request, contacts.own_client_address());
            sent.push(message.encoded_len(), messages::previous_and_last(&message));
            message
        });
        let (target, contacts) = (self.target, Arc::clone(&self.shared.contacts));
        let timed_out = self.timed_out(RPCTypes::AppendEntries, self.shared.append_timeout);
        let answers = self.peer.append(requests.boxed()).await;
        let answers = answers
            .map_err(|error| self.failed(RPCTypes::AppendEntries, error, self.shared.append_timeout))?;
        let state = (answers, outstanding, contacts, timed_out, true);
        let results = futures::stream::unfold(
            state,
            move |(mut answers, outstanding, contacts, timed_out, go_on)| async move {
                if !go_on {
                    return None;
                }
                let answer = match outstanding.within_deadline(answers.next()).await {
                    Ok(answer) => answer?,
                    Err(timeout) => Err(PeerError::TimedOut).inspect_err(|_| {
                        tracing::warn!(target_node = target, ?timeout, "no answer to an append in time");
                    }),
                };
                let result =
                    answer.map_err(|error| Self::rpc_error(timed_out.clone(), error)).and_then(|message| {
                        contacts.learn(target, &message.client_address);
                        let range = outstanding.pop();
                        messages::append_result::<RT>(message, range).map_err(Self::malformed)
                    });
                let go_on = matches!(result, Ok(Ok(_)));
                Some((result, (answers, outstanding, contacts, timed_out, go_on)))
            },
        );
        Ok(results.boxed())
    }

    async fn heartbeat(
        &mut self,
        request: AppendEntriesRequest<Types<RT>>,
        option: RPCOption,
    ) -> Result<StreamAppendResult<Types<RT>>, RPCError<Types<RT>>> {
        let message = messages::append_request::<RT>(request, self.shared.contacts.own_client_address());
        let range = messages::previous_and_last(&message);
        let answer = self.within(RPCTypes::AppendEntries, &option, self.control.heartbeat(message)).await?;
        self.shared.contacts.learn(self.target, &answer.client_address);
        messages::append_result::<RT>(answer, Some(range)).map_err(Self::malformed)
    }
}

impl<RT: AsyncRuntime> NetStreamAppend<Types<RT>> for Connection<RT> {
    fn stream_append<'s, S>(
        &'s mut self,
        mut input: S,
        option: RPCOption,
    ) -> BoxFuture<
        's,
        Result<
            BoxStream<'s, Result<StreamAppendResult<Types<RT>>, RPCError<Types<RT>>>>,
            RPCError<Types<RT>>,
        >,
    >
    where
        S: futures::Stream<Item = AppendEntriesRequest<Types<RT>>> + OptionalSend + Unpin + 'static,
    {
        Box::pin(async move {
            match self.lane {
                Lane::Control => {
                    // openraft sends one heartbeat per stream: a unary call is cheaper than a stream each.
                    let Some(request) = input.next().await else {
                        return Ok(futures::stream::empty().boxed());
                    };
                    let result = self.heartbeat(request, option).await;
                    Ok(futures::stream::iter([result]).boxed())
                }
                Lane::Append | Lane::Snapshot | Lane::Forward => self.stream(input).await,
            }
        })
    }
}

impl<RT: AsyncRuntime> NetVote<Types<RT>> for Connection<RT> {
    async fn vote(
        &mut self,
        request: VoteRequest<Types<RT>>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types<RT>>, RPCError<Types<RT>>> {
        let call = self.control.vote(messages::vote_request(request));
        let answer = self.within(RPCTypes::Vote, &option, call).await?;
        messages::vote_result(answer).map_err(Self::malformed)
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types<RT>>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types<RT>>, RPCError<Types<RT>>> {
        let call = self.control.pre_vote(messages::vote_request(request));
        let answer = self.within(RPCTypes::Vote, &option, call).await?;
        messages::vote_result(answer).map_err(Self::malformed)
    }
}

impl<RT: AsyncRuntime> NetTransferLeader<Types<RT>> for Connection<RT> {
    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types<RT>>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types<RT>>, RPCError<Types<RT>>> {
        let call = self.control.transfer_leader(messages::transfer_request(&request));
        let answer = self.within(RPCTypes::TransferLeader, &option, call).await?;
        messages::transfer_result(answer).map_err(Self::malformed)
    }
}

impl<RT: AsyncRuntime> NetSnapshot<Types<RT>> for Connection<RT> {
    type SnapshotData = SnapshotData;

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: SnapshotOf<RT>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<Types<RT>>, StreamingError<Types<RT>>> {
        let SnapshotData::Source(source) = snapshot.snapshot else {
            return Err(NetworkError::from_string("a received snapshot cannot be sent").into());
        };
        let header = snapshot::Header {
            cluster_id: self.shared.cluster_id,
            group_id: self.shared.group_id,
            vote,
            meta_log_id: snapshot.meta.last_log_id,
            membership: snapshot.meta.last_membership,
        };
        let chunks = snapshot::send(self.shared.environment.clone(), source, header, &self.shared.snapshot);
        let limit = option.hard_ttl();
        let answer = tokio::select! {
            answer = tokio::time::timeout(limit, self.peer.install_snapshot(chunks)) => answer,
            closed = cancel => return Err(closed.into()),
        };
        let answer = answer
            .map_err(|_| self.timed_out(RPCTypes::InstallSnapshot, limit))?
            .map_err(|error| self.failed(RPCTypes::InstallSnapshot, error, limit))?;
        let vote = answer.vote.as_ref().map(crate::convert::vote_from_record);
        vote.map(SnapshotResponse::new)
            .ok_or_else(|| NetworkError::from_string("an answer without a vote").into())
    }
}

impl<RT: AsyncRuntime> NetBackoff<Types<RT>> for Connection<RT> {
    fn backoff(&self) -> Option<Backoff> {
        // A restarted member must be back in the quorum within a heartbeat or two.
        Some(Backoff::new(std::iter::repeat(Duration::from_millis(200))))
    }
}

/// Requests of one append stream that wait for their answers.
struct Outstanding {
    queue: Mutex<VecDeque<(Instant, messages::Range)>>,
    pushed: Notify,
    timeout: Duration,
}

/// A slow link of 8 Mbit/s must be able to transfer a body before its time-out.
const SLOWEST_LINK_BYTES_PER_SECOND: u64 = 1024 * 1024;

impl Outstanding {
    fn new(timeout: Duration) -> Self {
        Self { queue: Mutex::default(), pushed: Notify::new(), timeout }
    }

    fn push(&self, bytes: usize, range: messages::Range) {
        let transfer = Duration::from_millis(bytes as u64 * 1000 / SLOWEST_LINK_BYTES_PER_SECOND);
        self.queue.lock().push_back((Instant::now() + self.timeout + transfer, range));
        self.pushed.notify_one();
    }

    fn pop(&self) -> Option<messages::Range> {
        self.queue.lock().pop_front().map(|(_, range)| range)
    }

    fn deadline(&self) -> Option<Instant> {
        self.queue.lock().front().map(|(deadline, _)| *deadline)
    }

    /// Waits for `answer`, but not beyond the deadline of the oldest request that waits for one.
    async fn within_deadline<T>(&self, answer: impl Future<Output = T>) -> Result<T, Duration> {
        let mut answer = std::pin::pin!(answer);
        loop {
            match self.deadline() {
                Some(deadline) => {
                    return tokio::time::timeout_at(deadline, answer).await.map_err(|_| self.timeout);
                }
                None => tokio::select! {
                    answer = &mut answer => return Ok(answer),
                    () = self.pushed.notified() => {}
                },
            }
        }
    }
}
