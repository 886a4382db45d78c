//! What a client can do wrong, and that it harms nobody: each mistake has its own typed error, nothing of it is
//! stored, and the node goes on serving.

#[allow(dead_code)] // Each test binary uses a part of it.
mod support;

use support::{Cluster, boundary, everything};
use tidemark_client::{Client, Error, EventToSave, SaveRequest};
use tidemark_node::config::Config;
use tidemark_proto::{ApiError, LimitKind, v1};

async fn single(adjust: impl Fn(&mut Config)) -> (Cluster, Client) {
    let cluster = Cluster::start(1, adjust).await;
    let client = cluster.client(0).await;
    client.create_boundary(boundary("orders")).await.expect("the boundary is created");
    (cluster, client)
}

fn event(data: impl Into<Vec<u8>>) -> v1::EventToSave {
    v1::EventToSave {
        event_type: "OrderPlaced".to_owned(),
        data: data.into().into(),
        ..v1::EventToSave::default()
    }
}

async fn refused(client: &Client, events: Vec<v1::EventToSave>) -> ApiError {
    let request = SaveRequest::from(v1::SaveEventsRequest {
        boundary: "orders".to_owned(),
        events,
        ..v1::SaveEventsRequest::default()
    });
    match client.save(request).await {
        Err(Error::Api(error)) => error,
        other => panic!("expected a typed error, got {other:?}"),
    }
}

/// Saves something valid and reads exactly what was valid so far.
#[track_caller]
fn assert_only(response: &v1::GetEventsResponse, count: usize) {
    assert_eq!(response.events.len(), count, "nothing of a refused request is stored");
}

async fn assert_alive_with(client: &Client, count: usize) {
    let save = SaveRequest::new("orders").event(EventToSave::new("OrderPlaced", r#"{"total":1}"#));
    client.save(save).await.expect("the node goes on serving");
    let read = client.get_events(everything("orders")).await.expect("the node goes on serving");
    assert_only(&read, count);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_events_are_refused_with_field_and_reason() {
    let (_cluster, client) = single(|_| {}).await;
    let cases: [(&str, &str); 6] = [
        ("{", "events[1].data"),
        ("[1]", "events[1].data"),
        (r#"{"a":1} x"#, "events[1].data"),
        (r#"{"__eventType":"x"}"#, "events[1].data"),
        (r#"{"\u005f_x":1}"#, "events[1].data"),
        (r#"{"a":"\ud800"}"#, "events[1].data"),
    ];
    for (index, (data, expected)) in cases.into_iter().enumerate() {
        let error = refused(&client, vec![event(r#"{"ok":true}"#), event(data)]).await;
        let ApiError::InvalidRequest { field, why } = error else { panic!("{data}: {error:?}") };
        assert_eq!(field, expected, "{data}");
        assert!(!why.is_empty(), "{data}");
        assert_alive_with(&client, index + 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_large_names_the_limit() {
    let (_cluster, client) = single(|config| {
        config.limits.max_event_bytes = 1_000;
        config.limits.max_save_bytes = 3_000;
        config.limits.max_events_per_save = 4;
    })
    .await;
    let big = |bytes: usize| event(format!(r#"{{"text":"{}"}}"#, "x".repeat(bytes)));
    let cases = [
        (vec![big(1_001)], "max_event_bytes"),
        (vec![big(900), big(900), big(900), big(900)], "max_save_bytes"),
        (vec![big(1); 5], "max_events_per_save"),
    ];
    for (index, (events, expected)) in cases.into_iter().enumerate() {
        let error = refused(&client, events).await;
        let ApiError::LimitExceeded { limit, maximum, actual, kind } = error else { panic!("{error:?}") };
        assert_eq!((limit.as_str(), kind), (expected, LimitKind::Size));
        assert!(actual > maximum, "{actual} is above {maximum}");
        assert_alive_with(&client, index + 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_is_an_error_that_passes() {
    let (_cluster, client) = single(|config| {
        config.limits.queue_bytes = 4_000;
        config.limits.queue_requests = 2;
        config.sequencer.entries_in_flight = 1;
    })
    .await;
    let mut saves = tokio::task::JoinSet::new();
    for index in 0..200 {
        let client = client.clone();
        saves.spawn(async move {
            let text = "x".repeat(1_500);
            let data = format!(r#"{{"index":{index},"text":"{text}"}}"#);
            client.save(SaveRequest::new("orders").event(EventToSave::new("OrderPlaced", data))).await
        });
    }
    // The client waits its turn and repeats what was refused; in the end everything is there once.
    let results = saves.join_all().await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 200, "{results:?}");
    assert_alive_with(&client, 201).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_boundary_is_named() {
    let (_cluster, client) = single(|_| {}).await;
    let save = SaveRequest::new("nowhere").event(EventToSave::new("OrderPlaced", "{}"));
    let error = client.save(save).await.expect_err("there is no such boundary");
    assert!(
        matches!(&error, Error::Api(ApiError::BoundaryUnknown { boundary }) if boundary == "nowhere"),
        "{error:?}"
    );
    let error = client.get_events(everything("nowhere")).await.expect_err("there is no such boundary");
    assert!(
        matches!(&error, Error::Api(ApiError::BoundaryUnknown { boundary }) if boundary == "nowhere"),
        "{error:?}"
    );
    assert_alive_with(&client, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_count_outside_its_range_is_refused() {
    let (_cluster, client) = single(|_| {}).await;
    for count in [0, 10_001] {
        let request = v1::GetEventsRequest { count, ..everything("orders") };
        let error = client.get_events(request).await.expect_err("the count is out of range");
        assert!(
            matches!(
                &error,
                Error::Api(
                    ApiError::InvalidRequest { .. } | ApiError::LimitExceeded { kind: LimitKind::Size, .. }
                )
            ),
            "{count}: {error:?}"
        );
    }
    assert_alive_with(&client, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_was_used_for_another_request_is_refused() {
    let (_cluster, client) = single(|_| {}).await;
    let save = |data: &'static str| {
        SaveRequest::new("orders").event(EventToSave::new("OrderPlaced", data)).idempotency_key("key-1")
    };
    let first = client.save(save(r#"{"n":1}"#)).await.expect("the first save is written");
    let again = client.save(save(r#"{"n":1}"#)).await.expect("a repeat returns the first result");
    assert_eq!((again.log_position, again.already_applied), (first.log_position, true));
    let error = client.save(save(r#"{"n":2}"#)).await.expect_err("another request under the same key");
    assert!(matches!(error, Error::Api(ApiError::IdempotencyKeyReused)), "{error:?}");
    assert_alive_with(&client, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consistency_checks_are_refused_until_they_exist() {
    let (_cluster, client) = single(|_| {}).await;
    let request = SaveRequest::from(v1::SaveEventsRequest {
        boundary: "orders".to_owned(),
        events: vec![event("{}")],
        consistency: vec![v1::Observation::default()],
        ..v1::SaveEventsRequest::default()
    });
    let error = client.save(request).await.expect_err("not offered yet");
    assert!(matches!(error, Error::Api(ApiError::NotSupported { .. })), "{error:?}");
    assert_alive_with(&client, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_boundary_is_created_once_and_keeps_its_definition() {
    let (_cluster, client) = single(|_| {}).await;
    client.create_boundary(boundary("orders")).await.expect("the same definition again is no error");
    let other = v1::BoundaryDefinition { time_bucket_ms: 1_000, ..boundary("orders") };
    let error = client.create_boundary(other).await.expect_err("another definition");
    assert!(
        matches!(&error, Error::Api(ApiError::BoundaryExists { boundary }) if boundary == "orders"),
        "{error:?}"
    );
    let error = client.create_boundary(boundary("no spaces")).await.expect_err("not a name");
    assert!(matches!(&error, Error::Api(ApiError::InvalidRequest { .. })), "{error:?}");
    let names: Vec<String> = client
        .list_boundaries()
        .await
        .expect("the list is answered")
        .into_iter()
        .filter_map(|boundary| boundary.definition.map(|definition| definition.name))
        .collect();
    assert_eq!(names, ["orders"]);
}
