//! The client: one call at a time, over whatever nodes there are.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use futures::stream::try_unfold;
use prost::Message;
use tidemark_proto::v1;
use tidemark_proto::v1::boundaries_client::BoundariesClient;
use tidemark_proto::v1::cluster_client::ClusterClient;
use tidemark_proto::v1::event_store_client::EventStoreClient;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::error::Error;
use crate::node::attempt;
use crate::options::{Discovery, Options};
use crate::retry::Attempts;
use crate::topology::{Refreshed, Topology};
use crate::types::SaveRequest;

/// What a comparison of replicas gets on top of its own time, to come back.
const COMPARE_GRACE: Duration = Duration::from_secs(5);
/// Between two looks for a node that answers, while connecting.
const CONNECT_PAUSE: Duration = Duration::from_millis(100);

/// A client of one cluster. Clones are cheap and share connections, streams and what is known of the cluster.
///
/// Dropping the future of a call gives the call up; a save given up may still be written.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    options: Options,
    topology: Arc<Topology>,
    in_flight: Semaphore,
    refresher: Option<AbortHandle>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(refresher) = &self.refresher {
            refresher.abort();
        }
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("node", &self.current_address()).finish_non_exhaustive()
    }
}

impl Client {
    /// Waits until a node answers, at most for [`Options::request_timeout`].
    ///
    /// # Errors
    /// Bad options, or [`Error::Unavailable`] if no node answered.
    pub async fn connect(options: Options) -> Result<Self, Error> {
        let deadline = Instant::now() + options.request_timeout;
        let client = Self::connect_lazy(options)?;
        let reached = timeout_at(deadline, async {
            while client.inner.topology.refresh().await == Refreshed::Unreachable {
                sleep(CONNECT_PAUSE).await;
            }
        });
        reached.await.map_err(|_elapsed| Error::Unavailable { last: None })?;
        Ok(client)
    }

    /// Connects with the first call. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Bad options.
    pub fn connect_lazy(options: Options) -> Result<Self, Error> {
        let topology = Arc::new(Topology::new(options.clone())?);
        let refresher = match options.discovery {
            Discovery::Members => {
                Some(tokio::spawn(Topology::keep_fresh(Arc::downgrade(&topology))).abort_handle())
            }
            Discovery::GivenOnly => None,
        };
        let in_flight = Semaphore::new(options.max_in_flight.clamp(1, Semaphore::MAX_PERMITS));
        Ok(Self { inner: Arc::new(Inner { options, topology, in_flight, refresher }) })
    }

    /// `host:port` of the node that the next call is sent to: the leader's, when it is known.
    pub fn current_address(&self) -> String {
        self.inner.topology.preferred().address().to_owned()
    }

    /// Appends events, all or none. Repeats by itself what is safe to repeat, always with the same idempotency
    /// key, until the time is up.
    ///
    /// # Errors
    /// [`Error::Api`] if a node refused the save for good, [`Error::Unavailable`] if it was not written in time, and
    /// [`Error::OutcomeUnknown`] if it may have been.
    pub async fn save(&self, request: SaveRequest) -> Result<v1::WriteResult, Error> {
        let inner = &*self.inner;
        let deadline = Instant::now() + request.timeout.unwrap_or(inner.options.request_timeout);
        let mut message = request.message;
        if message.idempotency_key.is_empty() {
            message.idempotency_key = random_key();
        }
        let save = Bytes::from(message.encode_to_vec());
        let idempotency_key = message.idempotency_key;

        let mut attempts = Attempts::until(deadline);
        let Some(_permit) = inner.admit(deadline).await else { return Err(attempts.out_of_time()) };
        while let Some(until) = attempts.next_deadline(inner.options.attempt_timeout) {
            let node = inner.topology.preferred();
            match node.save(&save, until).await {
                Ok(written) => {
                    node.succeeded();
                    return Ok(written);
                }
                Err(failure) => {
                    // An impatient caller is no sign of a bad node.
                    if Instant::now() < deadline {
                        inner.topology.learn_from(&node, &failure);
                    }
                    attempts.pause_after(failure).await?;
                }
            }
        }
        Err(attempts.save_out_of_time(idempotency_key))
    }

    /// One page of events.
    ///
    /// # Errors
    /// [`Error::Api`] if a node refused the request for good, else [`Error::Unavailable`] when the time is up.
    pub async fn get_events(&self, request: v1::GetEventsRequest) -> Result<v1::GetEventsResponse, Error> {
        self.event_store(request, |mut client, request| async move { client.get_events(request).await }).await
    }

    /// All events from the request's position on, page by page; `count` is the size of a page (0: 1,000). Each page
    /// is read when the stream gets there, with the request's consistency.
    pub fn read_all(
        &self,
        mut request: v1::GetEventsRequest,
    ) -> impl Stream<Item = Result<v1::Event, Error>> + Send + 'static {
        if request.count == 0 {
            request.count = 1000;
        }
        let start = (self.clone(), Some(request), Vec::new().into_iter());
        try_unfold(start, |(client, mut next, mut page)| async move {
            loop {
                if let Some(event) = page.next() {
                    return Ok(Some((event, (client, next, page))));
                }
                let Some(request) = next else { return Ok(None) };
                let answer = client.get_events(request.clone()).await?;
                page = answer.events.into_iter();
                // A page may be empty although there is more: a node looks at so many keys at a time.
                next = answer
                    .next_position
                    .filter(|_| answer.has_more)
                    .map(|position| v1::GetEventsRequest { from_position: Some(position), ..request });
            }
        })
    }

    /// Creates a boundary. The same name with the same definition again is no error.
    ///
    /// # Errors
    /// As [`get_events`](Self::get_events).
    pub async fn create_boundary(&self, definition: v1::BoundaryDefinition) -> Result<v1::Boundary, Error> {
        let request = v1::CreateBoundaryRequest { definition: Some(definition) };
        let answer = self
            .call(self.patience(), &request, |channel, request| async move {
                BoundariesClient::new(channel).create_boundary(request).await
            })
            .await?;
        Ok(answer.boundary.unwrap_or_default())
    }

    /// All boundaries, ascending by name.
    ///
    /// # Errors
    /// As [`get_events`](Self::get_events).
    pub async fn list_boundaries(&self) -> Result<Vec<v1::Boundary>, Error> {
        let limit = self.inner.options.max_message_bytes;
        let answer = self
            .call(self.patience(), &v1::ListBoundariesRequest {}, move |channel, request| async move {
                let mut client = BoundariesClient::new(channel).max_decoding_message_size(limit);
                client.list_boundaries(request).await
            })
            .await?;
        Ok(answer.boundaries)
    }

    /// What one node knows of every member.
    ///
    /// # Errors
    /// As [`get_events`](Self::get_events).
    pub async fn cluster_info(&self) -> Result<v1::GetClusterInfoResponse, Error> {
        self.call(self.patience(), &v1::GetClusterInfoRequest {}, |channel, request| async move {
            ClusterClient::new(channel).get_cluster_info(request).await
        })
        .await
    }

    /// Compares the digests of all replicas at one log entry; `timeout` is what the members get to compute them.
    ///
    /// # Errors
    /// As [`get_events`](Self::get_events).
    pub async fn compare_replicas(&self, timeout: Duration) -> Result<v1::CompareReplicasResponse, Error> {
        let timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX).max(1);
        let patience = Patience { call: timeout + COMPARE_GRACE, attempt: timeout + COMPARE_GRACE };
        let request = v1::CompareReplicasRequest { timeout_ms };
        self.call(patience, &request, |channel, request| async move {
            ClusterClient::new(channel).compare_replicas(request).await
        })
        .await
    }

    /// The way to a node and back; returns the payload as it came back.
    ///
    /// # Errors
    /// As [`get_events`](Self::get_events).
    pub async fn ping(&self, payload: impl Into<Bytes>) -> Result<Bytes, Error> {
        let request = v1::PingRequest { payload: payload.into() };
        let answer = self
            .event_store(request, |mut client, request| async move { client.ping(request).await })
            .await?;
        Ok(answer.payload)
    }

    /// Version, identity and limits of the node that answers.
    ///
    /// # Errors
    /// As [`get_events`](Self::get_events).
    pub async fn server_info(&self) -> Result<v1::GetServerInfoResponse, Error> {
        let request = v1::GetServerInfoRequest {};
        self.event_store(request, |mut client, request| async move { client.get_server_info(request).await })
            .await
    }

    async fn event_store<M, T, F>(
        &self,
        request: M,
        call: impl Fn(EventStoreClient<Channel>, Request<M>) -> F,
    ) -> Result<T, Error>
    where
        M: Clone,
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let limit = self.inner.options.max_message_bytes;
        self.call(self.patience(), &request, |channel, request| {
            call(EventStoreClient::new(channel).max_decoding_message_size(limit), request)
        })
        .await
    }

    fn patience(&self) -> Patience {
        let options = &self.inner.options;
        Patience { call: options.request_timeout, attempt: options.attempt_timeout }
    }

    /// One call that may be repeated freely, on one node after the other.
    async fn call<M, T, F>(
        &self,
        patience: Patience,
        message: &M,
        call: impl Fn(Channel, Request<M>) -> F,
    ) -> Result<T, Error>
    where
        M: Clone,
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let topology = &self.inner.topology;
        let deadline = Instant::now() + patience.call;
        let mut attempts = Attempts::until(deadline);
        while let Some(until) = attempts.next_deadline(patience.attempt) {
            let node = topology.preferred();
            let answer = attempt(until, |timeout| {
                let mut request = Request::new(message.clone());
                request.set_timeout(timeout);
                call(node.channel(), request)
            });
            match answer.await {
                Ok(answer) => {
                    node.succeeded();
                    return Ok(answer);
                }
                Err(failure) => {
                    if Instant::now() < deadline {
                        topology.learn_from(&node, &failure);
                    }
                    attempts.pause_after(failure).await?;
                }
            }
        }
        Err(attempts.out_of_time())
    }
}

/// How long a call and each of its attempts may take.
#[derive(Clone, Copy)]
struct Patience {
    call: Duration,
    attempt: Duration,
}

impl Inner {
    async fn admit(&self, deadline: Instant) -> Option<tokio::sync::SemaphorePermit<'_>> {
        // Without a timer while there is room.
        if let Ok(permit) = self.in_flight.try_acquire() {
            return Some(permit);
        }
        timeout_at(deadline, self.in_flight.acquire()).await.ok()?.ok()
    }
}

/// From the thread's generator: the system's would cost a system call for each save.
fn random_key() -> String {
    uuid::Builder::from_random_bytes(rand::random()).into_uuid().to_string()
}
