//! Random histories: what clients and a leader might do, turned into the entries of a log.

use std::num::NonZeroU64;

use bytes::Bytes;
use proptest::{collection::vec, option, prelude::*};
use tidemark_state_machine::{
    Command, Outcome,
    command::{
        AppendBatch, AppendRequest, BoundaryDefinition, CreateBoundary, Digest, Due, EventToAppend,
        Idempotency, Tick,
    },
};
use tidemark_storage::{BoundaryHash, EventId, tables::IdempotencyKey};

use crate::{
    fixture::{Entry, stored},
    reference::Reference,
};

/// The last one is no valid name, so it never comes to exist.
pub const NAMES: [&str; 4] = ["orders", "payments", "_audit", "1st"];

const WIDTHS_MS: [u64; 5] = [0, 1, 7, 50, 1_000];
const RETENTIONS_MS: [u64; 4] = [10, 60, 200, 0];

/// One step of a history, relative to the state that it meets.
#[derive(Clone, Debug)]
pub enum Step {
    Blank,
    Membership(u8),
    Tick { ahead_ms: i64 },
    Digest,
    Create { name: usize, width: usize, retention: usize, ahead_ms: i64, ids: Ids },
    Append { ahead_ms: i64, ids: Ids, requests: Vec<Save> },
}

/// How the leader numbers a command.
#[derive(Clone, Copy, Debug)]
pub enum Ids {
    Behind { gap: u64 },
    Stale { back: u64 },
}

#[derive(Clone, Debug)]
pub struct Save {
    name: usize,
    other_incarnation: bool,
    events: Vec<NewEvent>,
    key: Option<u8>,
    digest: u8,
}

#[derive(Clone, Debug)]
pub struct NewEvent {
    when: When,
    ttl_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
pub enum When {
    Now,
    After(u64),
    At(i64),
    TooFar,
}

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    // A history without boundaries is a dull one, so most begin with two.
    let created = prop_oneof![4 => (create(0), create(1)).prop_map(|(a, b)| vec![a, b]), 1 => Just(vec![])];
    (created, vec(step(), 1..40)).prop_map(|(mut first, rest)| {
        first.extend(rest);
        first
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => Just(Step::Blank),
        1 => any::<u8>().prop_map(Step::Membership),
        1 => Just(Step::Digest),
        4 => ahead().prop_map(|ahead_ms| Step::Tick { ahead_ms }),
        2 => (0..NAMES.len()).prop_flat_map(create),
        12 => (ahead(), ids(), saves())
            .prop_map(|(ahead_ms, ids, requests)| Step::Append { ahead_ms, ids, requests }),
    ]
}

fn create(name: usize) -> impl Strategy<Value = Step> {
    (0..WIDTHS_MS.len(), 0..RETENTIONS_MS.len(), ahead(), ids()).prop_map(
        move |(width, retention, ahead_ms, ids)| Step::Create { name, width, retention, ahead_ms, ids },
    )
}

fn ahead() -> impl Strategy<Value = i64> {
    // Multiples of ten: times that meet exactly are where rules go wrong.
    let tens = prop_oneof![2 => Just(0), 4 => 1i64..6, 1 => 6i64..200, 1 => -8i64..0];
    tens.prop_map(|tens| tens * 10)
}

fn ids() -> impl Strategy<Value = Ids> {
    prop_oneof![
        8 => Just(Ids::Behind { gap: 0 }),
        2 => (1u64..9).prop_map(|gap| Ids::Behind { gap }),
        1 => (0u64..4).prop_map(|back| Ids::Stale { back }),
    ]
}

fn saves() -> impl Strategy<Value = Vec<Save>> {
    // A burst leaves more idempotency rows behind than the requests after it may remove at once.
    prop_oneof![5 => vec(save(), 0..4), 1 => vec(save(), 8..16)]
}

fn save() -> impl Strategy<Value = Save> {
    let name = prop_oneof![6 => 0..2usize, 1 => 2..NAMES.len()];
    let key = option::weighted(0.6, 0u8..12);
    (name, prop::bool::weighted(0.05), vec(event(), 0..4), key, 0u8..2).prop_map(
        |(name, other_incarnation, events, key, digest)| Save {
            name,
            other_incarnation,
            events,
            key,
            digest,
        },
    )
}

fn event() -> impl Strategy<Value = NewEvent> {
    let when = prop_oneof![
        10 => Just(When::Now),
        2 => (0u64..300).prop_map(When::After),
        2 => (0u64..30).prop_map(|tens| When::After(tens * 10)),
        2 => (-200i64..300).prop_map(When::At),
        1 => Just(When::TooFar),
    ];
    let ttl_ms = (1u64..30).prop_map(|tens| tens * 10);
    (when, option::weighted(0.3, ttl_ms)).prop_map(|(when, ttl_ms)| NewEvent { when, ttl_ms })
}

/// A log, with the answers of the reference to each of its entries.
pub struct History {
    pub entries: Vec<Entry>,
    pub outcomes: Vec<Option<Outcome>>,
    /// The reference after each entry.
    pub states: Vec<Reference>,
}

impl History {
    pub fn of(steps: &[Step]) -> Self {
        let mut history = Self { entries: Vec::new(), outcomes: Vec::new(), states: Vec::new() };
        let mut reference = Reference { clock_ms: 0, ..Reference::default() };
        for (number, step) in steps.iter().enumerate() {
            let command = command(&reference, step, number);
            history.entries.push(match (&command, step) {
                (Some(command), _) => Entry::command(command),
                (None, Step::Membership(byte)) => Entry::Membership(Bytes::copy_from_slice(&[*byte])),
                (None, _) => Entry::Blank,
            });
            history.outcomes.push(command.map(|command| reference.apply(&command)));
            history.states.push(reference.clone());
        }
        history
    }
}

fn command(state: &Reference, step: &Step, number: usize) -> Option<Command> {
    let time_ms = |ahead_ms: i64| state.clock_ms.max(1_000).saturating_add_signed(ahead_ms);
    Some(match step {
        Step::Blank | Step::Membership(_) => return None,
        Step::Tick { ahead_ms } => Command::Tick(Tick { time_ms: time_ms(*ahead_ms) }),
        Step::Digest => Command::Digest(Digest { digest_id: number as u64 }),
        Step::Create { name, width, retention, ahead_ms, ids } => Command::CreateBoundary(CreateBoundary {
            time_ms: time_ms(*ahead_ms),
            event_id: first_id(state, *ids),
            definition: BoundaryDefinition {
                name: NAMES[*name].into(),
                time_bucket_ms: WIDTHS_MS[*width],
                idempotency_retention_ms: RETENTIONS_MS[*retention],
                ..BoundaryDefinition::default()
            },
        }),
        Step::Append { ahead_ms, ids, requests } => Command::AppendBatch(AppendBatch {
            time_ms: time_ms(*ahead_ms),
            first_event_id: first_id(state, *ids),
            requests: requests.iter().map(|save| request(state, save, time_ms(*ahead_ms))).collect(),
        }),
    })
}

fn first_id(state: &Reference, ids: Ids) -> EventId {
    let id = match ids {
        Ids::Behind { gap } => state.last_id + 1 + gap,
        Ids::Stale { back } => state.last_id.saturating_sub(back),
    };
    EventId::new(id).expect("in range")
}

fn request(state: &Reference, save: &Save, time_ms: u64) -> AppendRequest {
    let name = NAMES[save.name];
    let boundary = BoundaryHash::of(name);
    let known = state.boundaries.iter().find(|known| known.definition.name == name);
    let incarnation = known.map_or(EventId::ZERO, |known| known.incarnation);
    let incarnation =
        if save.other_incarnation { incarnation.checked_add(1).expect("in range") } else { incarnation };
    AppendRequest {
        boundary,
        incarnation,
        events: save
            .events
            .iter()
            .enumerate()
            .map(|(index, event)| new_event(index, event, time_ms))
            .collect(),
        idempotency: save.key.map(|key| Idempotency {
            key_hash: IdempotencyKey::of(boundary, &[key]).key_hash,
            request_digest: [save.digest; 32],
        }),
    }
}

fn new_event(index: usize, event: &NewEvent, time_ms: u64) -> EventToAppend {
    let due = match event.when {
        When::Now => Due::Now,
        When::After(delay_ms) => Due::After { delay_ms },
        When::At(ahead_ms) => Due::At { time_ms: time_ms.saturating_add_signed(ahead_ms) },
        When::TooFar => Due::After { delay_ms: u64::MAX },
    };
    let ttl_ms = event.ttl_ms.and_then(NonZeroU64::new);
    EventToAppend { stored: stored(&format!("{:?}", event.when), index), due, ttl_ms }
}
