//! What the commands ask of a cluster, so that they can be tested without one.

use std::time::Duration;

use async_trait::async_trait;
use tidemark_client::{Client, Error, SaveRequest};
use tidemark_proto::v1::{
    Boundary, BoundaryDefinition, CompareReplicasResponse, EventToSave, GetClusterInfoResponse,
    GetEventsRequest, GetEventsResponse, SaveEventsRequest, WriteResult,
};

/// The requests that commands make.
#[async_trait]
pub trait Api: Send + Sync {
    /// Appends events without conditions. A repeat with the same key writes nothing again.
    async fn save(&self, boundary: &str, events: &[EventToSave], key: &str) -> Result<WriteResult, Error>;
    /// One page of events.
    async fn read(&self, request: GetEventsRequest) -> Result<GetEventsResponse, Error>;
    /// Creates a boundary; the same definition again is no error.
    async fn create_boundary(&self, definition: BoundaryDefinition) -> Result<Boundary, Error>;
    /// All boundaries by name.
    async fn list_boundaries(&self) -> Result<Vec<Boundary>, Error>;
    /// What one node knows about every member.
    async fn cluster_info(&self) -> Result<GetClusterInfoResponse, Error>;
    /// Compares the digests of all replicas.
    async fn compare_replicas(&self, timeout: Duration) -> Result<CompareReplicasResponse, Error>;
}

#[async_trait]
impl Api for Client {
    async fn save(&self, boundary: &str, events: &[EventToSave], key: &str) -> Result<WriteResult, Error> {
        let request = SaveEventsRequest {
            boundary: boundary.to_owned(),
            events: events.to_vec(),
            idempotency_key: key.to_owned(),
            ..SaveEventsRequest::default()
        };
        Client::save(self, SaveRequest::from(request)).await
    }

    async fn read(&self, request: GetEventsRequest) -> Result<GetEventsResponse, Error> {
        self.get_events(request).await
    }

    async fn create_boundary(&self, definition: BoundaryDefinition) -> Result<Boundary, Error> {
        Client::create_boundary(self, definition).await
    }

    async fn list_boundaries(&self) -> Result<Vec<Boundary>, Error> {
        Client::list_boundaries(self).await
    }

    async fn cluster_info(&self) -> Result<GetClusterInfoResponse, Error> {
        Client::cluster_info(self).await
    }

    async fn compare_replicas(&self, timeout: Duration) -> Result<CompareReplicasResponse, Error> {
        Client::compare_replicas(self, timeout).await
    }
}

/// Whether the same request may succeed later. The client has repeated it already until its own time was up.
pub fn may_succeed_later(error: &Error) -> bool {
    match error {
        Error::OutcomeUnknown { .. } | Error::Unavailable { .. } => true,
        Error::Api(_) | Error::InvalidAddress { .. } | Error::NoAddress => false,
    }
}
