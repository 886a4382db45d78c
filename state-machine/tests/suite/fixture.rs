//! One replica on the model engine, driven by encoded log entries.

use std::{ops::ControlFlow, path::Path, sync::Arc};

use bytes::Bytes;
use prost::Message;
use tidemark_proto::record::StoredEvent;
use tidemark_state_machine::{Command, Outcome, StateDigest, StateMachine, digest, read};
use tidemark_storage::{
    Db, Direction, Durability, Engine, KeyRange, Snapshot,
    model::{ModelDisk, ModelEngine},
};

/// The group whose log all tests write.
pub const GROUP: u32 = 0;

const DIRECTORY: &str = "/replica";

/// What an entry of the log holds.
#[derive(Clone, Debug)]
pub enum Entry {
    Blank,
    Membership(Bytes),
    Command(Bytes),
}

impl Entry {
    pub fn command(command: &Command) -> Self {
        Self::Command(command.encode(GROUP))
    }
}

/// A replica: its database on a simulated disk and its state machine.
pub struct Replica {
    engine: ModelEngine,
    pub db: Arc<dyn Db>,
    machine: StateMachine,
}

impl Replica {
    pub fn new() -> Self {
        let engine = ModelEngine::new(ModelDisk::new());
        let db = engine.create(Path::new(DIRECTORY)).expect("the disk is empty");
        Self { engine, db, machine: StateMachine::new() }
    }

    /// The index of the last applied entry; entries count from 1.
    pub fn applied_index(&self) -> usize {
        let applied = read::applied(&*self.snapshot()).expect("readable");
        applied.map_or(0, |applied| {
            let index: [u8; 8] = applied.as_ref().try_into().expect("written by this fixture");
            u64::from_be_bytes(index) as usize
        })
    }

    /// Applies entries of `log` behind the applied ones as one chunk, at most `count_max`. The chunk ends early
    /// where an outcome says so.
    pub fn apply_chunk(&mut self, log: &[Entry], count_max: usize) -> Vec<Option<Outcome>> {
        let mut index = self.applied_index();
        let mut outcomes = Vec::new();
        let mut chunk = self.machine.begin(&*self.db).expect("the state is readable");
        for entry in log.iter().skip(index).take(count_max) {
            let outcome = match entry {
                Entry::Blank => None,
                Entry::Membership(membership) => {
                    chunk.set_membership(membership.clone());
                    None
                }
                Entry::Command(bytes) => {
                    let command = Command::decode(bytes.clone(), GROUP).expect("encoded by a test");
                    Some(chunk.apply(&command).expect("the state is sound"))
                }
            };
            index += 1;
            let ends_chunk = outcome.as_ref().is_some_and(Outcome::ends_chunk);
            outcomes.push(outcome);
            if ends_chunk {
                break;
            }
        }
        let chunk = chunk.finish(Bytes::copy_from_slice(&(index as u64).to_be_bytes()));
        self.db.commit(chunk.batch, Durability::Buffered).expect("the disk has room");
        outcomes
    }

    /// Applies one command as a chunk of its own.
    pub fn apply(&mut self, command: &Command) -> Outcome {
        let index = self.applied_index() as u64 + 1;
        let mut chunk = self.machine.begin(&*self.db).expect("the state is readable");
        let command = Command::decode(command.encode(GROUP), GROUP).expect("encoded just now");
        let outcome = chunk.apply(&command).expect("the state is sound");
        let chunk = chunk.finish(Bytes::copy_from_slice(&index.to_be_bytes()));
        self.db.commit(chunk.batch, Durability::Buffered).expect("the disk has room");
        outcome
    }

    /// Cuts the power, keeping the oldest `surviving` of the unflushed commits, and opens the database again.
    pub fn crash(&mut self, surviving: usize) {
        self.engine.disk().crash(|_, unflushed| surviving.min(unflushed));
        self.db = self.engine.open(Path::new(DIRECTORY)).expect("a crash leaves a sound database");
        self.machine = StateMachine::new();
    }

    pub fn snapshot(&self) -> Arc<dyn Snapshot> {
        self.db.snapshot().expect("the database is open")
    }

    pub fn digest(&self) -> StateDigest {
        digest::digest(&*self.snapshot()).expect("readable")
    }

    /// All rows of the database.
    pub fn rows(&self) -> Vec<(Bytes, Bytes)> {
        let mut rows = Vec::new();
        self.snapshot()
            .scan(&KeyRange::ALL, Direction::Ascending, &mut |key, value| {
                rows.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
                ControlFlow::Continue(())
            })
            .expect("readable");
        rows
    }
}

/// The bytes that a sequencer makes of an event.
pub fn stored(label: &str, write_index: usize) -> Bytes {
    let event = StoredEvent {
        event_type: label.to_owned(),
        data: Bytes::from(format!("{{\"label\":\"{label}\"}}")),
        write_index: write_index as u32,
        ..StoredEvent::default()
    };
    event.encode_to_vec().into()
}
