//! Promises about scans, iterators and snapshots.

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use bytes::Bytes;

use crate::{
    contract::{Batch, Db, Direction, Durability, Engine, KeyRange},
    tables,
};

use super::{Pairs, contents, put, read};

const DIRECTIONS: [Direction; 2] = [Direction::Ascending, Direction::Descending];

pub(super) fn every_range_is_read_in_both_directions(engine: &dyn Engine, dir: &Path) {
    let db = engine.create(dir).expect("created");
    let keys: [&[u8]; 9] = [b"", b"\0", b"a", b"a\0", b"aa", b"b", b"m", b"\xff", b"\xff\xff"];
    let mut expected = BTreeMap::from([(tables::format_key(), tables::format_row())]);
    for (number, key) in keys.iter().enumerate() {
        put(db.as_ref(), key, &[number as u8]);
        expected.insert(Bytes::copy_from_slice(key), Bytes::copy_from_slice(&[number as u8]));
        if number % 3 == 1 {
            db.flush().expect("flushed");
        }
    }
    let bounds: Vec<Option<Bytes>> = [None, Some(&b"\xff\xff\xff"[..]), Some(b"ab"), Some(b"\0\0")]
        .into_iter()
        .chain(keys.into_iter().map(Some))
        .map(|bound| bound.map(Bytes::copy_from_slice))
        .collect();
    let snapshot = db.snapshot().expect("a snapshot");
    for lower in &bounds {
        for upper in &bounds {
            let range = KeyRange { lower: lower.clone(), upper: upper.clone() };
            let mut rows: Pairs =
                expected.clone().into_iter().filter(|(key, _)| range.contains(key)).collect();
            assert_eq!(read(snapshot.as_ref(), &range, Direction::Ascending), rows, "{range:?}");
            rows.reverse();
            assert_eq!(read(snapshot.as_ref(), &range, Direction::Descending), rows, "{range:?}");
        }
    }
}

pub(super) fn a_scan_ends_when_the_visitor_breaks(engine: &dyn Engine, dir: &Path) {
    let db = engine.create(dir).expect("created");
    for row in 0..10_u8 {
        put(db.as_ref(), &[row], &[row]);
    }
    let snapshot = db.snapshot().expect("a snapshot");
    for (direction, last) in [(Direction::Ascending, 2), (Direction::Descending, 7)] {
        let mut visited = Vec::new();
        let range = KeyRange { lower: None, upper: Some(Bytes::from_static(&[10])) };
        let scanned = snapshot.scan(&range, direction, &mut |key, _| {
            visited.push(key[0]);
            if visited.len() == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        scanned.expect("a break is no error");
        assert_eq!((visited.len(), visited[2]), (3, last));
    }
}

pub(super) fn a_visitor_may_read_the_same_snapshot(engine: &dyn Engine, dir: &Path) {
    let db = engine.create(dir).expect("created");
    for row in 0..20_u8 {
        put(db.as_ref(), &[b'i', row], &[]);
        put(db.as_ref(), &[b'e', row], &[row]);
    }
    let snapshot = db.snapshot().expect("a snapshot");
    let mut sum = 0;
    let scanned = snapshot.scan(&tables::table_range(b'i'), Direction::Descending, &mut |key, _| {
        let event = snapshot.get(&[b'e', key[1]]).expect("readable").expect("the row is there");
        let before = read(snapshot.as_ref(), &tables::prefix_range(&[b'e', key[1]]), Direction::Ascending);
        assert_eq!(before.len(), 1);
        sum += u32::from(event[0]);
        ControlFlow::Continue(())
    });
    scanned.expect("the scan succeeds");
    assert_eq!(sum, (0..20).sum::<u32>());
}

pub(super) fn iterators_advance_in_turn_over_many_rows(engine: &dyn Engine, dir: &Path) {
    const ROWS: u32 = 3_000;
    let db = engine.create(dir).expect("created");
    let mut batch = Batch::new();
    for row in 0..ROWS {
        batch.put(Bytes::copy_from_slice(&row.to_be_bytes()), vec![row as u8; 40]);
    }
    db.commit(batch, Durability::Buffered).expect("committed");
    let snapshot = db.snapshot().expect("a snapshot");
    let range = KeyRange::new(vec![0; 4], ROWS.to_be_bytes().to_vec());
    let up = snapshot.rows(&range, Direction::Ascending).expect("an iterator");
    let down = snapshot.rows(&range, Direction::Descending).expect("an iterator");
    let mut count = 0_u32;
    for (up, down) in up.zip(down) {
        let (up, down) = (up.expect("a row"), down.expect("a row"));
        assert_eq!(up.0, count.to_be_bytes()[..]);
        assert_eq!(down.0, (ROWS - 1 - count).to_be_bytes()[..]);
        assert_eq!(up.1, vec![count as u8; 40]);
        count += 1;
    }
    assert_eq!(count, ROWS);
}

pub(super) fn a_snapshot_never_changes(engine: &dyn Engine, dir: &Path) {
    let db = engine.create(dir).expect("created");
    put(db.as_ref(), b"changed", b"old");
    put(db.as_ref(), b"deleted", b"old");
    let snapshot = db.snapshot().expect("a snapshot");
    let empty = db.snapshot().expect("a second snapshot");
    let before = contents(db.as_ref());
    for round in 0..50_u8 {
        let mut batch = Batch::new();
        batch.put("changed", vec![round; 2_000]);
        batch.delete("deleted");
        batch.put(vec![b'n', round], "new");
        db.commit(batch, Durability::Buffered).expect("committed");
        if round % 20 == 0 {
            db.flush().expect("flushed");
        }
    }
    assert_eq!(snapshot.get(b"changed").expect("readable").as_deref(), Some(&b"old"[..]));
    assert_eq!(snapshot.get(b"n\0").expect("readable"), None);
    for direction in DIRECTIONS {
        let mut rows = read(snapshot.as_ref(), &KeyRange::ALL, direction);
        rows.sort_unstable();
        assert_eq!(rows, before);
    }
    drop(snapshot);
    assert_eq!(read(empty.as_ref(), &KeyRange::ALL, Direction::Ascending), before);
    assert_eq!(contents(db.as_ref()).len(), 1 + 1 + 50);
}

pub(super) fn readers_see_whole_batches_while_a_writer_commits(engine: &dyn Engine, dir: &Path) {
    const COMMITS: u32 = 300;
    let db = engine.create(dir).expect("created");
    commit_round(db.as_ref(), 0);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut newest = 0;
                while !done.load(Ordering::Acquire) {
                    newest = check_round(db.as_ref(), newest);
                }
                assert_eq!(check_round(db.as_ref(), newest), COMMITS, "the last commit is visible");
            });
        }
        scope.spawn(|| {
            // Set also when the writer panics, so that the readers end and the panic is reported.
            let _finished = SetWhenDropped(&done);
            for round in 1..=COMMITS {
                commit_round(db.as_ref(), round);
                if round % 64 == 0 {
                    db.flush().expect("flushed");
                }
            }
        });
    });
}

struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Writes the number of the round under two distant keys, and one row of its own.
fn commit_round(db: &dyn Db, round: u32) {
    let mut batch = Batch::new();
    let value = Bytes::copy_from_slice(&round.to_be_bytes());
    batch.put("a", value.clone());
    batch.put([b"r", &value[..]].concat(), vec![0; 500]);
    batch.put("z", value);
    db.commit(batch, Durability::Buffered).expect("committed");
}

/// Checks one snapshot and returns its round, which is no older than `newest`.
fn check_round(db: &dyn Db, newest: u32) -> u32 {
    let snapshot = db.snapshot().expect("a snapshot");
    let value = snapshot.get(b"a").expect("readable").expect("written first");
    let round = u32::from_be_bytes(value.as_ref().try_into().expect("four bytes"));
    assert!(round >= newest, "round {round} after {newest}");
    assert_eq!(snapshot.get(b"z").expect("readable"), Some(value), "half a batch is visible");
    let rows = read(snapshot.as_ref(), &tables::prefix_range(b"r"), Direction::Descending);
    assert_eq!(rows.len(), round as usize + 1);
    round
}
