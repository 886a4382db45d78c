//! What the node offers, callable without a socket. The gRPC services are thin over this.

mod boundaries;
mod cluster;
mod event;
pub mod grpc;
pub mod json;
pub mod limits;
pub mod outcome;
mod read;
mod save;
pub mod validate;

use std::{sync::Arc, time::Duration};

use tidemark_proto::{ApiError, v1};
use tidemark_raft::{Handle, environment::Environment};
use tokio::{sync::watch, time::Instant};

use crate::leader::Router;
use boundaries::Registry;
use limits::Limits;

/// Whether the node can answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It has not yet applied everything that it had committed before it restarted.
    Recovering,
    /// It takes requests.
    Serving,
    /// It is stopping.
    Stopping,
}

/// The node's offer, over one Raft group.
pub struct Api {
    raft: Handle,
    router: Arc<Router>,
    environment: Environment,
    limits: Limits,
    registry: Registry,
    readiness: watch::Receiver<Readiness>,
    request_timeout: Duration,
    started: Duration,
    client_address: String,
}

/// What an [`Api`] is made of.
pub struct Parts {
    /// The group.
    pub raft: Handle,
    /// The way to the leader.
    pub router: Arc<Router>,
    /// Clocks and blocking work.
    pub environment: Environment,
    /// Bounds of requests.
    pub limits: Limits,
    /// Whether the node can answer.
    pub readiness: watch::Receiver<Readiness>,
    /// The deadline of a request that names none.
    pub request_timeout: Duration,
    /// Where clients reach this node.
    pub client_address: String,
}

impl Api {
    /// The offer of one node.
    pub fn new(parts: Parts) -> Self {
        let started = parts.environment.clock.monotonic();
        let Parts { raft, router, environment, limits, readiness, request_timeout, client_address } = parts;
        let registry = Registry::default();
        Self {
            raft,
            router,
            environment,
            limits,
            registry,
            readiness,
            request_timeout,
            started,
            client_address,
        }
    }

    /// When a request that came now and allows `timeout` must be answered.
    pub fn deadline(&self, timeout: Option<Duration>) -> Instant {
        Instant::now() + timeout.unwrap_or(self.request_timeout)
    }

    /// The bounds of requests.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What the server is.
    pub fn server_info(&self) -> v1::GetServerInfoResponse {
        let identity = self.raft.identity();
        v1::GetServerInfoResponse {
            version: crate::VERSION.to_owned(),
            node_id: identity.node_id,
            cluster_id: identity.cluster_id.to_vec().into(),
            engine: self.raft.database().engine().to_owned(),
            uptime_ms: self.uptime_ms(),
            limits: Some(v1::Limits {
                max_event_bytes: self.limits.max_event_bytes,
                max_save_bytes: self.limits.max_save_bytes,
                max_events_per_save: self.limits.max_events_per_save as u64,
                max_page_bytes: self.limits.max_page_bytes,
                max_count: self.limits.max_count.into(),
            }),
        }
    }

    fn uptime_ms(&self) -> u64 {
        let uptime = self.environment.clock.monotonic().saturating_sub(self.started);
        u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX)
    }

    /// Waits until the node stops.
    async fn stopping(&self) {
        let mut readiness = self.readiness.clone();
        // An error means that the node is gone.
        let _ = readiness.wait_for(|readiness| *readiness == Readiness::Stopping).await;
    }

    /// Waits until the node serves, as long as the caller has patience.
    async fn serving(&self, deadline: Instant) -> Result<(), ApiError> {
        let mut readiness = self.readiness.clone();
        let serving = readiness.wait_for(|readiness| *readiness != Readiness::Recovering);
        match tokio::time::timeout_at(deadline, serving).await {
            Ok(Ok(readiness)) if *readiness == Readiness::Serving => Ok(()),
            Ok(_) => Err(ApiError::Stopping),
            Err(_) => Err(ApiError::Recovering),
        }
    }
}
