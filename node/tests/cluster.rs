//! Three real nodes in one process: any node takes any request, and none of them forgets.

#[allow(dead_code)] // Each test binary uses a part of it.
mod support;

use std::time::Duration;

use support::{Cluster, PATIENCE, boundary, everything};
use tidemark_client::{EventToSave, SaveRequest};
use tidemark_proto::{
    ApiError, LimitKind,
    v1::{self, event_store_client::EventStoreClient},
};

fn numbered(number: usize) -> SaveRequest {
    let data = format!(r#"{{"number":{number}}}"#);
    SaveRequest::new("orders")
        .event(EventToSave::new("OrderPlaced", data).event_id(format!("event-{number}")))
}

fn ids(response: &v1::GetEventsResponse) -> Vec<String> {
    response.events.iter().map(|event| event.event_id.clone()).collect()
}

fn expected(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("event-{number}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_takes_saves_and_every_linearizable_read_sees_them() {
    let cluster = Cluster::start(3, |_| {}).await;
    let leader = cluster.leader().await;
    let clients = [cluster.client(0).await, cluster.client(1).await, cluster.client(2).await];
    clients[(leader + 1) % 3].create_boundary(boundary("orders")).await.expect("a follower forwards");
    for number in 0..12 {
        clients[number % 3].save(numbered(number)).await.expect("any node takes a save");
        let read =
            clients[(number + 1) % 3].get_events(everything("orders")).await.expect("any node answers");
        assert_eq!(ids(&read), expected(number + 1), "a linearizable read sees what was acknowledged");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_can_be_read_on_any_replica_at_its_position() {
    let cluster = Cluster::start(3, |_| {}).await;
    let clients = [cluster.client(0).await, cluster.client(1).await, cluster.client(2).await];
    clients[0].create_boundary(boundary("orders")).await.expect("the boundary is created");
    for number in 0..9 {
        let written = clients[number % 3].save(numbered(number)).await.expect("any node takes a save");
        let level =
            v1::read_consistency::Level::AtLeast(written.log_position.expect("a save has a position"));
        let consistency = Some(v1::ReadConsistency { level: Some(level) });
        for client in &clients {
            let request = v1::GetEventsRequest { consistency, ..everything("orders") };
            let read = client.get_events(request).await.expect("the replica catches up");
            assert_eq!(ids(&read), expected(number + 1));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn saves_go_on_when_the_leader_stops_and_it_catches_up_when_it_is_back() {
    let mut cluster = Cluster::start(3, |_| {}).await;
    let leader = cluster.leader().await;
    let other = (leader + 1) % 3;
    let client = cluster.client(other).await;
    client.create_boundary(boundary("orders")).await.expect("the boundary is created");
    client.save(numbered(0)).await.expect("the first save");
    cluster.stop_node(leader).await;
    for number in 1..6 {
        client.save(numbered(number)).await.expect("two of three go on");
    }
    cluster.start_node(leader).await;
    let returned = cluster.client(leader).await;
    let read = returned.get_events(everything("orders")).await.expect("it serves again");
    assert_eq!(ids(&read), expected(6));
    let compared = client.compare_replicas(PATIENCE).await.expect("all replicas answer");
    assert!(compared.equal, "{compared:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_down_while_the_log_was_cut_catches_up_through_a_snapshot() {
    let mut cluster = Cluster::start(3, |config| {
        config.raft.segment_bytes = 256 * 1024;
        config.limits.max_entry_bytes = 64 * 1024;
        config.limits.max_save_bytes = 32 * 1024;
        config.limits.max_event_bytes = 16 * 1024;
        config.sequencer.entry_bytes = 32 * 1024;
        config.limits.peer_append_bytes = 64 * 1024;
        config.raft.snapshot_log_bytes = 1024 * 1024;
        config.raft.keep_log_bytes = 256 * 1024;
    })
    .await;
    let away = (cluster.leader().await + 1) % 3;
    let client = cluster.client((away + 1) % 3).await;
    client.create_boundary(boundary("orders")).await.expect("the boundary is created");
    client.save(numbered(0)).await.expect("the first save");
    cluster.stop_node(away).await;
    let text = "x".repeat(8_000);
    let mut number = 1;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let data = format!(r#"{{"number":{number},"text":"{text}"}}"#);
        let event = EventToSave::new("OrderPlaced", data).event_id(format!("event-{number}"));
        client.save(SaveRequest::new("orders").event(event)).await.expect("two of three go on");
        number += 1;
        let info = client.cluster_info().await.expect("the cluster answers");
        let cut =
            info.members.iter().filter(|member| member.reachable).all(|member| member.first_log_index > 10);
        if cut {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "the log was not cut: {info:?}");
    }
    cluster.start_node(away).await;
    let returned = cluster.client(away).await;
    let mut request = everything("orders");
    request.count = 10_000;
    let mut read = Vec::new();
    loop {
        let page = returned.get_events(request.clone()).await.expect("it serves again");
        read.extend(ids(&page));
        match page.next_position {
            Some(next) if page.has_more => request.from_position = Some(next),
            _ => break,
        }
    }
    assert_eq!(read, expected(number));
    let compared = client.compare_replicas(PATIENCE).await.expect("all replicas answer");
    assert!(compared.equal, "{compared:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_stays_full_is_a_typed_error_and_nothing_of_it_is_stored() {
    // One request in the log, two in the queue and two on the way to it: all others find it full.
    let mut cluster = Cluster::start(3, |config| {
        config.limits.queue_requests = 2;
        config.sequencer.entries_in_flight = 1;
        config.sequencer.entry_requests = 1;
    })
    .await;
    let leader = cluster.leader().await;
    let client = cluster.client(leader).await;
    client.create_boundary(boundary("orders")).await.expect("the boundary is created");
    client.save(numbered(0)).await.expect("the first save");
    // Without a quorum nothing leaves the queue.
    let others = [(leader + 1) % 3, (leader + 2) % 3];
    for other in others {
        cluster.stop_node(other).await;
    }
    let address = format!("http://{}", cluster.address(leader));
    let raw = EventStoreClient::connect(address).await.expect("the node answers");
    let mut saves = tokio::task::JoinSet::new();
    for number in 1..=20 {
        let mut raw = raw.clone();
        saves.spawn(async move {
            let event = v1::EventToSave {
                event_type: "OrderPlaced".to_owned(),
                data: format!(r#"{{"number":{number}}}"#).into(),
                ..v1::EventToSave::default()
            };
            let save = v1::SaveEventsRequest {
                boundary: "orders".to_owned(),
                events: vec![event],
                ..v1::SaveEventsRequest::default()
            };
            let mut request = tonic::Request::new(save);
            request.set_timeout(Duration::from_secs(1));
            raw.save_events(request).await.map(tonic::Response::into_inner).map_err(ApiError::from)
        });
    }
    let results = saves.join_all().await;
    let full = results.iter().filter(|result| {
        matches!(result, Err(ApiError::LimitExceeded { limit, kind: LimitKind::Queue, .. }) if limit == "queue_requests")
    });
    assert!(full.count() > 0, "{results:?}");
    assert!(results.iter().all(Result::is_err), "{results:?}");
    for other in others {
        cluster.start_node(other).await;
    }
    client.save(numbered(1)).await.expect("the node goes on when it has a quorum again");
    let read = client.get_events(everything("orders")).await.expect("the node answers");
    let full_queue_events = read.events.iter().filter(|event| !event.event_id.starts_with("event-")).count();
    // Those that were in flight when the quorum went have an unknown outcome; the refused ones have not.
    let unknown =
        results.iter().filter(|result| matches!(result, Err(ApiError::OutcomeUnknown { .. }))).count();
    assert!(
        full_queue_events <= unknown,
        "{full_queue_events} events of {unknown} unknown outcomes: {results:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_a_quorum_answers_local_reads_only() {
    let mut cluster = Cluster::start(3, |_| {}).await;
    let client = cluster.client(0).await;
    client.create_boundary(boundary("orders")).await.expect("the boundary is created");
    let written = client.save(numbered(0)).await.expect("the first save");
    let at_least = v1::read_consistency::Level::AtLeast(written.log_position.expect("a save has a position"));
    let request = v1::GetEventsRequest {
        consistency: Some(v1::ReadConsistency { level: Some(at_least) }),
        ..everything("orders")
    };
    client.get_events(request).await.expect("the write has arrived here");
    cluster.stop_node(1).await;
    cluster.stop_node(2).await;

    let local = v1::GetEventsRequest {
        consistency: Some(v1::ReadConsistency {
            level: Some(v1::read_consistency::Level::Local(v1::Local {})),
        }),
        ..everything("orders")
    };
    let read = client.get_events(local).await.expect("a local read needs nobody");
    assert_eq!(ids(&read), expected(1));

    let mut options = tidemark_client::Options::new([cluster.address(0)]);
    options.discovery = tidemark_client::Discovery::GivenOnly;
    options.request_timeout = Duration::from_secs(2);
    let impatient = tidemark_client::Client::connect(options).await.expect("the node answers");
    impatient.get_events(everything("orders")).await.expect_err("nobody can confirm that nothing is newer");
    impatient.save(numbered(1)).await.expect_err("nobody can confirm the write");
}
