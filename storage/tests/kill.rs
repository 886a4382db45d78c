//! Kills a process that writes, again and again: what is left must be a prefix of its commits that holds
//! everything it reported as durable.
//!
//! The test binary is its own child process, so it has no libtest harness; it answers the listing that test
//! runners ask for.

use std::{
    env, fmt,
    io::{self, BufRead, BufReader, Write as _},
    ops::ControlFlow,
    path::Path,
    process::{Command, ExitCode, Stdio},
    sync::Arc,
};

use bytes::Bytes;
use tidemark_storage::{
    Batch, Db, Direction, Durability, Engine, EngineOptions, available, by_name,
    event_repository::{decode_u64, encode_u64},
    tables,
};

/// How often each engine's process is killed; the rounds continue on one database.
const ROUNDS: u64 = 6;
/// Rows that each batch writes alike, far apart in the keyspace.
const TWINS: [&str; 4] = ["a", "k", "n", "z"];
/// The first argument of the child.
const CHILD: &str = "write-until-killed";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [mode, engine, dir] = arguments.as_slice()
        && mode == CHILD
    {
        return write_until_killed(engine, Path::new(dir));
    }
    let tests = available().iter().map(|engine| Test { engine });
    if arguments.iter().any(|argument| argument == "--list") {
        if !arguments.iter().any(|argument| argument == "--ignored") {
            tests.for_each(|test| say(format_args!("{test}: test")));
        }
        return ExitCode::SUCCESS;
    }
    for test in tests.filter(|test| test.is_chosen(&arguments)) {
        test.run();
        say(format_args!("test {test} ... ok"));
    }
    ExitCode::SUCCESS
}

fn say(line: fmt::Arguments<'_>) {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).expect("the reader of the output is there");
}

struct Test {
    engine: &'static str,
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_killed_while_it_writes_leaves_a_prefix", self.engine)
    }
}

impl Test {
    /// Understands what test runners pass: names or parts of names, and `--exact`.
    fn is_chosen(&self, arguments: &[String]) -> bool {
        let exact = arguments.iter().any(|argument| argument == "--exact");
        let mut names = arguments.iter().filter(|argument| !argument.starts_with('-')).peekable();
        let name = self.to_string();
        names.peek().is_none()
            || names.any(|chosen| if exact { *chosen == name } else { name.contains(chosen) })
    }

    fn run(&self) {
        let temporary = tempfile::tempdir().expect("a directory");
        let dir = temporary.path().join("kv");
        let mut commits = 0;
        for round in 1..=ROUNDS {
            // A different number of reports each time, so that kills fall into different moments of the work.
            let reported = kill_after(self.engine, &dir, 3 + 7 * round as usize);
            let recovered = check(self.engine, &dir, reported);
            assert!(recovered > commits, "round {round} got no further than {commits}");
            commits = recovered;
        }
    }
}

/// Runs the child until it has reported `reports` times and kills it; the newest report that it made.
fn kill_after(engine: &str, dir: &Path, reports: usize) -> u64 {
    let mut child = Command::new(env::current_exe().expect("this binary has a path"))
        .args([CHILD, engine])
        .arg(dir)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the child starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut newest = 0;
    for line in lines.by_ref().take(reports) {
        newest = line.expect("the child lives until it is killed").parse().expect("a number");
    }
    child.kill().expect("killed");
    let status = child.wait().expect("waited for");
    assert!(!status.success() && status.code().is_none(), "the child ended by itself: {status}");
    // Reports that were on their way when the child died count too. The last one may be cut short.
    for line in lines.map_while(Result::ok) {
        newest = line.parse().map_or(newest, |number: u64| newest.max(number));
    }
    newest
}

/// Checks what a kill left and returns the number of commits that survived.
fn check(engine: &str, dir: &Path, reported: u64) -> u64 {
    let db = self::engine(engine).open(dir).expect("recovered");
    let applied = applied(db.get(&tables::raft_applied_key()).expect("readable"));
    assert!(applied >= reported, "{reported} commits were reported durable, {applied} survived");
    let durable = self::applied(db.durable_applied().expect("readable"));
    assert!(durable <= applied, "{durable} durable of {applied}");
    for twin in TWINS {
        let value = db.get(twin.as_bytes()).expect("readable").expect("every batch writes it");
        assert_eq!(decode_u64("twin", &value).expect("a number"), applied, "half a batch survived");
    }
    let mut history = 0;
    let snapshot = db.snapshot().expect("a snapshot");
    let scanned = snapshot.scan(&tables::prefix_range(b"h"), Direction::Ascending, &mut |key, value| {
        history += 1;
        assert_eq!(key, history_key(history), "a commit is missing");
        assert_eq!(value, payload(history), "another value than was written");
        ControlFlow::Continue(())
    });
    scanned.expect("the scan succeeds");
    assert_eq!(history, applied, "rows without their applied index, or the other way round");
    db.verify().expect("healthy");
    applied
}

/// Commits numbered batches for ever, and reports what is durable: after flushes and in between.
fn write_until_killed(engine: &str, dir: &Path) -> ExitCode {
    let engine = self::engine(engine);
    let db = if engine.exists(dir).expect("readable") { engine.open(dir) } else { engine.create(dir) };
    let db = db.expect("usable");
    let first = applied(db.get(&tables::raft_applied_key()).expect("readable")) + 1;
    // A reader that pins old data, as nodes have them.
    let mut snapshot = db.snapshot().expect("a snapshot");
    for number in first.. {
        commit(db.as_ref(), number);
        if number % 40 == 0 {
            db.flush().expect("flushed");
            let durable = applied(db.durable_applied().expect("readable"));
            assert_eq!(durable, number, "flushed, but not durable");
        }
        if number % 16 == 0 {
            say(format_args!("{}", applied(db.durable_applied().expect("readable"))));
        }
        if number % 50 == 0 {
            snapshot = db.snapshot().expect("a snapshot");
        }
        snapshot.get(b"a").expect("readable");
    }
    ExitCode::FAILURE
}

fn commit(db: &dyn Db, number: u64) {
    let mut batch = Batch::new();
    batch.put(tables::raft_applied_key(), encode_u64(number));
    for twin in TWINS {
        batch.put(twin, encode_u64(number));
    }
    batch.put(history_key(number), payload(number));
    db.commit(batch, Durability::Buffered).expect("committed");
}

fn engine(name: &str) -> Arc<dyn Engine> {
    // A small memtable, so that RocksDB also flushes and compacts in the background.
    let options = EngineOptions { memtable_bytes: 128 << 10, ..EngineOptions::default() };
    by_name(name, &options).expect("compiled in")
}

fn history_key(number: u64) -> Vec<u8> {
    [&b"h"[..], &number.to_be_bytes()].concat()
}

/// A value that only this number has, from nothing to several pages long.
fn payload(number: u64) -> Vec<u8> {
    let length = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 51;
    (0..length).map(|index| (index ^ number) as u8).collect()
}

fn applied(row: Option<Bytes>) -> u64 {
    row.map_or(0, |value| decode_u64("raft/applied", &value).expect("a number"))
}
