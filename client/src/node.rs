//! One node as a client sees it: its connection, its save stream, and whether it is worth trying.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message;
use tidemark_proto::v1::event_store_client::EventStoreClient;
use tidemark_proto::v1::{SaveEventsRequest, WriteResult};
use tidemark_proto::{ApiError, Retry};
use tokio::time::{Instant, timeout_at};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

use crate::error::Error;
use crate::options::Options;
use crate::retry::Failure;
use crate::save_stream::{SaveStream, no_answer};

/// After a failure a node is left alone for this long, twice as long after each further one.
const AVOID_FIRST: Duration = Duration::from_millis(250);
const AVOID_MAX: Duration = Duration::from_secs(10);

/// The defaults of HTTP/2, 64 KiB, would stop a page or a burst of saves after each round trip.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;

pub(crate) struct Node {
    address: String,
    channel: Channel,
    max_message_bytes: usize,
    stream: Mutex<Option<Arc<SaveStream>>>,
    /// The node does not offer the stream.
    unary_only: AtomicBool,
    /// Failures since the last success; read on every success, hence outside the lock.
    failures: AtomicU32,
    avoid_until: Mutex<Option<Instant>>,
}

impl Node {
    /// Nothing is connected before the first call.
    pub(crate) fn new(address: &str, options: &Options) -> Result<Self, Error> {
        let channel = endpoint(address, options)?.connect_lazy();
        Ok(Self {
            address: bare(address).to_owned(),
            channel,
            max_message_bytes: options.max_message_bytes,
            stream: Mutex::new(None),
            unary_only: AtomicBool::new(false),
            failures: AtomicU32::new(0),
            avoid_until: Mutex::new(None),
        })
    }

    /// `host:port`.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// One attempt to save, until the deadline of the attempt.
    pub(crate) async fn save(&self, save: &Bytes, deadline: Instant) -> Result<WriteResult, Failure> {
        if !self.unary_only.load(Ordering::Relaxed) {
            let stream = self.stream();
            let answer = stream.save(save.clone(), deadline).await;
            if answer.is_ok() || !stream.is_unsupported() {
                return answer;
            }
            tracing::info!(address = %self.address, "the node offers no save stream, saving one by one");
            self.unary_only.store(true, Ordering::Relaxed);
        }
        self.save_alone(save, deadline).await
    }

    async fn save_alone(&self, save: &Bytes, deadline: Instant) -> Result<WriteResult, Failure> {
        let save = SaveEventsRequest::decode(save.clone()).expect("the client encoded this save itself");
        let mut client = EventStoreClient::new(self.channel());
        attempt(deadline, |timeout| {
            let mut request = Request::new(save);
            request.set_timeout(timeout);
            async move { client.save_events(request).await }
        })
        .await
    }

    fn stream(&self) -> Arc<SaveStream> {
        let mut current = self.stream.lock();
        if let Some(stream) = current.as_ref().filter(|stream| stream.is_open()) {
            return stream.clone();
        }
        let stream = Arc::new(SaveStream::open(self.channel(), self.max_message_bytes));
        *current = Some(stream.clone());
        stream
    }

    pub(crate) fn succeeded(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
            *self.avoid_until.lock() = None;
        }
    }

    /// Thousands of saves fail together when a connection breaks: while the node is avoided, that counts once.
    pub(crate) fn failed(&self) {
        let now = Instant::now();
        let mut avoid_until = self.avoid_until.lock();
        if avoid_until.is_some_and(|until| until > now) {
            return;
        }
        let failures = self.failures.fetch_add(1, Ordering::Relaxed);
        let pause = AVOID_FIRST.saturating_mul(1 << failures.min(10)).min(AVOID_MAX);
        *avoid_until = Some(now + pause);
    }

    /// The node failed so recently that others should be tried first.
    pub(crate) fn is_avoided(&self) -> bool {
        self.failures.load(Ordering::Relaxed) != 0
            && self.avoid_until.lock().is_some_and(|until| until > Instant::now())
    }
}

/// One unary call, until the deadline of the attempt. The node is told how long it has.
pub(crate) async fn attempt<T, F>(deadline: Instant, call: impl FnOnce(Duration) -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<Response<T>, Status>>,
{
    let timeout = deadline.saturating_duration_since(Instant::now());
    match timeout_at(deadline, call(timeout)).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(failure_of(&status)),
        Err(_elapsed) => Err(Failure::Lost(no_answer())),
    }
}

fn failure_of(status: &Status) -> Failure {
    let error = ApiError::from(status);
    if matches!(error, ApiError::Transport { .. }) && error.retryable() == Retry::WithIdempotencyKey {
        Failure::Lost(error)
    } else {
        Failure::Refused(error)
    }
}

fn endpoint(address: &str, options: &Options) -> Result<Endpoint, Error> {
    let invalid = || Error::InvalidAddress { address: address.to_owned() };
    let bare = bare(address);
    // Without a port the scheme's would be taken, which no node listens on.
    let (host, port) = bare.rsplit_once(':').ok_or_else(invalid)?;
    if host.is_empty() || port.parse::<u16>().is_err() || bare.contains('/') {
        return Err(invalid());
    }
    let endpoint = Endpoint::from_shared(format!("http://{bare}")).map_err(|_invalid_uri| invalid())?;
    Ok(endpoint
        .connect_timeout(options.connect_timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(options.keep_alive_interval)
        .keep_alive_timeout(options.keep_alive_timeout)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES))
}

fn bare(address: &str) -> &str {
    let address = address.strip_prefix("http://").unwrap_or(address);
    address.strip_suffix('/').unwrap_or(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn addresses_need_a_port_and_no_other_scheme() {
        let options = Options::default();
        for good in ["127.0.0.1:7400", "http://node-1:7400", "http://node-1:7400/", "[::1]:7400"] {
            assert!(Node::new(good, &options).is_ok(), "{good}");
        }
        for bad in ["", "node-1", "https://node-1:7400", ":7400", "node-1:port", "node-1:7400/path", "a b:1"]
        {
            let error = Node::new(bad, &options).err();
            assert_eq!(error, Some(Error::InvalidAddress { address: bad.to_owned() }));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_is_avoided_for_longer_after_each_failure_and_trusted_after_a_success() {
        let node = Node::new("127.0.0.1:1", &Options::default()).expect("the address is good");
        let mut pause = AVOID_FIRST;
        for _ in 0..8 {
            node.failed();
            node.failed();
            tokio::time::advance(pause - Duration::from_millis(1)).await;
            assert!(node.is_avoided());
            tokio::time::advance(Duration::from_millis(2)).await;
            assert!(!node.is_avoided());
            pause = (pause * 2).min(AVOID_MAX);
        }
        node.failed();
        node.succeeded();
        assert!(!node.is_avoided());
    }
}
