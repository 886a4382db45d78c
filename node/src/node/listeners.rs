//! The listeners of a node: one for clients, one for the other members.

use std::{sync::Arc, time::Duration};

use tidemark_proto::{
    FILE_DESCRIPTOR_SET,
    v1::{
        boundaries_server::BoundariesServer, cluster_server::ClusterServer,
        event_store_server::EventStoreServer,
    },
};
use tidemark_raft::{
    Handle,
    network::grpc::{GrpcOptions, PeerIdentity, server as peer_server},
};
use tokio::{net::TcpListener, sync::watch};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;

use super::StartError;
use crate::{
    api::{Api, Readiness, grpc::Services},
    config::Address,
};

/// HTTP/2 windows of clients: a stream of saves must not wait for window updates.
const CLIENT_STREAM_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
const CLIENT_CONNECTION_WINDOW_BYTES: u32 = 16 * 1024 * 1024;

pub(super) fn listen_error(address: &Address) -> impl FnOnce(std::io::Error) -> StartError {
    let address = address.clone();
    move |source| StartError::Listen { address, source }
}

pub(super) async fn bind(address: &Address) -> Result<TcpListener, StartError> {
    let resolved = address.resolve().map_err(listen_error(address))?;
    TcpListener::bind(resolved).await.map_err(listen_error(address))
}

pub(super) async fn serve_peers(
    raft: Handle,
    grpc: GrpcOptions,
    listener: TcpListener,
    stop: CancellationToken,
    ended: watch::Sender<Option<String>>,
) {
    let identity = PeerIdentity {
        cluster_id: raft.identity().cluster_id,
        group_id: raft.group_id(),
        node_id: raft.identity().node_id,
    };
    let served = tonic::transport::Server::builder()
        .tcp_nodelay(true)
        .initial_stream_window_size(CLIENT_CONNECTION_WINDOW_BYTES)
        .initial_connection_window_size(CLIENT_CONNECTION_WINDOW_BYTES)
        .add_service(peer_server(identity, raft.peer_service(), &grpc))
        .serve_with_incoming_shutdown(incoming(listener), stop.cancelled())
        .await;
    report(served, "peers", &stop, &ended);
}

pub(super) async fn serve_clients(
    api: Arc<Api>,
    listener: TcpListener,
    stop: CancellationToken,
    ended: watch::Sender<Option<String>>,
    readiness: watch::Receiver<Readiness>,
) {
    let services = Services::new(Arc::clone(&api));
    let request_bytes = usize::try_from(api.limits().max_save_bytes + api.limits().max_event_bytes);
    let request_bytes = request_bytes.unwrap_or(usize::MAX);
    let (reporter, health) = tonic_health::server::health_reporter();
    tokio::spawn(report_health(reporter, readiness));
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .expect("the descriptors were compiled with this binary");
    let served = tonic::transport::Server::builder()
        .tcp_nodelay(true)
        .initial_stream_window_size(CLIENT_STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CLIENT_CONNECTION_WINDOW_BYTES)
        .http2_keepalive_interval(Some(Duration::from_secs(10)))
        .add_service(EventStoreServer::new(services.clone()).max_decoding_message_size(request_bytes))
        .add_service(BoundariesServer::new(services.clone()))
        .add_service(ClusterServer::new(services))
        .add_service(health)
        .add_service(reflection)
        .serve_with_incoming_shutdown(incoming(listener), stop.cancelled())
        .await;
    report(served, "clients", &stop, &ended);
}

fn incoming(listener: TcpListener) -> impl futures::Stream<Item = std::io::Result<tokio::net::TcpStream>> {
    use futures::StreamExt;
    // Small answers must not wait for the peer's delayed acknowledgement.
    TcpListenerStream::new(listener)
        .map(|accepted| accepted.and_then(|stream| stream.set_nodelay(true).map(|()| stream)))
}

fn report(
    served: Result<(), tonic::transport::Error>,
    whom: &str,
    stop: &CancellationToken,
    ended: &watch::Sender<Option<String>>,
) {
    if stop.is_cancelled() {
        return;
    }
    let why = served.err().map_or_else(|| "it ended".to_owned(), |error| error.to_string());
    ended.send_replace(Some(format!("the listener for {whom}: {why}")));
}

async fn report_health(
    reporter: tonic_health::server::HealthReporter,
    mut readiness: watch::Receiver<Readiness>,
) {
    loop {
        let status = match *readiness.borrow_and_update() {
            Readiness::Serving => tonic_health::ServingStatus::Serving,
            Readiness::Recovering | Readiness::Stopping => tonic_health::ServingStatus::NotServing,
        };
        for service in ["", "tidemark.v1.EventStore", "tidemark.v1.Boundaries", "tidemark.v1.Cluster"] {
            reporter.set_service_status(service, status).await;
        }
        if readiness.changed().await.is_err() {
            return;
        }
    }
}
