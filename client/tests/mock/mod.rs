//! A node that does what a test tells it, on a runtime of its own, so that it can be killed with its connections.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use tidemark_client::v1::boundaries_server::{Boundaries, BoundariesServer};
use tidemark_client::v1::cluster_server::{Cluster, ClusterServer};
use tidemark_client::v1::event_store_server::{EventStore, EventStoreServer};
use tidemark_client::v1::save_events_stream_response::Result as Outcome;
use tidemark_client::v1::*;
use tidemark_client::{ApiError, Options};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{TcpListenerStream, UnboundedReceiverStream};
use tonic::{Request, Response, Status, Streaming};

/// What the node does with one save.
#[derive(Debug, Clone)]
pub enum Reply {
    Write,
    /// The answer comes twice.
    WriteTwice,
    /// The save is written, and the stream ends without an answer.
    WriteAndBreak,
    Refuse(ApiError),
    Silence,
    /// So many saves are collected and then answered, the last one first.
    Collect(usize),
}

/// What all nodes of a cluster agree on: the saves by idempotency key, each with the number of its first write.
#[derive(Default)]
pub struct Store {
    written: Mutex<HashMap<String, i64>>,
}

impl Store {
    pub fn keys(&self) -> Vec<String> {
        self.written.lock().keys().cloned().collect()
    }

    fn write(&self, key: &str) -> WriteResult {
        let mut written = self.written.lock();
        let next = i64::try_from(written.len()).unwrap() + 1;
        let already_applied = written.contains_key(key);
        let number = *written.entry(key.to_owned()).or_insert(next);
        let position = Position { commit_position: number, prepare_position: number };
        WriteResult { log_position: Some(position), write_id: key.to_owned(), already_applied }
    }
}

type SaveScript = Box<dyn FnMut(usize, &SaveEventsRequest) -> Reply + Send>;
type ReadScript = Box<dyn FnMut(usize, &GetEventsRequest) -> Result<GetEventsResponse, ApiError> + Send>;

pub struct State {
    pub store: Arc<Store>,
    /// Idempotency keys of all attempts, in order.
    pub attempts: Mutex<Vec<String>>,
    pub streams: AtomicUsize,
    pub unary_saves: AtomicUsize,
    pub reads: Mutex<Vec<GetEventsRequest>>,
    /// How the stream is refused as such.
    pub stream_refusal: Mutex<Option<ApiError>>,
    pub info: Mutex<Option<GetClusterInfoResponse>>,
    on_save: Mutex<SaveScript>,
    on_read: Mutex<ReadScript>,
}

pub struct Node {
    pub id: u64,
    pub address: String,
    pub state: Arc<State>,
    runtime: Option<Runtime>,
}

impl Node {
    pub fn start(id: u64, store: &Arc<Store>) -> Self {
        let state = Arc::new(State {
            store: store.clone(),
            attempts: Mutex::default(),
            streams: AtomicUsize::new(0),
            unary_saves: AtomicUsize::new(0),
            reads: Mutex::default(),
            stream_refusal: Mutex::default(),
            info: Mutex::default(),
            on_save: Mutex::new(Box::new(|_, _| Reply::Write)),
            on_read: Mutex::new(Box::new(|_, _| Ok(GetEventsResponse::default()))),
        });
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let services = Services(state.clone());
        runtime.spawn(async move {
            let incoming = TcpListenerStream::new(tokio::net::TcpListener::from_std(listener).unwrap())
                .inspect(|connection| connection.as_ref().unwrap().set_nodelay(true).unwrap());
            tonic::transport::Server::builder()
                .add_service(EventStoreServer::new(services.clone()))
                .add_service(BoundariesServer::new(services.clone()))
                .add_service(ClusterServer::new(services))
                .serve_with_incoming(incoming)
                .await
                .unwrap();
        });
        Self { id, address, state, runtime: Some(runtime) }
    }

    /// Sets what happens to saves; the script gets the number of attempts before this one.
    pub fn on_save(&self, script: impl FnMut(usize, &SaveEventsRequest) -> Reply + Send + 'static) {
        *self.state.on_save.lock() = Box::new(script);
    }

    pub fn on_read(
        &self,
        script: impl FnMut(usize, &GetEventsRequest) -> Result<GetEventsResponse, ApiError> + Send + 'static,
    ) {
        *self.state.on_read.lock() = Box::new(script);
    }

    pub fn attempts(&self) -> Vec<String> {
        self.state.attempts.lock().clone()
    }

    pub fn streams(&self) -> usize {
        self.state.streams.load(Ordering::SeqCst)
    }

    /// All connections end as when the process is killed.
    pub fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Tells all nodes who the members are and who leads in which term.
pub fn elect(nodes: &[&Node], leader: u64, term: u64) {
    let members = nodes
        .iter()
        .map(|node| MemberInfo {
            node_id: node.id,
            client_address: node.address.clone(),
            voter: true,
            ..Default::default()
        })
        .collect::<Vec<_>>();
    for node in nodes {
        *node.state.info.lock() = Some(GetClusterInfoResponse {
            node_id: node.id,
            leader_id: leader,
            term,
            members: members.clone(),
            ..Default::default()
        });
    }
}

/// Options under which a test fails rather than hangs.
pub fn options(address: &str) -> Options {
    Options::new([address])
}

/// Polls until the condition holds.
#[track_caller]
pub fn wait_until(what: &str, condition: impl Fn() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let waited = async {
            while !condition() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(30), waited).await;
        assert!(in_time.is_ok(), "{what}, at {caller}");
    }
}

#[derive(Clone)]
struct Services(Arc<State>);

impl State {
    fn reply(&self, save: &SaveEventsRequest) -> Reply {
        let mut attempts = self.attempts.lock();
        attempts.push(save.idempotency_key.clone());
        (self.on_save.lock())(attempts.len() - 1, save)
    }

    /// Returns when the stream is to break.
    async fn serve(
        &self,
        mut requests: Streaming<SaveEventsStreamRequest>,
        answers: &mpsc::UnboundedSender<Result<SaveEventsStreamResponse, Status>>,
    ) -> Result<(), Status> {
        let mut collected = Vec::new();
        let send = |request_id, outcome| {
            let _ = answers.send(Ok(SaveEventsStreamResponse { request_id, result: Some(outcome) }));
        };
        while let Some(request) = requests.message().await? {
            let id = request.request_id;
            let save = request.save.ok_or_else(|| Status::invalid_argument("a request without a save"))?;
            let key = &save.idempotency_key;
            match self.reply(&save) {
                Reply::Write => send(id, Outcome::Written(self.store.write(key))),
                Reply::WriteTwice => {
                    let written = self.store.write(key);
                    send(id, Outcome::Written(written.clone()));
                    send(id, Outcome::Written(written));
                }
                Reply::WriteAndBreak => {
                    self.store.write(key);
                    return Err(Status::unavailable("broken by the test"));
                }
                Reply::Refuse(error) => send(id, Outcome::Error(error.into())),
                Reply::Silence => {}
                Reply::Collect(count) => {
                    collected.push((id, self.store.write(key)));
                    if collected.len() == count {
                        for (id, written) in collected.drain(..).rev() {
                            send(id, Outcome::Written(written));
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

#[tonic::async_trait]
impl EventStore for Services {
    async fn save_events(
        &self,
        request: Request<SaveEventsRequest>,
    ) -> Result<Response<WriteResult>, Status> {
        self.0.unary_saves.fetch_add(1, Ordering::SeqCst);
        let save = request.into_inner();
        match self.0.reply(&save) {
            Reply::Write | Reply::WriteTwice | Reply::Collect(_) => {
                Ok(Response::new(self.0.store.write(&save.idempotency_key)))
            }
            Reply::WriteAndBreak => {
                self.0.store.write(&save.idempotency_key);
                Err(Status::unavailable("broken by the test"))
            }
            Reply::Refuse(error) => Err(error.into()),
            Reply::Silence => std::future::pending().await,
        }
    }

    type SaveEventsStreamStream =
        Pin<Box<dyn Stream<Item = Result<SaveEventsStreamResponse, Status>> + Send>>;

    async fn save_events_stream(
        &self,
        request: Request<Streaming<SaveEventsStreamRequest>>,
    ) -> Result<Response<Self::SaveEventsStreamStream>, Status> {
        self.0.streams.fetch_add(1, Ordering::SeqCst);
        if let Some(refusal) = self.0.stream_refusal.lock().clone() {
            return Err(refusal.into());
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        let state = self.0.clone();
        tokio::spawn(async move {
            if let Err(status) = state.serve(request.into_inner(), &sender).await {
                let _ = sender.send(Err(status));
            }
        });
        Ok(Response::new(UnboundedReceiverStream::new(receiver).boxed()))
    }

    async fn get_events(
        &self,
        request: Request<GetEventsRequest>,
    ) -> Result<Response<GetEventsResponse>, Status> {
        let request = request.into_inner();
        let mut reads = self.0.reads.lock();
        reads.push(request.clone());
        Ok(Response::new((self.0.on_read.lock())(reads.len() - 1, &request)?))
    }

    async fn ping(&self, request: Request<PingRequest>) -> Result<Response<PingResponse>, Status> {
        Ok(Response::new(PingResponse { payload: request.into_inner().payload }))
    }

    async fn get_server_info(
        &self,
        _request: Request<GetServerInfoRequest>,
    ) -> Result<Response<GetServerInfoResponse>, Status> {
        Ok(Response::new(GetServerInfoResponse { engine: "mock".to_owned(), ..Default::default() }))
    }
}

#[tonic::async_trait]
impl Boundaries for Services {
    async fn create_boundary(
        &self,
        request: Request<CreateBoundaryRequest>,
    ) -> Result<Response<CreateBoundaryResponse>, Status> {
        let definition = request.into_inner().definition.unwrap_or_default();
        if definition.name == "taken" {
            return Err(ApiError::BoundaryExists { boundary: definition.name }.into());
        }
        let boundary = Boundary { definition: Some(definition), ..Default::default() };
        Ok(Response::new(CreateBoundaryResponse { boundary: Some(boundary) }))
    }

    async fn list_boundaries(
        &self,
        _request: Request<ListBoundariesRequest>,
    ) -> Result<Response<ListBoundariesResponse>, Status> {
        let boundaries = vec![Boundary { incarnation: 7, ..Default::default() }];
        Ok(Response::new(ListBoundariesResponse { boundaries }))
    }
}

#[tonic::async_trait]
impl Cluster for Services {
    async fn get_cluster_info(
        &self,
        _request: Request<GetClusterInfoRequest>,
    ) -> Result<Response<GetClusterInfoResponse>, Status> {
        let info = self.0.info.lock().clone();
        info.map(Response::new).ok_or_else(|| ApiError::Recovering.into())
    }

    async fn compare_replicas(
        &self,
        request: Request<CompareReplicasRequest>,
    ) -> Result<Response<CompareReplicasResponse>, Status> {
        let equal = request.into_inner().timeout_ms == 1_500;
        Ok(Response::new(CompareReplicasResponse { equal, replicas: Vec::new() }))
    }
}
