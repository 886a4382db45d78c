//! The contract suite: every promise of [`crate::contract`], for any engine.
//!
//! Each function is one promise and panics where an engine breaks it. What needs an engine's files (damage, a
//! killed process) is tested beside the engine.

mod lifecycle;
mod reads;
mod writes;

use std::{ops::ControlFlow, path::Path, sync::Arc};

use bytes::Bytes;

use crate::contract::{Batch, Db, Direction, Durability, Engine, KeyRange, Snapshot};

/// The rows of a range in the order of a scan.
type Pairs = Vec<(Bytes, Bytes)>;

/// One promise, checked with a database in the given directory or in others that extend its name.
type Promise = fn(&dyn Engine, &Path);

/// Runs the whole suite with databases below `dir`, which the caller provides empty and removes afterwards.
///
/// # Panics
///
/// If the engine breaks a promise.
pub fn run_all(engine: Arc<dyn Engine>, dir: &Path) {
    let promises: [(&str, Promise); 19] = [
        ("new", lifecycle::a_new_database_holds_only_its_format),
        ("exclusive", lifecycle::a_database_is_created_once_and_opened_once),
        ("destroyed", lifecycle::a_destroyed_database_is_gone),
        ("reopened", lifecycle::flushed_commits_survive_a_reopen),
        ("format", lifecycle::an_unsupported_format_is_refused),
        ("applied", lifecycle::the_durable_applied_row_is_a_lower_bound),
        ("figures", lifecycle::a_healthy_database_verifies_and_reports_figures),
        ("outlived", lifecycle::a_snapshot_outlives_its_database),
        ("batches", writes::a_batch_applies_in_order),
        ("odd", writes::odd_keys_and_values_are_kept),
        ("large", writes::values_of_16_mib_are_kept),
        ("load", writes::a_bulk_load_fills_an_empty_database),
        ("load-refused", writes::a_bulk_load_refuses_rows_disorder_and_bad_formats),
        ("ranges", reads::every_range_is_read_in_both_directions),
        ("breaks", reads::a_scan_ends_when_the_visitor_breaks),
        ("nested", reads::a_visitor_may_read_the_same_snapshot),
        ("iterators", reads::iterators_advance_in_turn_over_many_rows),
        ("isolated", reads::a_snapshot_never_changes),
        ("threads", reads::readers_see_whole_batches_while_a_writer_commits),
    ];
    for (name, promise) in promises {
        promise(engine.as_ref(), &dir.join(name));
    }
}

fn put(db: &dyn Db, key: &[u8], value: &[u8]) {
    let mut batch = Batch::new();
    batch.put(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
    db.commit(batch, Durability::Buffered).expect("the commit succeeds");
}

/// The rows of `range`, read twice: by a scan and by an iterator, which must agree.
#[track_caller]
fn read(snapshot: &dyn Snapshot, range: &KeyRange, direction: Direction) -> Pairs {
    let mut scanned = Pairs::new();
    let visited = snapshot.scan(range, direction, &mut |key, value| {
        scanned.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
        ControlFlow::Continue(())
    });
    visited.expect("the scan succeeds");
    let rows = snapshot.rows(range, direction).expect("the iterator starts");
    let iterated: Pairs = rows.collect::<Result<_, _>>().expect("the iteration succeeds");
    assert!(scanned == iterated, "scan and iterator differ over {range:?} {direction:?}");
    scanned
}

/// Everything in the database.
#[track_caller]
fn contents(db: &dyn Db) -> Pairs {
    read(db.snapshot().expect("a snapshot").as_ref(), &KeyRange::ALL, Direction::Ascending)
}
