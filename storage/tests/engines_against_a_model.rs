//! Every engine against a plain map, with random commits, flushes, reopens, snapshots and crashes.
//!
//! A crash of a real engine is a copy of its files at a moment without a flush, which is what a killed process
//! leaves behind. Every commit numbers itself under `raft/applied`, so that the recovered prefix is known; like a
//! node from its Raft log, the test then commits the rest again and goes on.

use std::{collections::BTreeMap, marker::PhantomData, ops::ControlFlow, path::Path, sync::Arc};

use bytes::Bytes;
use proptest::{prelude::*, test_runner::Config};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};
use tidemark_storage::{
    Batch, Db, Direction, Durability, Engine, KeyRange, Snapshot,
    model::{ModelDisk, ModelEngine},
    tables,
};

type Rows = BTreeMap<Bytes, Bytes>;
/// Keys with their new values; `None` deletes.
type Changes = Vec<(Bytes, Option<Bytes>)>;

#[derive(Clone, Debug)]
enum Transition {
    Commit(Changes, Durability),
    Flush,
    Reopen,
    /// The part of the unflushed commits that survives, in 255ths, where the test can choose.
    Crash(u8),
    TakeSnapshot,
    Scan(KeyRange, Direction),
}

/// All commits so far; what they add up to; how many of them a flush covered.
#[derive(Clone, Debug)]
struct Reference {
    commits: Vec<Changes>,
    rows: Rows,
    flushed: usize,
}

fn apply_changes(rows: &mut Rows, number: usize, changes: &Changes) {
    for (key, value) in changes {
        match value {
            Some(value) => rows.insert(key.clone(), value.clone()),
            None => rows.remove(key),
        };
    }
    rows.insert(tables::raft_applied_key(), Bytes::copy_from_slice(&(number as u64).to_be_bytes()));
}

fn new_rows() -> Rows {
    [(tables::format_key(), tables::format_row())].into()
}

/// What the first `count` commits add up to.
fn rows_after(commits: &[Changes], count: usize) -> Rows {
    let mut rows = new_rows();
    for (index, changes) in commits[..count].iter().enumerate() {
        apply_changes(&mut rows, index + 1, changes);
    }
    rows
}

fn keys() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(prop_oneof![Just(0_u8), Just(b'a'), Just(0xff)], 0..4).prop_map(Bytes::from)
}

fn values() -> impl Strategy<Value = Bytes> {
    (any::<u8>(), prop_oneof![8 => 0..40_usize, 1 => 3_000..9_000_usize])
        .prop_map(|(byte, length)| Bytes::from(vec![byte; length]))
}

fn transitions() -> impl Strategy<Value = Transition> {
    let change = (keys(), prop::option::weighted(0.75, values()));
    let durability = prop_oneof![6 => Just(Durability::Buffered), 1 => Just(Durability::Flushed)];
    let direction = prop_oneof![Just(Direction::Ascending), Just(Direction::Descending)];
    let range = (prop::option::of(keys()), prop::option::of(keys()))
        .prop_map(|(lower, upper)| KeyRange { lower, upper });
    prop_oneof![
        12 => (prop::collection::vec(change, 0..8), durability).prop_map(|(c, d)| Transition::Commit(c, d)),
        1 => Just(Transition::Flush),
        1 => Just(Transition::Reopen),
        2 => any::<u8>().prop_map(Transition::Crash),
        2 => Just(Transition::TakeSnapshot),
        4 => (range, direction).prop_map(|(range, direction)| Transition::Scan(range, direction)),
    ]
}

impl ReferenceStateMachine for Reference {
    type State = Self;
    type Transition = Transition;

    fn init_state() -> BoxedStrategy<Self> {
        Just(Self { commits: Vec::new(), rows: new_rows(), flushed: 0 }).boxed()
    }

    fn transitions(_state: &Self) -> BoxedStrategy<Transition> {
        transitions().boxed()
    }

    fn apply(mut state: Self, transition: &Transition) -> Self {
        match transition {
            Transition::Commit(changes, durability) => {
                state.commits.push(changes.clone());
                apply_changes(&mut state.rows, state.commits.len(), changes);
                if *durability == Durability::Flushed {
                    state.flushed = state.commits.len();
                }
            }
            Transition::Flush => state.flushed = state.commits.len(),
            Transition::Reopen | Transition::Crash(_) | Transition::TakeSnapshot | Transition::Scan(..) => {}
        }
        state
    }
}

/// An engine that can crash.
trait Crashing: 'static {
    fn engine() -> Self;
    fn as_engine(&self) -> &dyn Engine;
    /// Crashes the open database in `dir` and returns the directory to open next.
    fn crash(&self, db: Arc<dyn Db>, dir: &Path, next: &Path, survivors: u8);
    /// Where the next database lies after a crash.
    const MOVES: bool;
}

struct Model(ModelEngine);

impl Crashing for Model {
    const MOVES: bool = false;

    fn engine() -> Self {
        Self(ModelEngine::new(ModelDisk::new()))
    }

    fn as_engine(&self) -> &dyn Engine {
        &self.0
    }

    fn crash(&self, db: Arc<dyn Db>, _dir: &Path, _next: &Path, survivors: u8) {
        self.0.disk().crash(|_, unflushed| (unflushed * usize::from(survivors)).div_ceil(255));
        assert!(db.get(b"").is_err(), "a crashed database is closed");
    }
}

/// An engine whose files a killed process leaves behind as they are.
#[cfg(any(feature = "sqlite", feature = "rocksdb"))]
mod files {
    use std::fs;

    use tidemark_storage::{EngineOptions, by_name};

    use super::*;

    pub(super) struct Files<const ROCKSDB: bool>(Arc<dyn Engine>);

    impl<const ROCKSDB: bool> Crashing for Files<ROCKSDB> {
        const MOVES: bool = true;

        fn engine() -> Self {
            let name = if ROCKSDB { "rocksdb" } else { "sqlite" };
            // A small memtable, so that RocksDB flushes and compacts by itself too.
            let options = EngineOptions { memtable_bytes: 64 << 10, ..EngineOptions::default() };
            Self(by_name(name, &options).expect("compiled in"))
        }

        fn as_engine(&self) -> &dyn Engine {
            self.0.as_ref()
        }

        fn crash(&self, db: Arc<dyn Db>, dir: &Path, next: &Path, _survivors: u8) {
            while !copy_at_one_moment(dir, next) {
                fs::remove_dir_all(next).expect("removed");
            }
            drop(db);
            self.0.destroy(dir).expect("closed");
        }
    }

    /// Copies the files; false if the engine changed them in the background meanwhile.
    fn copy_at_one_moment(from: &Path, to: &Path) -> bool {
        fs::create_dir(to).expect("created");
        let before = listing(from);
        let copied = before.keys().all(|name| fs::copy(from.join(name), to.join(name)).is_ok());
        copied && listing(from) == before
    }

    /// Names and sizes. Engines append to files or write new ones, so what is alike in both was not changed.
    fn listing(dir: &Path) -> BTreeMap<String, u64> {
        let entries = fs::read_dir(dir).expect("readable");
        entries
            .filter_map(|entry| {
                let entry = entry.expect("an entry");
                let length = entry.metadata().ok()?.len();
                Some((entry.file_name().to_string_lossy().into_owned(), length))
            })
            .collect()
    }
}

struct UnderTest<C> {
    engine: C,
    temporary: tempfile::TempDir,
    crashes: usize,
    db: Option<Arc<dyn Db>>,
    snapshot: Option<(Arc<dyn Snapshot>, Rows)>,
}

impl<C: Crashing> UnderTest<C> {
    fn dir(&self) -> std::path::PathBuf {
        let moves = if C::MOVES { self.crashes } else { 0 };
        self.temporary.path().join(format!("kv-{moves}"))
    }

    fn db(&self) -> &dyn Db {
        self.db.as_deref().expect("open between transitions")
    }

    fn commit(&self, number: usize, changes: &Changes, durability: Durability) {
        let mut batch = Batch::new();
        for (key, value) in changes {
            match value {
                Some(value) => batch.put(key.clone(), value.clone()),
                None => batch.delete(key.clone()),
            }
        }
        batch.put(tables::raft_applied_key(), (number as u64).to_be_bytes().to_vec());
        self.db().commit(batch, durability).expect("committed");
    }

    fn crash(&mut self, reference: &Reference, survivors: u8) {
        self.snapshot = None;
        let durable = number(self.db().durable_applied().expect("readable"));
        let dir = self.dir();
        self.crashes += 1;
        let next = self.dir();
        self.engine.crash(self.db.take().expect("open"), &dir, &next, survivors);
        self.db = Some(self.engine.as_engine().open(&next).expect("recovered"));
        let recovered = number(self.db().get(&tables::raft_applied_key()).expect("readable"));
        let committed = reference.commits.len();
        assert!(reference.flushed <= recovered && recovered <= committed, "{recovered} of {reference:?}");
        assert!(durable <= recovered, "durable_applied was {durable}, but only {recovered} survived");
        assert_eq!(contents(self.db()), rows_after(&reference.commits, recovered), "not a prefix");
        self.db().verify().expect("healthy");
        for (index, changes) in reference.commits.iter().enumerate().skip(recovered) {
            self.commit(index + 1, changes, Durability::Buffered);
        }
    }
}

fn number(applied: Option<Bytes>) -> usize {
    let number =
        applied.map_or(0, |value| u64::from_be_bytes(value.as_ref().try_into().expect("eight bytes")));
    number as usize
}

fn read(snapshot: &dyn Snapshot, range: &KeyRange, direction: Direction) -> Vec<(Bytes, Bytes)> {
    let mut rows = Vec::new();
    let scanned = snapshot.scan(range, direction, &mut |key, value| {
        rows.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
        ControlFlow::Continue(())
    });
    scanned.expect("the scan succeeds");
    rows
}

fn contents(db: &dyn Db) -> Rows {
    let snapshot = db.snapshot().expect("a snapshot");
    read(snapshot.as_ref(), &KeyRange::ALL, Direction::Ascending).into_iter().collect()
}

/// Runs one engine.
struct Against<C>(PhantomData<C>);

impl<C: Crashing> StateMachineTest for Against<C> {
    type SystemUnderTest = UnderTest<C>;
    type Reference = Reference;

    fn init_test(_reference: &Reference) -> UnderTest<C> {
        let temporary = tempfile::tempdir().expect("a directory");
        let mut test = UnderTest { engine: C::engine(), temporary, crashes: 0, db: None, snapshot: None };
        test.db = Some(test.engine.as_engine().create(&test.dir()).expect("created"));
        test
    }

    fn apply(mut test: UnderTest<C>, reference: &Reference, transition: Transition) -> UnderTest<C> {
        match transition {
            Transition::Commit(changes, durability) => {
                test.commit(reference.commits.len(), &changes, durability);
            }
            Transition::Flush => test.db().flush().expect("flushed"),
            Transition::Reopen => {
                (test.snapshot, test.db) = (None, None);
                test.db = Some(test.engine.as_engine().open(&test.dir()).expect("opened"));
            }
            Transition::Crash(survivors) => test.crash(reference, survivors),
            Transition::TakeSnapshot => {
                test.snapshot = Some((test.db().snapshot().expect("a snapshot"), reference.rows.clone()));
            }
            Transition::Scan(range, direction) => {
                let mut expected: Vec<_> =
                    reference.rows.clone().into_iter().filter(|(key, _)| range.contains(key)).collect();
                if direction == Direction::Descending {
                    expected.reverse();
                }
                let snapshot = test.db().snapshot().expect("a snapshot");
                assert_eq!(read(snapshot.as_ref(), &range, direction), expected);
                let rows: Result<Vec<_>, _> = snapshot.rows(&range, direction).expect("started").collect();
                assert_eq!(rows.expect("the iteration succeeds"), expected);
            }
        }
        test
    }

    fn check_invariants(test: &UnderTest<C>, reference: &Reference) {
        assert_eq!(contents(test.db()), reference.rows);
        for (key, value) in &reference.rows {
            assert_eq!(test.db().get(key).expect("readable").as_ref(), Some(value));
        }
        let durable = number(test.db().durable_applied().expect("readable"));
        assert!(
            reference.flushed <= durable && durable <= reference.commits.len(),
            "{durable}: {reference:?}"
        );
        if let Some((snapshot, rows)) = &test.snapshot {
            let found = read(snapshot.as_ref(), &KeyRange::ALL, Direction::Ascending);
            assert!(found.into_iter().eq(rows.clone()), "a snapshot changed");
        }
    }
}

/// Cases with a disk below them take milliseconds each for opening and flushing.
fn config(cases: u32) -> Config {
    Config { cases, failure_persistence: None, max_shrink_iters: 300, ..Config::default() }
}

prop_state_machine! {
    #![proptest_config(config(128))]

    #[test]
    fn the_model_keeps_the_contract_through_crashes(sequential 1..60 => Against<Model>);
}

#[cfg(feature = "sqlite")]
type Sqlite = files::Files<false>;

#[cfg(feature = "sqlite")]
prop_state_machine! {
    #![proptest_config(config(24))]

    #[test]
    fn sqlite_keeps_the_contract_through_crashes(sequential 1..60 => Against<Sqlite>);
}

#[cfg(feature = "rocksdb")]
type RocksDb = files::Files<true>;

#[cfg(feature = "rocksdb")]
prop_state_machine! {
    #![proptest_config(config(24))]

    #[test]
    fn rocksdb_keeps_the_contract_through_crashes(sequential 1..60 => Against<RocksDb>);
}
