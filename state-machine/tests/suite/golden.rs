//! Golden scripts: commands in, outcomes and state out, as text. They are rewritten on purpose only, with
//! `REWRITE=1`.
//!
//! `append` takes one request per line: `boundary[@incarnation] [key=K] [digest=D] : event | event …` where an
//! event is a label with `delay=`, `at=` and `ttl=` in milliseconds.

use std::{fmt::Write, num::NonZeroU64, str::FromStr};

use bytes::Bytes;
use datadriven::TestCase;
use tidemark_state_machine::{
    AppendOutcome, Boundary, Command, CreateBoundaryOutcome, Event, Outcome,
    command::{
        AppendBatch, AppendRequest, BoundaryDefinition, CreateBoundary, Digest, Due, EventToAppend,
        Idempotency, Tick,
    },
    outcome::WrittenEvents,
    read::{self, PageRequest},
};
use tidemark_storage::{
    BoundaryHash, Direction, EventId, Position,
    tables::{self, Expiring, IdempotencyKey},
};

use crate::fixture::{Replica, stored};

#[test]
fn scripts_give_the_recorded_outcomes_and_states() {
    datadriven::walk("tests/cases", |file| {
        let mut replica = Replica::new();
        file.run(|case| run(&mut replica, case.clone()));
    });
}

#[track_caller]
fn argument<T: FromStr>(case: &mut TestCase, name: &str) -> Option<T> {
    let text: Option<String> = case.try_take_arg(name).expect("an argument has one value");
    text.map(|text| text.parse().unwrap_or_else(|_| panic!("argument {name} cannot be {text}")))
}

#[track_caller]
fn number(case: &mut TestCase, name: &str) -> u64 {
    argument(case, name).unwrap_or_else(|| panic!("{} needs {name}", case.directive))
}

fn run(replica: &mut Replica, mut case: TestCase) -> String {
    let answer = match case.directive.as_str() {
        "create" => {
            let command = create(&mut case);
            outcome(&replica.apply(&command))
        }
        "append" => {
            let command = append(replica, &mut case);
            outcome(&replica.apply(&command))
        }
        "tick" => {
            let tick = Tick { time_ms: number(&mut case, "time") };
            outcome(&replica.apply(&Command::Tick(tick)))
        }
        "digest" => {
            let digest = Digest { digest_id: number(&mut case, "id") };
            outcome(&replica.apply(&Command::Digest(digest)))
        }
        "read" => page(replica, &mut case),
        "recorded" => recorded(replica, &mut case),
        "boundaries" => boundaries(replica, &mut case),
        "dump" => dump(replica),
        other => panic!("no directive {other}"),
    };
    case.expect_empty().expect("every argument is used");
    answer
}

fn create(case: &mut TestCase) -> Command {
    Command::CreateBoundary(CreateBoundary {
        time_ms: number(case, "time"),
        event_id: id(number(case, "id")),
        definition: BoundaryDefinition {
            name: argument(case, "name").unwrap_or_default(),
            description: argument(case, "description").unwrap_or_default(),
            time_bucket_ms: argument(case, "bucket").unwrap_or_default(),
            placement_group: argument(case, "group").unwrap_or_default(),
            idempotency_retention_ms: argument(case, "retention").unwrap_or_default(),
        },
    })
}

fn append(replica: &Replica, case: &mut TestCase) -> Command {
    Command::AppendBatch(AppendBatch {
        time_ms: number(case, "time"),
        first_event_id: id(number(case, "first")),
        requests: case.input.lines().map(|line| request(replica, line)).collect(),
    })
}

fn request(replica: &Replica, line: &str) -> AppendRequest {
    let (head, events) = line.split_once(':').expect("a colon stands before the events");
    let mut words = head.split_whitespace();
    let target = words.next().expect("a request names its boundary");
    let (name, incarnation) = match target.split_once('@') {
        Some((name, incarnation)) => (name, id(incarnation.parse().expect("an incarnation is a number"))),
        None => {
            let known = read::boundary_by_name(&*replica.snapshot(), target).expect("readable");
            (target, known.map_or(EventId::ZERO, |boundary| boundary.incarnation))
        }
    };
    let (mut key, mut digest) = (None, "");
    for word in words {
        match word.split_once('=') {
            Some(("key", text)) => key = Some(text),
            Some(("digest", text)) => digest = text,
            _ => panic!("a request has no {word}"),
        }
    }
    let boundary = BoundaryHash::of(name);
    let events = events.split('|').map(str::trim).filter(|event| !event.is_empty());
    AppendRequest {
        boundary,
        incarnation,
        events: events.enumerate().map(|(index, event)| event_to_append(index, event)).collect(),
        idempotency: key.map(|key| Idempotency {
            key_hash: IdempotencyKey::of(boundary, key.as_bytes()).key_hash,
            request_digest: blake3::hash(digest.as_bytes()).into(),
        }),
    }
}

fn event_to_append(index: usize, text: &str) -> EventToAppend {
    let mut words = text.split_whitespace();
    let label = words.next().expect("an event has a label");
    let mut event = EventToAppend { stored: stored(label, index), due: Due::Now, ttl_ms: None };
    for word in words {
        let (name, value) = word.split_once('=').expect("an option has a value");
        let value = value.parse().expect("an option is a number");
        match name {
            "delay" => event.due = Due::After { delay_ms: value },
            "at" => event.due = Due::At { time_ms: value },
            "ttl" => event.ttl_ms = Some(NonZeroU64::new(value).expect("a lifetime is not 0")),
            _ => panic!("an event has no {word}"),
        }
    }
    event
}

fn id(number: u64) -> EventId {
    EventId::new(number).expect("in range")
}

fn outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::AppendBatch(outcomes) => outcomes.iter().map(append_outcome).collect(),
        Outcome::StaleBatch { last_id } => format!("stale, last id {last_id}\n"),
        Outcome::Ticked { clock_ms } => format!("clock {clock_ms}\n"),
        Outcome::CreateBoundary(CreateBoundaryOutcome::Created(boundary)) => {
            format!("created {}\n", describe(boundary))
        }
        Outcome::CreateBoundary(CreateBoundaryOutcome::AlreadyExists(boundary)) => {
            format!("there already: {}\n", describe(boundary))
        }
        Outcome::CreateBoundary(CreateBoundaryOutcome::Rejected(rejection)) => {
            format!("rejected {rejection:?}\n")
        }
        Outcome::Digest { digest_id } => format!("digest {digest_id} ends the chunk\n"),
    }
}

fn append_outcome(outcome: &AppendOutcome) -> String {
    match outcome {
        AppendOutcome::Written(WrittenEvents { first, last }) => format!("written {first} to {last}\n"),
        AppendOutcome::AlreadyApplied(WrittenEvents { first, last }) => {
            format!("already applied {first} to {last}\n")
        }
        AppendOutcome::Rejected(rejection) => format!("rejected {rejection:?}\n"),
    }
}

fn describe(boundary: &Boundary) -> String {
    let definition = &boundary.definition;
    format!(
        "{} {:?} bucket={} group={} retention={} incarnation={} created={} {:?}",
        definition.name,
        definition.description,
        definition.time_bucket_ms,
        definition.placement_group,
        definition.idempotency_retention_ms,
        boundary.incarnation,
        boundary.created_at_ms,
        boundary.state
    )
}

#[track_caller]
fn named(replica: &Replica, case: &mut TestCase) -> Boundary {
    let name: String = argument(case, "boundary").expect("a boundary is named");
    read::boundary_by_name(&*replica.snapshot(), &name).expect("readable").expect("the boundary exists")
}

fn page(replica: &Replica, case: &mut TestCase) -> String {
    let boundary = named(replica, case);
    let from: Option<String> = argument(case, "from");
    let from = from.map(|from| {
        let (commit, prepare) = from.split_once('.').expect("a position has two parts");
        Position {
            commit_position: commit.parse().expect("a number"),
            prepare_position: prepare.parse().expect("a number"),
        }
    });
    let descending = case.take_flag("descending").expect("a flag has no value");
    let request = PageRequest {
        from,
        direction: if descending { Direction::Descending } else { Direction::Ascending },
        count_max: argument(case, "count").unwrap_or(100),
        bytes_max: argument(case, "bytes").unwrap_or(1_000_000),
        scan_rows_max: argument(case, "scan").unwrap_or(1_000),
    };
    let page = read::read_events(&*replica.snapshot(), &boundary, &request).expect("readable");
    let mut text = String::new();
    for (key, value) in page.events {
        let event = Event::decode(key, value).expect("well formed");
        let _ = writeln!(text, "{} {}", event.position(), event.stored.event_type);
    }
    let next = page.next.map_or("none".to_owned(), |next| next.to_string());
    let _ = writeln!(text, "next {next}, frontier {}", page.frontier);
    text
}

fn recorded(replica: &Replica, case: &mut TestCase) -> String {
    let boundary = named(replica, case).hash();
    let key: String = argument(case, "key").expect("a key is given");
    let key_hash = IdempotencyKey::of(boundary, key.as_bytes()).key_hash;
    match read::recorded_save(&*replica.snapshot(), boundary, key_hash).expect("readable") {
        Some(save) => {
            format!("{} to {}, expires {}\n", save.written.first, save.written.last, save.expires_at_ms)
        }
        None => "none\n".to_owned(),
    }
}

fn boundaries(replica: &Replica, case: &mut TestCase) -> String {
    let count = argument(case, "count").unwrap_or(100);
    let mut text = String::new();
    let mut from = None;
    loop {
        let page = read::boundaries(&*replica.snapshot(), from, count).expect("readable");
        page.boundaries.iter().for_each(|boundary| {
            let _ = writeln!(text, "{}", describe(boundary));
        });
        from = page.next;
        match from {
            Some(hash) => text.push_str(&format!("next {hash}\n")),
            None => return text,
        }
    }
}

fn dump(replica: &Replica) -> String {
    replica.rows().into_iter().map(|(key, value)| row(replica, &key, value) + "\n").collect()
}

fn row(replica: &Replica, key: &Bytes, value: Bytes) -> String {
    let name = |hash: BoundaryHash| {
        let boundary = read::boundary(&*replica.snapshot(), hash).expect("readable");
        boundary.map_or_else(|| hash.to_string(), |boundary| boundary.definition.name)
    };
    match key[0] {
        tables::BOUNDARIES => {
            let boundary = Boundary::decode(key, &value).expect("well formed");
            format!("boundary {}", describe(&boundary))
        }
        tables::IDEMPOTENCY => {
            let key = tables::parse_idempotency_key(key).expect("well formed");
            format!("idempotency {} {}", name(key.boundary), hex(&key.key_hash[..4]))
        }
        tables::EVENTS => {
            let key = tables::parse_event_key(key).expect("well formed");
            let event = Event::decode(key, value).expect("well formed");
            let write_id = event.write_id().expect("well formed");
            let stored = &event.stored;
            let expires = stored.expires_at_ms.map_or("never".to_owned(), |expires| expires.to_string());
            format!(
                "event {} {} {} appended={} happened={} expires={expires} write={}",
                name(key.boundary),
                key.position(),
                stored.event_type,
                stored.appended_at_ms,
                stored.happened_at_ms,
                write_id.first()
            )
        }
        tables::EXPIRY => match tables::parse_expiry_key(key).expect("well formed") {
            (at, Expiring::Idempotency(key)) => {
                format!("expiry {at} idempotency {} {}", name(key.boundary), hex(&key.key_hash[..4]))
            }
            (at, Expiring::Event(key)) => format!("expiry {at} event {}", key.position()),
        },
        _ => format!("{} = {}", String::from_utf8_lossy(key), hex(&value)),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
