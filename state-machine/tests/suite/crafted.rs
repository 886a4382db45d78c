//! States that no script can reach: written into the database by hand.

use bytes::Bytes;
use tidemark_state_machine::{
    AppendOutcome, AppendRejection, Boundary, BoundaryState, Command, CreateBoundaryOutcome,
    CreateBoundaryRejection, Fault, Outcome, StateMachine,
    command::{
        AppendBatch, AppendRequest, BoundaryDefinition, CreateBoundary, Digest, Due, EventToAppend, Tick,
    },
    read::{self, PageRequest},
};
use tidemark_storage::{Batch, BoundaryHash, Direction, Durability, EventId, tables};

use crate::fixture::{Replica, stored};

fn id(number: u64) -> EventId {
    EventId::new(number).expect("in range")
}

fn boundary(name: &str, state: BoundaryState) -> Boundary {
    let definition = BoundaryDefinition {
        name: name.into(),
        time_bucket_ms: 1,
        idempotency_retention_ms: 1_000,
        ..BoundaryDefinition::default()
    };
    Boundary { definition, incarnation: id(1), created_at_ms: 0, state }
}

fn put(replica: &Replica, rows: &[(Bytes, Vec<u8>)]) {
    let mut batch = Batch::new();
    rows.iter().for_each(|(key, value)| batch.put(key.clone(), value.clone()));
    replica.db.commit(batch, Durability::Flushed).expect("the disk has room");
}

fn create(name: &str, event_id: u64) -> Command {
    Command::CreateBoundary(CreateBoundary {
        time_ms: 10,
        event_id: id(event_id),
        definition: BoundaryDefinition { name: name.into(), ..BoundaryDefinition::default() },
    })
}

fn append(name: &str, first_event_id: u64) -> Command {
    Command::AppendBatch(AppendBatch {
        time_ms: 10,
        first_event_id: id(first_event_id),
        requests: vec![AppendRequest {
            boundary: BoundaryHash::of(name),
            incarnation: id(1),
            events: vec![EventToAppend { stored: stored("a", 0), due: Due::Now, ttl_ms: None }],
            idempotency: None,
        }],
    })
}

#[test]
fn a_name_whose_hash_is_taken_by_another_name_is_refused() {
    let mut replica = Replica::new();
    // Colliding names are hard to find, so another name is put where the hash of `orders` leads to.
    let other = boundary("payments", BoundaryState::Active);
    put(&replica, &[(tables::boundary_key(BoundaryHash::of("orders")), other.encode())]);
    let rejection = CreateBoundaryRejection::HashCollision { existing: "payments".into() };
    assert_eq!(
        replica.apply(&create("orders", 2)),
        Outcome::CreateBoundary(CreateBoundaryOutcome::Rejected(rejection))
    );
    let snapshot = replica.snapshot();
    assert_eq!(read::boundary_by_name(&*snapshot, "orders").expect("readable"), None);
    assert_eq!(read::last_event_id(&*snapshot).expect("readable"), id(2), "the id is used up all the same");
}

#[test]
fn a_boundary_takes_events_only_while_it_is_active() {
    for (state, number) in
        [(BoundaryState::Provisioning, 2), (BoundaryState::Failed, 3), (BoundaryState::Deleted, 4)]
    {
        let mut replica = Replica::new();
        put(
            &replica,
            &[(tables::boundary_key(BoundaryHash::of("orders")), boundary("orders", state).encode())],
        );
        assert_eq!(
            replica.apply(&append("orders", number)),
            Outcome::AppendBatch(vec![AppendOutcome::Rejected(AppendRejection::BoundaryNotActive { state })])
        );
    }
}

#[test]
fn a_damaged_row_is_a_fault_and_no_outcome() {
    let replica = Replica::new();
    put(&replica, &[(tables::boundary_key(BoundaryHash::of("orders")), vec![0xff])]);
    let mut machine = StateMachine::new();
    let mut chunk = machine.begin(&*replica.db).expect("readable");
    let fault = chunk.apply(&append("orders", 2)).expect_err("corrupt");
    assert!(matches!(fault, Fault::CorruptRow { table: "boundaries", .. }), "{fault:?}");
    drop(chunk);
    assert!(read::boundaries(&*replica.snapshot(), None, 10).is_err());
}

#[test]
fn a_damaged_event_is_a_fault_of_the_read() {
    let mut replica = Replica::new();
    replica.apply(&create("orders", 1));
    replica.apply(&append("orders", 2));
    let snapshot = replica.snapshot();
    let orders = read::boundary_by_name(&*snapshot, "orders").expect("readable").expect("created");
    let request = PageRequest {
        from: None,
        direction: Direction::Ascending,
        count_max: 10,
        bytes_max: 1_000,
        scan_rows_max: 10,
    };
    let page = read::read_events(&*snapshot, &orders, &request).expect("readable");
    put(&replica, &[(tables::event_key(&page.events[0].0), vec![0xff])]);
    let fault = read::read_events(&*replica.snapshot(), &orders, &request).expect_err("corrupt");
    assert!(matches!(fault, Fault::CorruptRow { table: "events", .. }), "{fault:?}");
}

#[test]
fn a_dropped_chunk_leaves_no_trace_in_the_state_or_in_memory() {
    let replica = Replica::new();
    let mut machine = StateMachine::new();
    let mut chunk = machine.begin(&*replica.db).expect("readable");
    chunk.apply(&create("orders", 5)).expect("sound");
    assert_eq!((chunk.clock_ms(), chunk.last_event_id()), (10, id(5)));
    drop(chunk);
    let chunk = machine.begin(&*replica.db).expect("readable");
    assert_eq!((chunk.clock_ms(), chunk.last_event_id()), (0, EventId::ZERO));
}

#[test]
fn a_batch_that_was_not_committed_is_forgotten() {
    let mut replica = Replica::new();
    replica.apply(&create("orders", 1));
    let mut machine = StateMachine::new();
    let mut chunk = machine.begin(&*replica.db).expect("readable");
    chunk.apply(&create("payments", 2)).expect("sound");
    let lost = chunk.finish(Bytes::from_static(b"an entry that never became durable"));
    assert_eq!(lost.last_event_id, id(2));
    // The database does not name that entry as applied, so what the state machine remembers of it is void.
    let mut chunk = machine.begin(&*replica.db).expect("readable");
    assert_eq!(chunk.last_event_id(), id(1));
    let outcome = chunk.apply(&append("payments", 2)).expect("sound");
    let unknown = AppendOutcome::Rejected(AppendRejection::BoundaryUnknown);
    assert_eq!(outcome, Outcome::AppendBatch(vec![unknown]));
}

#[test]
#[should_panic(expected = "a digest covers the state at its own entry")]
fn nothing_is_applied_behind_a_digest_in_its_chunk() {
    let replica = Replica::new();
    let mut machine = StateMachine::new();
    let mut chunk = machine.begin(&*replica.db).expect("readable");
    chunk.apply(&Command::Digest(Digest { digest_id: 1 })).expect("sound");
    let _ = chunk.apply(&Command::Tick(Tick { time_ms: 1 }));
}

#[test]
fn the_membership_is_stored_as_given() {
    let replica = Replica::new();
    let mut machine = StateMachine::new();
    let mut chunk = machine.begin(&*replica.db).expect("readable");
    chunk.set_membership(Bytes::from_static(b"first"));
    chunk.set_membership(Bytes::from_static(b"second"));
    let chunk = chunk.finish(Bytes::from_static(b"7"));
    replica.db.commit(chunk.batch, Durability::Buffered).expect("the disk has room");
    let snapshot = replica.snapshot();
    assert_eq!(read::membership(&*snapshot).expect("readable").as_deref(), Some(&b"second"[..]));
    assert_eq!(read::applied(&*snapshot).expect("readable").as_deref(), Some(&b"7"[..]));
}
