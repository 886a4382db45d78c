//! The peer protocol over gRPC: stubs with one HTTP/2 connection per member and lane, and the server.
//!
//! Every call carries the cluster, the group, the sender and the addressee as metadata. A member checks them
//! before it reads anything, so a node of another cluster or behind a reused address does no harm.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use async_trait::async_trait;
use futures::StreamExt;
use parking_lot::Mutex;
use tidemark_proto::peer::{self, peer_client::PeerClient, peer_server::PeerServer};
use tonic::{
    Code, Request, Response, Status, Streaming,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Channel, Endpoint},
};

use super::{Lane, Peer, PeerAddress, PeerError, Stream, Transport};
use crate::types::NodeId;

const CLUSTER: &str = "tidemark-cluster-id";
const GROUP: &str = "tidemark-group-id";
const FROM: &str = "tidemark-from";
const TO: &str = "tidemark-to";

/// Who this member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The cluster.
    pub cluster_id: [u8; 16],
    /// The Raft group.
    pub group_id: u32,
    /// The member.
    pub node_id: NodeId,
}

impl PeerIdentity {
    fn cluster(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.cluster_id))
    }
}

/// Limits and time-outs of peer connections.
#[derive(Clone, Debug)]
pub struct GrpcOptions {
    /// Largest message in either direction, in bytes.
    pub message_bytes_max: usize,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// An HTTP/2 ping is sent after this much silence; a connection that does not answer for as long again is
    /// given up.
    pub keep_alive: Duration,
}

/// HTTP/2 flow-control windows: a body of entries must fit without waiting for an update.
const STREAM_WINDOW_BYTES: u32 = 8 * 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 16 * 1024 * 1024;

/// The gRPC transport.
pub struct GrpcTransport {
    identity: PeerIdentity,
    options: GrpcOptions,
    channels: Mutex<HashMap<(String, Lane), Channel>>,
}

impl GrpcTransport {
    /// A transport for the member `identity`.
    pub fn new(identity: PeerIdentity, options: GrpcOptions) -> Self {
        Self { identity, options, channels: Mutex::default() }
    }

    fn channel(&self, address: &str, lane: Lane) -> Result<Channel, PeerError> {
        let mut channels = self.channels.lock();
        if let Some(channel) = channels.get(&(address.to_owned(), lane)) {
            return Ok(channel.clone());
        }
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| PeerError::Unreachable(format!("`{address}` is no address: {error}")))?
            .connect_timeout(self.options.connect_timeout)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(self.options.keep_alive)
            .keep_alive_timeout(self.options.keep_alive)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        let channel = endpoint.connect_lazy();
        channels.insert((address.to_owned(), lane), channel.clone());
        Ok(channel)
    }
}

impl Transport for GrpcTransport {
    fn connect(&self, target: &PeerAddress, lane: Lane) -> Arc<dyn Peer> {
        let ascii =
            |value: String| MetadataValue::try_from(value).expect("hexadecimal and decimal digits are ASCII");
        let stamp = Stamp {
            cluster: ascii(self.identity.cluster()),
            group: ascii(self.identity.group_id.to_string()),
            from: ascii(self.identity.node_id.to_string()),
            to: ascii(target.node_id.to_string()),
        };
        Arc::new(Stub {
            client: self.channel(&target.address, lane).map(|channel| {
                PeerClient::with_interceptor(channel, stamp)
                    .max_decoding_message_size(self.options.message_bytes_max)
                    .max_encoding_message_size(self.options.message_bytes_max)
            }),
        })
    }
}

/// Adds the metadata of a call.
#[derive(Clone)]
struct Stamp {
    cluster: MetadataValue<Ascii>,
    group: MetadataValue<Ascii>,
    from: MetadataValue<Ascii>,
    to: MetadataValue<Ascii>,
}

impl Interceptor for Stamp {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let metadata = request.metadata_mut();
        metadata.insert(CLUSTER, self.cluster.clone());
        metadata.insert(GROUP, self.group.clone());
        metadata.insert(FROM, self.from.clone());
        metadata.insert(TO, self.to.clone());
        Ok(request)
    }
}

struct Stub {
    client: Result<PeerClient<InterceptedService<Channel, Stamp>>, PeerError>,
}

impl Stub {
    fn client(&self) -> Result<PeerClient<InterceptedService<Channel, Stamp>>, PeerError> {
        self.client.clone()
    }
}

fn from_status(status: Status) -> PeerError {
    let message = status.message().to_owned();
    match status.code() {
        // Without a connection tonic says UNAVAILABLE; a broken stream shows as UNKNOWN or CANCELLED.
        Code::Unavailable | Code::Unknown | Code::Cancelled => PeerError::Unreachable(message),
        Code::DeadlineExceeded => PeerError::TimedOut,
        Code::FailedPrecondition => PeerError::Refused(message),
        Code::Aborted => PeerError::Unavailable(message),
        _ => PeerError::Failed(format!("{:?}: {message}", status.code())),
    }
}

fn to_status(error: PeerError) -> Status {
    match error {
        PeerError::Unreachable(why) => Status::unavailable(why),
        PeerError::TimedOut => Status::deadline_exceeded("no answer in time"),
        PeerError::Refused(why) => Status::failed_precondition(why),
        PeerError::Unavailable(why) => Status::aborted(why),
        PeerError::Failed(why) => Status::internal(why),
    }
}

fn answers<T: Send + 'static>(response: Response<Streaming<T>>) -> Stream<Result<T, PeerError>> {
    response.into_inner().map(|answer| answer.map_err(from_status)).boxed()
}

/// A stream of requests as a named type: with a boxed one the compiler cannot prove the calls to be `Send`.
struct Outgoing<T>(Stream<T>);

impl<T> futures::Stream for Outgoing<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.poll_next_unpin(context)
    }
}

#[async_trait]
impl Peer for Stub {
    async fn append(
        &self,
        requests: Stream<peer::AppendEntriesRequest>,
    ) -> Result<Stream<Result<peer::AppendEntriesResponse, PeerError>>, PeerError> {
        let mut client = self.client()?;
        let response = client.append(Outgoing(requests)).await;
        response.map(answers).map_err(from_status)
    }

    async fn heartbeat(
        &self,
        request: peer::AppendEntriesRequest,
    ) -> Result<peer::AppendEntriesResponse, PeerError> {
        self.client()?.heartbeat(request).await.map(Response::into_inner).map_err(from_status)
    }

    async fn vote(&self, request: peer::VoteRequest) -> Result<peer::VoteResponse, PeerError> {
        self.client()?.vote(request).await.map(Response::into_inner).map_err(from_status)
    }

    async fn pre_vote(&self, request: peer::VoteRequest) -> Result<peer::VoteResponse, PeerError> {
        self.client()?.pre_vote(request).await.map(Response::into_inner).map_err(from_status)
    }

    async fn transfer_leader(
        &self,
        request: peer::TransferLeaderRequest,
    ) -> Result<peer::TransferLeaderResponse, PeerError> {
        self.client()?.transfer_leader(request).await.map(Response::into_inner).map_err(from_status)
    }

    async fn install_snapshot(
        &self,
        chunks: Stream<peer::SnapshotChunk>,
    ) -> Result<peer::InstallSnapshotResponse, PeerError> {
        let mut client = self.client()?;
        let response = client.install_snapshot(Outgoing(chunks)).await;
        response.map(Response::into_inner).map_err(from_status)
    }

    async fn read_index(
        &self,
        request: peer::ReadIndexRequest,
    ) -> Result<peer::ReadIndexResponse, PeerError> {
        self.client()?.read_index(request).await.map(Response::into_inner).map_err(from_status)
    }

    async fn forward(
        &self,
        requests: Stream<peer::ForwardRequest>,
    ) -> Result<Stream<Result<peer::ForwardResponse, PeerError>>, PeerError> {
        let mut client = self.client()?;
        let response = client.forward(Outgoing(requests)).await;
        response.map(answers).map_err(from_status)
    }

    async fn describe(&self, request: peer::DescribeRequest) -> Result<peer::DescribeResponse, PeerError> {
        self.client()?.describe(request).await.map(Response::into_inner).map_err(from_status)
    }

    async fn get_digest(
        &self,
        request: peer::GetDigestRequest,
    ) -> Result<peer::GetDigestResponse, PeerError> {
        self.client()?.get_digest(request).await.map(Response::into_inner).map_err(from_status)
    }
}

/// The server side: checks who calls, then lets `peer` answer.
pub struct GrpcService {
    identity: PeerIdentity,
    peer: Arc<dyn Peer>,
}

/// The gRPC service of the member `identity`, answered by `peer`.
pub fn server(identity: PeerIdentity, peer: Arc<dyn Peer>, options: &GrpcOptions) -> PeerServer<GrpcService> {
    PeerServer::new(GrpcService { identity, peer })
        .max_decoding_message_size(options.message_bytes_max)
        .max_encoding_message_size(options.message_bytes_max)
}

impl GrpcService {
    fn admit<T>(&self, request: Request<T>) -> Result<T, Status> {
        let header = |name: &str| request.metadata().get(name).and_then(|value| value.to_str().ok());
        let checks = [
            (CLUSTER, self.identity.cluster()),
            (GROUP, self.identity.group_id.to_string()),
            (TO, self.identity.node_id.to_string()),
        ];
        for (name, own) in checks {
            let theirs = header(name).unwrap_or("nothing");
            if theirs != own {
                return Err(Status::failed_precondition(format!(
                    "the call from node {} says {name} {theirs}, but this node has {own}: check `initial_members` \
                     and `id_token` on both",
                    header(FROM).unwrap_or("unknown"),
                )));
            }
        }
        Ok(request.into_inner())
    }

    fn admit_stream<T: Send + 'static>(&self, request: Request<Streaming<T>>) -> Result<Stream<T>, Status> {
        // A broken stream ends like a finished one: whoever reads it checks that it is complete.
        let requests = self.admit(request)?;
        Ok(requests.scan((), |(), message| std::future::ready(message.ok())).boxed())
    }
}

fn reply<T>(answer: Result<T, PeerError>) -> Result<Response<T>, Status> {
    answer.map(Response::new).map_err(to_status)
}

fn reply_stream<T: Send + 'static>(
    answer: Result<Stream<Result<T, PeerError>>, PeerError>,
) -> Result<Response<Stream<Result<T, Status>>>, Status> {
    reply(answer.map(|answers| answers.map(|answer| answer.map_err(to_status)).boxed()))
}

#[async_trait]
impl peer::peer_server::Peer for GrpcService {
    type AppendStream = Stream<Result<peer::AppendEntriesResponse, Status>>;
    type ForwardStream = Stream<Result<peer::ForwardResponse, Status>>;

    async fn append(
        &self,
        request: Request<Streaming<peer::AppendEntriesRequest>>,
    ) -> Result<Response<Self::AppendStream>, Status> {
        reply_stream(self.peer.append(self.admit_stream(request)?).await)
    }

    async fn heartbeat(
        &self,
        request: Request<peer::AppendEntriesRequest>,
    ) -> Result<Response<peer::AppendEntriesResponse>, Status> {
        reply(self.peer.heartbeat(self.admit(request)?).await)
    }

    async fn vote(
        &self,
        request: Request<peer::VoteRequest>,
    ) -> Result<Response<peer::VoteResponse>, Status> {
        reply(self.peer.vote(self.admit(request)?).await)
    }

    async fn pre_vote(
        &self,
        request: Request<peer::VoteRequest>,
    ) -> Result<Response<peer::VoteResponse>, Status> {
        reply(self.peer.pre_vote(self.admit(request)?).await)
    }

    async fn transfer_leader(
        &self,
        request: Request<peer::TransferLeaderRequest>,
    ) -> Result<Response<peer::TransferLeaderResponse>, Status> {
        reply(self.peer.transfer_leader(self.admit(request)?).await)
    }

    async fn install_snapshot(
        &self,
        request: Request<Streaming<peer::SnapshotChunk>>,
    ) -> Result<Response<peer::InstallSnapshotResponse>, Status> {
        reply(self.peer.install_snapshot(self.admit_stream(request)?).await)
    }

    async fn read_index(
        &self,
        request: Request<peer::ReadIndexRequest>,
    ) -> Result<Response<peer::ReadIndexResponse>, Status> {
        reply(self.peer.read_index(self.admit(request)?).await)
    }

    async fn forward(
        &self,
        request: Request<Streaming<peer::ForwardRequest>>,
    ) -> Result<Response<Self::ForwardStream>, Status> {
        reply_stream(self.peer.forward(self.admit_stream(request)?).await)
    }

    async fn describe(
        &self,
        request: Request<peer::DescribeRequest>,
    ) -> Result<Response<peer::DescribeResponse>, Status> {
        reply(self.peer.describe(self.admit(request)?).await)
    }

    async fn get_digest(
        &self,
        request: Request<peer::GetDigestRequest>,
    ) -> Result<Response<peer::GetDigestResponse>, Status> {
        reply(self.peer.get_digest(self.admit(request)?).await)
    }
}
