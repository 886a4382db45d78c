//! The client against nodes that do what the test says.

#![allow(
    clippy::unwrap_used,
    reason = "the lint spares test functions, and here the helpers are test code too"
)]

mod mock;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::TryStreamExt;
use futures::future::{join_all, try_join_all};
use mock::{Node, Reply, Store, elect, options, wait_until};
use tidemark_client::v1::{Event, GetEventsRequest, GetEventsResponse, Position, SaveEventsRequest};
use tidemark_client::{
    ApiError, Client, Discovery, Error, EventToSave, LeaderHint, LimitKind, NOTHING, Options, SaveRequest,
    UnknownCause, any_of, criterion, v1,
};

fn save() -> SaveRequest {
    SaveRequest::new("orders").event(EventToSave::new("Placed", r#"{"id":1}"#))
}

fn node() -> Node {
    Node::start(1, &Arc::default())
}

fn client(node: &Node) -> Client {
    Client::connect_lazy(options(&node.address)).unwrap()
}

fn two_nodes() -> (Node, Node) {
    let store = Arc::<Store>::default();
    (Node::start(1, &store), Node::start(2, &store))
}

fn conflict() -> ApiError {
    let actual = Position { commit_position: 4, prepare_position: 5 };
    ApiError::ContextConflict { observation_index: 1, expected: NOTHING, actual }
}

fn hint(node: &Node) -> ApiError {
    ApiError::NotLeader { leader: Some(LeaderHint { node_id: node.id, address: node.address.clone() }) }
}

/// A port that nobody listens on.
fn dead_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

#[tokio::test]
async fn thousands_of_saves_share_one_stream_and_each_gets_its_own_answer() {
    let node = node();
    let client = client(&node);
    let saves = (0..3_000).map(|number| {
        let client = client.clone();
        async move {
            let key = format!("save-{number}");
            let written = client.save(save().idempotency_key(&key)).await.unwrap();
            assert_eq!(written.write_id, key);
        }
    });
    join_all(saves).await;
    assert_eq!((node.streams(), node.attempts().len()), (1, 3_000));
}

#[tokio::test]
async fn answers_may_come_in_any_order() {
    let node = node();
    node.on_save(|_, _| Reply::Collect(50));
    let client = client(&node);
    let saves = (0..50).map(|number| client.save(save().idempotency_key(format!("save-{number}"))));
    let written = try_join_all(saves).await.unwrap();
    for (number, written) in written.iter().enumerate() {
        assert_eq!(written.write_id, format!("save-{number}"));
    }
}

#[tokio::test]
async fn an_answer_that_comes_twice_is_taken_once() {
    let node = node();
    node.on_save(|_, _| Reply::WriteTwice);
    let client = client(&node);
    for number in 0..10 {
        let key = format!("save-{number}");
        assert_eq!(client.save(save().idempotency_key(&key)).await.unwrap().write_id, key);
    }
    assert_eq!(node.streams(), 1);
}

#[tokio::test]
async fn a_save_whose_stream_broke_is_repeated_with_the_same_key_and_written_once() {
    let node = node();
    node.on_save(|attempt, _| if attempt == 0 { Reply::WriteAndBreak } else { Reply::Write });
    let written = client(&node).save(save()).await.unwrap();
    let attempts = node.attempts();
    assert_eq!(attempts.len(), 2);
    assert!(!attempts[0].is_empty() && attempts[0] == attempts[1], "{attempts:?}");
    assert!(written.already_applied);
    assert_eq!(node.state.store.keys(), [attempts[0].clone()]);
}

#[tokio::test]
async fn generated_keys_differ() {
    let node = node();
    let client = client(&node);
    client.save(save()).await.unwrap();
    client.save(save()).await.unwrap();
    assert_eq!(node.state.store.keys().len(), 2);
}

#[tokio::test]
async fn definite_errors_come_back_typed_after_one_attempt() {
    let definite = [
        conflict(),
        ApiError::invalid("events[0].data", "not a JSON object"),
        ApiError::IdempotencyKeyReused,
        ApiError::BoundaryUnknown { boundary: "orders".to_owned() },
        ApiError::LimitExceeded {
            limit: "max_event_bytes".to_owned(),
            maximum: 1,
            actual: 2,
            kind: LimitKind::Size,
        },
    ];
    for refusal in [None, Some(ApiError::NotSupported { what: "the stream".to_owned() })] {
        let node = node();
        *node.state.stream_refusal.lock() = refusal;
        let client = client(&node);
        for (index, error) in definite.iter().enumerate() {
            let reply = error.clone();
            node.on_save(move |_, _| Reply::Refuse(reply.clone()));
            assert_eq!(client.save(save()).await, Err(Error::Api(error.clone())));
            assert_eq!(node.attempts().len(), index + 1);
        }
    }
}

#[tokio::test]
async fn a_conflict_says_so() {
    assert!(Error::Api(conflict()).is_conflict());
    assert!(!Error::Api(ApiError::NoQuorum).is_conflict());
}

#[tokio::test]
async fn passing_errors_are_repeated_until_the_save_is_written() {
    let passing = [
        ApiError::NoQuorum,
        ApiError::Recovering,
        ApiError::Stopping,
        ApiError::NotLeader { leader: None },
        ApiError::OutcomeUnknown { cause: UnknownCause::LeadershipLost },
        ApiError::BoundaryProvisioning { boundary: "orders".to_owned() },
        ApiError::LimitExceeded {
            limit: "queue_requests".to_owned(),
            maximum: 1,
            actual: 2,
            kind: LimitKind::Queue,
        },
    ];
    let node = node();
    let replies = passing.clone();
    node.on_save(move |attempt, _| replies.get(attempt).cloned().map_or(Reply::Write, Reply::Refuse));
    client(&node).save(save()).await.unwrap();
    let attempts = node.attempts();
    assert_eq!(attempts.len(), passing.len() + 1);
    assert!(attempts.iter().all(|key| *key == attempts[0]), "{attempts:?}");
}

#[tokio::test]
async fn a_save_without_an_answer_is_unknown_when_the_time_is_up_and_its_key_settles_it() {
    let node = node();
    node.on_save(|_, _| Reply::Silence);
    // Nothing but the deadline may end the attempt: below, the clock jumps.
    let hour = Duration::from_secs(3600);
    let client = Client::connect_lazy(Options {
        attempt_timeout: hour,
        keep_alive_interval: hour,
        keep_alive_timeout: hour,
        refresh_interval: hour,
        ..options(&node.address)
    })
    .unwrap();
    let saving = |request| {
        let client = client.clone();
        tokio::spawn(async move { client.save(request).await })
    };
    let (generated, named) = (saving(save()), saving(save().idempotency_key("mine")));
    wait_until("both saves are sent", || node.attempts().len() == 2).await;
    tokio::time::pause();
    let (generated, named) = (generated.await.unwrap(), named.await.unwrap());
    tokio::time::resume();

    assert_eq!(named, Err(Error::OutcomeUnknown { idempotency_key: "mine".to_owned() }));
    let Err(Error::OutcomeUnknown { idempotency_key }) = generated else {
        panic!("nobody answered this save: {generated:?}");
    };
    assert!(node.attempts().contains(&idempotency_key));
    node.on_save(|_, _| Reply::Write);
    let settled = client.save(save().idempotency_key(&idempotency_key)).await.unwrap();
    assert_eq!((settled.write_id, settled.already_applied), (idempotency_key, false));
}

#[tokio::test]
async fn a_node_that_hangs_is_left_for_another() {
    let hung = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let node = node();
    let options = Options {
        addresses: vec![hung.local_addr().unwrap().to_string(), node.address.clone()],
        keep_alive_interval: Duration::from_millis(100),
        keep_alive_timeout: Duration::from_millis(100),
        attempt_timeout: Duration::from_secs(3600),
        discovery: Discovery::GivenOnly,
        ..Options::default()
    };
    Client::connect_lazy(options).unwrap().save(save()).await.unwrap();
    assert_eq!(node.attempts().len(), 1);
}

#[tokio::test]
async fn a_save_that_reached_nobody_is_not_called_unknown() {
    let client = Client::connect_lazy(options(&dead_address())).unwrap();
    let error = client.save(save().timeout(Duration::from_millis(200))).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

#[tokio::test]
async fn connecting_to_nobody_fails() {
    let options = Options { request_timeout: Duration::from_millis(200), ..options(&dead_address()) };
    assert_eq!(Client::connect(options).await.err(), Some(Error::Unavailable { last: None }));
    assert_eq!(Client::connect(Options::default()).await.err(), Some(Error::NoAddress));
}

#[tokio::test]
async fn a_node_without_the_stream_gets_single_saves() {
    let node = node();
    *node.state.stream_refusal.lock() =
        Some(ApiError::Transport { code: tonic::Code::Unimplemented, message: "unknown method".to_owned() });
    let client = client(&node);
    for number in 0..5 {
        let key = format!("save-{number}");
        assert_eq!(client.save(save().idempotency_key(&key)).await.unwrap().write_id, key);
    }
    assert_eq!((node.streams(), node.state.unary_saves.load(Ordering::SeqCst)), (1, 5));

    // Single saves are repeated alike.
    let before = node.attempts().len();
    node.on_save(move |attempt, _| if attempt == before { Reply::WriteAndBreak } else { Reply::Write });
    assert!(client.save(save()).await.unwrap().already_applied);
}

#[tokio::test]
async fn a_node_that_refuses_the_stream_for_now_is_tried_again() {
    let node = node();
    *node.state.stream_refusal.lock() = Some(ApiError::Recovering);
    let client = client(&node);
    let saving = tokio::spawn(async move { client.save(save()).await });
    wait_until("the stream was refused twice", || node.streams() >= 2).await;
    *node.state.stream_refusal.lock() = None;
    assert!(!saving.await.unwrap().unwrap().already_applied);
    assert_eq!(node.attempts().len(), 1);
}

#[tokio::test]
async fn a_leader_hint_is_followed_and_remembered() {
    let (follower, leader) = two_nodes();
    let error = hint(&leader);
    follower.on_save(move |_, _| Reply::Refuse(error.clone()));
    let client = client(&follower);
    for _ in 0..5 {
        client.save(save()).await.unwrap();
    }
    assert_eq!((follower.attempts().len(), leader.attempts().len()), (1, 5));
    assert_eq!(client.current_address(), leader.address);
}

#[tokio::test]
async fn two_nodes_that_name_each_other_do_not_make_the_client_spin() {
    let (one, two) = two_nodes();
    for (node, other) in [(&one, &two), (&two, &one)] {
        let error = hint(other);
        node.on_save(move |_, _| Reply::Refuse(error.clone()));
    }
    let error = client(&one).save(save().timeout(Duration::from_millis(500))).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { last: Some(ApiError::NotLeader { .. }) }), "{error:?}");
    assert!(one.attempts().len() + two.attempts().len() < 50);
}

#[tokio::test]
async fn one_address_of_a_follower_is_enough_to_find_the_leader() {
    let (follower, leader) = two_nodes();
    elect(&[&follower, &leader], leader.id, 1);
    let client = Client::connect(options(&follower.address)).await.unwrap();
    assert_eq!(client.current_address(), leader.address);
    client.save(save()).await.unwrap();
    assert_eq!((follower.attempts().len(), leader.attempts().len()), (0, 1));
}

#[tokio::test]
async fn the_latest_term_tells_the_leader() {
    let (one, two) = two_nodes();
    elect(&[&one, &two], one.id, 4);
    let stale = one.state.info.lock().clone();
    elect(&[&one, &two], two.id, 5);
    *one.state.info.lock() = stale;
    let both = Options::new([one.address.as_str(), two.address.as_str()]);
    let client = Client::connect(both).await.unwrap();
    assert_eq!(client.current_address(), two.address);
}

#[tokio::test]
async fn only_given_nodes_are_asked_when_told_so() {
    let (follower, leader) = two_nodes();
    elect(&[&follower, &leader], leader.id, 1);
    let options = Options { discovery: Discovery::GivenOnly, ..options(&follower.address) };
    let client = Client::connect(options).await.unwrap();
    client.save(save()).await.unwrap();
    let error = hint(&leader);
    follower
        .on_save(move |attempt, _| if attempt == 1 { Reply::Refuse(error.clone()) } else { Reply::Write });
    client.save(save()).await.unwrap();
    assert_eq!((follower.attempts().len(), leader.attempts().len()), (3, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_save_is_lost_or_doubled_when_the_leader_is_killed_under_load() {
    let store = Arc::<Store>::default();
    let mut nodes = [1, 2, 3].map(|id| Node::start(id, &store));
    elect(&[&nodes[0], &nodes[1], &nodes[2]], 1, 1);
    let client = Client::connect(options(&nodes[1].address)).await.unwrap();
    assert_eq!(client.current_address(), nodes[0].address);

    let savers: Vec<_> = (0..64)
        .map(|saver| {
            let client = client.clone();
            tokio::spawn(async move {
                for number in 0..50 {
                    let key = format!("{saver}-{number}");
                    assert_eq!(client.save(save().idempotency_key(&key)).await.unwrap().write_id, key);
                }
            })
        })
        .collect();
    wait_until("saves are running", || nodes[0].attempts().len() > 500).await;
    nodes[0].kill();
    elect(&[&nodes[0], &nodes[1], &nodes[2]], 3, 2);
    for saver in savers {
        saver.await.unwrap();
    }
    assert_eq!(store.keys().len(), 64 * 50);
    wait_until("the new leader is found", || client.current_address() == nodes[2].address).await;
}

#[tokio::test]
async fn the_client_goes_on_when_the_only_node_it_was_given_dies() {
    let (mut given, other) = two_nodes();
    elect(&[&given, &other], given.id, 1);
    let client = Client::connect(options(&given.address)).await.unwrap();
    client.save(save()).await.unwrap();
    given.kill();
    client.save(save()).await.unwrap();
    client.ping("still there").await.unwrap();
    assert_eq!(other.attempts().len(), 1);
}

#[tokio::test]
async fn a_save_that_is_given_up_makes_room_for_the_next() {
    let node = node();
    node.on_save(|attempt, _| if attempt == 0 { Reply::Silence } else { Reply::Write });
    let client = Client::connect_lazy(Options { max_in_flight: 1, ..options(&node.address) }).unwrap();
    let given_up = tokio::spawn({
        let client = client.clone();
        async move { client.save(save()).await }
    });
    wait_until("the save is on its way", || node.attempts().len() == 1).await;
    let full = client.save(save().timeout(Duration::from_millis(50))).await;
    assert_eq!(full, Err(Error::Unavailable { last: None }));
    given_up.abort();
    client.save(save()).await.unwrap();
    assert_eq!((node.attempts().len(), node.streams()), (2, 1));
}

#[tokio::test]
async fn a_read_goes_to_another_node_when_one_cannot_serve_it() {
    let (one, two) = two_nodes();
    elect(&[&one, &two], one.id, 1);
    one.on_read(|_, _| Err(ApiError::NoQuorum));
    two.on_read(|_, _| Ok(GetEventsResponse { context_position: Some(NOTHING), ..Default::default() }));
    let client = Client::connect(options(&one.address)).await.unwrap();
    let page = client.get_events(GetEventsRequest::default()).await.unwrap();
    assert_eq!(page.context_position, Some(NOTHING));
}

#[tokio::test]
async fn a_read_that_is_refused_for_good_is_not_repeated() {
    let node = node();
    node.on_read(|_, _| Err(ApiError::invalid("count", "0")));
    let error = client(&node).get_events(GetEventsRequest::default()).await.unwrap_err();
    assert_eq!(error, Error::Api(ApiError::invalid("count", "0")));
    assert_eq!(node.state.reads.lock().len(), 1);
}

#[tokio::test]
async fn all_pages_are_read_empty_ones_included() {
    let node = node();
    let at = |number| Some(Position { commit_position: number, prepare_position: number });
    let event = move |number| Event { position: at(number), ..Default::default() };
    node.on_read(move |page, _| {
        let (events, next_position) = match page {
            0 => (vec![event(1), event(2)], at(3)),
            1 => (vec![], at(7)),
            2 => (vec![event(8)], None),
            _ => panic!("there is no page {page}"),
        };
        Ok(GetEventsResponse {
            events,
            has_more: next_position.is_some(),
            next_position,
            ..Default::default()
        })
    });
    let request = GetEventsRequest { boundary: "orders".to_owned(), ..Default::default() };
    let events: Vec<_> = client(&node).read_all(request).try_collect().await.unwrap();
    assert_eq!(events, [event(1), event(2), event(8)]);
    let reads = node.state.reads.lock();
    let asked: Vec<_> = reads.iter().map(|read| (read.from_position, read.count)).collect();
    assert_eq!(asked, [(None, 1_000), (at(3), 1_000), (at(7), 1_000)]);
}

#[tokio::test]
async fn the_remaining_calls_reach_their_services() {
    let node = node();
    elect(&[&node], 1, 3);
    let client = client(&node);
    assert_eq!(client.ping("payload").await.unwrap(), "payload");
    assert_eq!(client.server_info().await.unwrap().engine, "mock");
    assert_eq!(client.cluster_info().await.unwrap().term, 3);
    assert!(client.compare_replicas(Duration::from_millis(1_500)).await.unwrap().equal);
    assert_eq!(client.list_boundaries().await.unwrap()[0].incarnation, 7);
    let definition = |name: &str| v1::BoundaryDefinition { name: name.to_owned(), ..Default::default() };
    let created = client.create_boundary(definition("orders")).await.unwrap();
    assert_eq!(created.definition, Some(definition("orders")));
    let taken = ApiError::BoundaryExists { boundary: "taken".to_owned() };
    assert_eq!(client.create_boundary(definition("taken")).await, Err(Error::Api(taken)));
}

#[tokio::test]
async fn a_built_save_arrives_as_it_was_built() {
    let node = node();
    let (sender, seen) = std::sync::mpsc::channel::<SaveEventsRequest>();
    node.on_save(move |_, save| {
        sender.send(save.clone()).unwrap();
        Reply::Write
    });
    let event = EventToSave::json("Placed", &serde_json::json!({"id": 1}))
        .unwrap()
        .event_id("e1")
        .metadata(r#"{"by":"Ada"}"#)
        .text_attribute("colour", "red")
        .integer_attribute("size", -4)
        .delay(Duration::from_secs(2))
        .ttl(Duration::from_secs(60));
    let query = any_of([criterion([("id", "1"), ("colour", "red")])]);
    client(&node)
        .save(SaveRequest::new("orders").event(event).observe(query.clone(), NOTHING).idempotency_key("k"))
        .await
        .unwrap();

    let seen = seen.recv().unwrap();
    assert_eq!((seen.boundary.as_str(), seen.idempotency_key.as_str()), ("orders", "k"));
    assert_eq!(seen.consistency, [v1::Observation { query: Some(query), position: Some(NOTHING) }]);
    let [event] = seen.events.as_slice() else { panic!("one event was saved: {seen:?}") };
    assert_eq!((event.event_id.as_str(), event.event_type.as_str()), ("e1", "Placed"));
    assert_eq!((&event.data[..], &event.metadata[..]), (&br#"{"id":1}"#[..], &br#"{"by":"Ada"}"#[..]));
    assert_eq!(event.delivery, Some(v1::event_to_save::Delivery::DelayMs(2_000)));
    assert_eq!(event.ttl_ms, Some(60_000));
    assert_eq!(event.attributes.len(), 2);
    assert_eq!(event.attributes[1].value, Some(v1::attribute::Value::Integer(-4)));
}
