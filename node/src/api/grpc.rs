//! The gRPC services: they read deadlines, call the API and map errors. Nothing is decided here.

use std::{sync::Arc, time::Duration};

use futures::{Stream, StreamExt, stream::BoxStream};
use tidemark_proto::{
    ApiError,
    v1::{
        self, boundaries_server::Boundaries, cluster_server::Cluster, event_store_server::EventStore,
        save_events_stream_response::Result as SaveResult,
    },
};
use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming, metadata::MetadataMap};

use super::Api;

/// Saves of one stream that are in progress at once; more wait in the stream's flow control.
const STREAM_SAVES_IN_FLIGHT: usize = 4_096;

/// A caller with a deadline is answered this much earlier, or a fifth of its patience: at the deadline itself its own
/// library gives up, and the typed error that says what became of the request would never be read.
const ANSWER_BEFORE: Duration = Duration::from_millis(400);

/// Largest `payload` of a ping, in bytes.
const PING_BYTES_MAX: usize = 64 * 1024;

/// The three services, over one [`Api`].
#[derive(Clone)]
pub struct Services {
    api: Arc<Api>,
}

impl Services {
    /// Services over `api`.
    pub fn new(api: Arc<Api>) -> Self {
        Self { api }
    }

    fn deadline(&self, metadata: &MetadataMap) -> Instant {
        self.api.deadline(grpc_timeout(metadata).map(|timeout| timeout - (timeout / 5).min(ANSWER_BEFORE)))
    }
}

/// The `grpc-timeout` header: at most eight digits and a unit.
fn grpc_timeout(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(value * 3_600)),
        "M" => Some(Duration::from_secs(value * 60)),
        "S" => Some(Duration::from_secs(value)),
        "m" => Some(Duration::from_millis(value)),
        "u" => Some(Duration::from_micros(value)),
        "n" => Some(Duration::from_nanos(value)),
        _ => None,
    }
}

fn reply<T>(answer: Result<T, ApiError>) -> Result<Response<T>, Status> {
    answer.map(Response::new).map_err(Status::from)
}

async fn save_of_stream(api: &Api, request: v1::SaveEventsStreamRequest) -> v1::SaveEventsStreamResponse {
    let request_id = request.request_id;
    let timeout = (request.timeout_ms > 0).then(|| Duration::from_millis(request.timeout_ms.into()));
    let missing = ApiError::InvalidRequest { field: "save".to_owned(), why: "it is missing".to_owned() };
    let saved = match request.save {
        Some(save) => api.save_events(save, api.deadline(timeout)).await,
        None => Err(missing),
    };
    let result = match saved {
        Ok(written) => SaveResult::Written(written),
        Err(error) => SaveResult::Error(v1::Error::from(error)),
    };
    v1::SaveEventsStreamResponse { request_id, result: Some(result) }
}

/// Answers saves as they complete. A broken request stream, and a node that stops, end the answers after those in
/// progress.
fn save_stream(
    api: Arc<Api>,
    requests: impl Stream<Item = Result<v1::SaveEventsStreamRequest, Status>> + Send + 'static,
) -> BoxStream<'static, Result<v1::SaveEventsStreamResponse, Status>> {
    let stopping = Arc::clone(&api);
    let requests = requests.take_until(async move { stopping.stopping().await });
    let answers = requests.map(move |request| {
        let api = Arc::clone(&api);
        async move { Ok(save_of_stream(&api, request?).await) }
    });
    answers.buffer_unordered(STREAM_SAVES_IN_FLIGHT).boxed()
}

#[tonic::async_trait]
impl EventStore for Services {
    type SaveEventsStreamStream = BoxStream<'static, Result<v1::SaveEventsStreamResponse, Status>>;

    async fn save_events(
        &self,
        request: Request<v1::SaveEventsRequest>,
    ) -> Result<Response<v1::WriteResult>, Status> {
        let deadline = self.deadline(request.metadata());
        reply(self.api.save_events(request.into_inner(), deadline).await)
    }

    async fn save_events_stream(
        &self,
        request: Request<Streaming<v1::SaveEventsStreamRequest>>,
    ) -> Result<Response<Self::SaveEventsStreamStream>, Status> {
        Ok(Response::new(save_stream(Arc::clone(&self.api), request.into_inner())))
    }

    async fn get_events(
        &self,
        request: Request<v1::GetEventsRequest>,
    ) -> Result<Response<v1::GetEventsResponse>, Status> {
        let deadline = self.deadline(request.metadata());
        reply(self.api.get_events(request.into_inner(), deadline).await)
    }

    async fn ping(&self, request: Request<v1::PingRequest>) -> Result<Response<v1::PingResponse>, Status> {
        let payload = request.into_inner().payload;
        if payload.len() > PING_BYTES_MAX {
            let why = format!("{} bytes; at most {PING_BYTES_MAX} are returned", payload.len());
            return reply(Err(ApiError::InvalidRequest { field: "payload".to_owned(), why }));
        }
        Ok(Response::new(v1::PingResponse { payload }))
    }

    async fn get_server_info(
        &self,
        _: Request<v1::GetServerInfoRequest>,
    ) -> Result<Response<v1::GetServerInfoResponse>, Status> {
        Ok(Response::new(self.api.server_info()))
    }
}

#[tonic::async_trait]
impl Boundaries for Services {
    async fn create_boundary(
        &self,
        request: Request<v1::CreateBoundaryRequest>,
    ) -> Result<Response<v1::CreateBoundaryResponse>, Status> {
        let deadline = self.deadline(request.metadata());
        reply(self.api.create_boundary(request.into_inner(), deadline).await)
    }

    async fn list_boundaries(
        &self,
        request: Request<v1::ListBoundariesRequest>,
    ) -> Result<Response<v1::ListBoundariesResponse>, Status> {
        let deadline = self.deadline(request.metadata());
        reply(self.api.list_boundaries(deadline).await)
    }
}

#[tonic::async_trait]
impl Cluster for Services {
    async fn get_cluster_info(
        &self,
        _: Request<v1::GetClusterInfoRequest>,
    ) -> Result<Response<v1::GetClusterInfoResponse>, Status> {
        Ok(Response::new(self.api.cluster_info().await))
    }

    async fn compare_replicas(
        &self,
        request: Request<v1::CompareReplicasRequest>,
    ) -> Result<Response<v1::CompareReplicasResponse>, Status> {
        reply(self.api.compare_replicas(request.into_inner()).await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeout(text: &str) -> Option<Duration> {
        let mut metadata = MetadataMap::new();
        metadata.insert("grpc-timeout", text.parse().expect("the test's header is ASCII"));
        grpc_timeout(&metadata)
    }

    #[test]
    fn a_grpc_timeout_is_read_in_every_unit() {
        assert_eq!(timeout("2H"), Some(Duration::from_secs(7_200)));
        assert_eq!(timeout("3M"), Some(Duration::from_secs(180)));
        assert_eq!(timeout("4S"), Some(Duration::from_secs(4)));
        assert_eq!(timeout("5m"), Some(Duration::from_millis(5)));
        assert_eq!(timeout("6u"), Some(Duration::from_micros(6)));
        assert_eq!(timeout("7n"), Some(Duration::from_nanos(7)));
    }

    #[test]
    fn a_malformed_grpc_timeout_counts_as_none() {
        for text in ["", "S", "12", "123456789S", "-1S", "1x"] {
            assert_eq!(timeout(text), None, "{text:?}");
        }
    }
}
