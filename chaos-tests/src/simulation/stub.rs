//! One member's way to another: calls and streams that cross the simulated network and run on the other node.

use std::sync::Arc;

use async_trait::async_trait;
use futures::{FutureExt, StreamExt, future::BoxFuture};
use tidemark_proto::peer;
use tidemark_raft::{
    environment::Executor,
    network::{Peer, PeerError, Stream},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::network::{Network, Sender, Way};

/// Messages of one stream that are under way.
const UNDER_WAY: usize = 64;

fn broken() -> PeerError {
    PeerError::Unreachable("the connection broke".to_owned())
}

/// A stub for one member.
pub(super) struct Stub {
    network: Network,
    sender: Sender,
    to: u64,
}

/// A message under way; `None` is the regular end of a stream.
struct Frame<T> {
    due: Option<Instant>,
    item: Option<T>,
}

impl Stub {
    pub(super) fn new(network: Network, sender: Sender, to: u64) -> Self {
        Self { network, sender, to }
    }

    fn way(&self, kind: &'static str) -> Way {
        Way { from: self.sender.node, to: self.to, kind }
    }

    /// What a crashed node still does reaches nobody.
    fn alive(&self) -> Result<(), PeerError> {
        if self.sender.executor.has_crashed() { Err(broken()) } else { Ok(()) }
    }

    async fn call<A: Send + 'static>(
        &self,
        kind: &'static str,
        serve: impl FnOnce(Arc<dyn Peer>) -> BoxFuture<'static, Result<A, PeerError>> + Send + 'static,
    ) -> Result<A, PeerError> {
        self.alive()?;
        let way = self.way(kind);
        self.network.arrival(way, self.network.send(way)).await?;
        self.alive()?;
        let receiver = self.network.receiver(self.to)?;
        let (sender, answer) = oneshot::channel();
        let serving = serve(receiver.service);
        receiver.executor.spawn(Box::pin(async move {
            // The caller may have given up.
            let _ = sender.send(serving.await);
        }));
        let answer = answer.await.map_err(|_| broken())?;
        self.network.arrival(way.back(), self.network.send(way.back())).await?;
        answer
    }

    async fn stream<Q: Send + 'static, A: Send + 'static>(
        &self,
        kind: &'static str,
        requests: Stream<Q>,
        serve: impl FnOnce(
            Arc<dyn Peer>,
            Stream<Q>,
        ) -> BoxFuture<'static, Result<Stream<Result<A, PeerError>>, PeerError>>
        + Send
        + 'static,
    ) -> Result<Stream<Result<A, PeerError>>, PeerError> {
        self.alive()?;
        let (network, way) = (self.network.clone(), self.way(kind));
        network.arrival(way, network.send(way)).await?;
        self.alive()?;
        let receiver = network.receiver(self.to)?;
        let closed = CancellationToken::new();
        let (request_sender, request_frames) = mpsc::channel(UNDER_WAY);
        let (answer_sender, answer_frames) = mpsc::channel(UNDER_WAY);
        let sending = pump(network.clone(), way, requests, request_sender);
        let until = closed.clone();
        self.sender.executor.spawn(Box::pin(async move {
            until.run_until_cancelled(sending).await;
        }));

        let arrived = arriving(network.clone(), way, request_frames, closed.clone(), None)
            // A request stream that breaks ends early: the protocol above notices what is missing.
            .scan((), |(), request| std::future::ready(request.ok()))
            .boxed();
        let answering = {
            let (network, until) = (network.clone(), closed.clone());
            async move {
                let served = async {
                    match serve(receiver.service, arrived).await {
                        Ok(answers) => pump(network, way.back(), answers, answer_sender).await,
                        Err(error) => {
                            let refusal = futures::stream::iter([Err(error)]).boxed();
                            pump(network, way.back(), refusal, answer_sender).await;
                        }
                    }
                };
                until.run_until_cancelled(served).await;
            }
        };
        receiver.executor.spawn(Box::pin(answering));
        let guard = closed.clone().drop_guard();
        let answers = arriving(network, way.back(), answer_frames, closed, Some(guard));
        Ok(answers.map(|answer| answer.and_then(|answer| answer)).boxed())
    }
}

/// Sends items as they come; when this ends without the end of the stream, the connection is broken.
async fn pump<T>(network: Network, way: Way, mut items: Stream<T>, frames: mpsc::Sender<Frame<T>>) {
    loop {
        let item = items.next().await;
        let last = item.is_none();
        let frame = Frame { due: network.send(way), item };
        if frames.send(frame).await.is_err() || last {
            return;
        }
    }
}

/// The items at the other end. The first error is the last item and closes the connection for both sides.
fn arriving<T: Send + 'static>(
    network: Network,
    way: Way,
    frames: mpsc::Receiver<Frame<T>>,
    closed: CancellationToken,
    guard: Option<DropGuard>,
) -> Stream<Result<T, PeerError>> {
    struct Connection<T> {
        frames: mpsc::Receiver<Frame<T>>,
        /// Messages of one connection do not overtake each other.
        not_before: Instant,
        closed: CancellationToken,
        _guard: Option<DropGuard>,
    }
    let connection = Connection { frames, not_before: Instant::now(), closed, _guard: guard };
    futures::stream::unfold(Some(connection), move |connection| {
        let network = network.clone();
        async move {
            let mut connection = connection?;
            let next = async {
                let frame = connection.frames.recv().await.ok_or_else(broken)?;
                let due = frame.due.map(|due| due.max(connection.not_before));
                connection.not_before = due.unwrap_or(connection.not_before);
                network.arrival(way, due).await?;
                Ok(frame.item)
            };
            let next = connection.closed.clone().run_until_cancelled(next).await;
            match next.unwrap_or_else(|| Err(broken())) {
                Ok(Some(item)) => Some((Ok(item), Some(connection))),
                Ok(None) => None,
                Err(error) => {
                    connection.closed.cancel();
                    Some((Err(error), None))
                }
            }
        }
    })
    .boxed()
}

#[async_trait]
impl Peer for Stub {
    async fn append(
        &self,
        requests: Stream<peer::AppendEntriesRequest>,
    ) -> Result<Stream<Result<peer::AppendEntriesResponse, PeerError>>, PeerError> {
        self.stream("append", requests, |peer, requests| async move { peer.append(requests).await }.boxed())
            .await
    }

    async fn heartbeat(
        &self,
        request: peer::AppendEntriesRequest,
    ) -> Result<peer::AppendEntriesResponse, PeerError> {
        self.call("heartbeat", move |peer| async move { peer.heartbeat(request).await }.boxed()).await
    }

    async fn vote(&self, request: peer::VoteRequest) -> Result<peer::VoteResponse, PeerError> {
        self.call("vote", move |peer| async move { peer.vote(request).await }.boxed()).await
    }

    async fn pre_vote(&self, request: peer::VoteRequest) -> Result<peer::VoteResponse, PeerError> {
        self.call("pre-vote", move |peer| async move { peer.pre_vote(request).await }.boxed()).await
    }

    async fn transfer_leader(
        &self,
        request: peer::TransferLeaderRequest,
    ) -> Result<peer::TransferLeaderResponse, PeerError> {
        self.call("transfer", move |peer| async move { peer.transfer_leader(request).await }.boxed()).await
    }

    async fn install_snapshot(
        &self,
        chunks: Stream<peer::SnapshotChunk>,
    ) -> Result<peer::InstallSnapshotResponse, PeerError> {
        let mut answers = self
            .stream("snapshot", chunks, |peer, chunks| {
                async move {
                    let installed = peer.install_snapshot(chunks).await;
                    Ok(futures::stream::iter([installed]).boxed())
                }
                .boxed()
            })
            .await?;
        answers.next().await.unwrap_or_else(|| Err(broken()))
    }

    async fn read_index(
        &self,
        request: peer::ReadIndexRequest,
    ) -> Result<peer::ReadIndexResponse, PeerError> {
        self.call("read-index", move |peer| async move { peer.read_index(request).await }.boxed()).await
    }

    async fn forward(
        &self,
        requests: Stream<peer::ForwardRequest>,
    ) -> Result<Stream<Result<peer::ForwardResponse, PeerError>>, PeerError> {
        self.stream("forward", requests, |peer, requests| async move { peer.forward(requests).await }.boxed())
            .await
    }

    async fn describe(&self, request: peer::DescribeRequest) -> Result<peer::DescribeResponse, PeerError> {
        self.call("describe", move |peer| async move { peer.describe(request).await }.boxed()).await
    }

    async fn get_digest(
        &self,
        request: peer::GetDigestRequest,
    ) -> Result<peer::GetDigestResponse, PeerError> {
        self.call("digest", move |peer| async move { peer.get_digest(request).await }.boxed()).await
    }
}
