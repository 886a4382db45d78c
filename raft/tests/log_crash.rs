//! Power cuts at every write, sync, resize and change of a name: what was acknowledged is there afterwards, and the
//! log is what it was at some moment.

// A test fails by panicking, in its helpers too.
#![allow(clippy::unwrap_used)]

mod log_fixture;

use std::collections::BTreeSet;

use proptest::prelude::*;
use tidemark_raft::{
    log::SegmentLog,
    vfs::{Operation, OperationCounts, SimulatedDisk},
};

use self::log_fixture::{
    Content, History, Recorder, Step, append, disk_with, entry, segment_files, simulate, simulated_options,
};

const SEGMENT_BYTES: u32 = 2048;

const CUTS: [Operation; 4] = [Operation::Write, Operation::Sync, Operation::Resize, Operation::Name];

/// Touches everything: rolls, overwritten tails, votes, purges, an installed snapshot, marks.
fn script() -> Vec<Step> {
    use Step::*;
    vec![
        Append { term: 0, entries: 1, bytes: 0 },
        Vote { term: 1, committed: false },
        Vote { term: 1, committed: true },
        Append { term: 1, entries: 3, bytes: 20 },
        Commit { behind: 1 },
        Submit { term: 1, entries: 2, bytes: 700 },
        Submit { term: 1, entries: 4, bytes: 90 },
        Quiet,
        Truncate { entries: 3 },
        Submit { term: 2, entries: 2, bytes: 60 },
        Truncate { entries: 1 },
        Append { term: 3, entries: 2, bytes: 1200 },
        Commit { behind: 0 },
        Quiet,
        Vote { term: 4, committed: true },
        Submit { term: 4, entries: 5, bytes: 300 },
        Commit { behind: 2 },
        Purge { behind: 6 },
        Append { term: 4, entries: 5, bytes: 400 },
        Purge { behind: 2 },
        Flush,
        Submit { term: 4, entries: 1, bytes: 10 },
        Install { term: 5, ahead: 10 },
        Submit { term: 5, entries: 2, bytes: 500 },
        Truncate { entries: 1 },
        Append { term: 6, entries: 3, bytes: 100 },
        Commit { behind: 0 },
        Append { term: 6, entries: 4, bytes: 600 },
        // Alone, so that nothing else makes it durable before its segments go.
        Quiet,
        Purge { behind: 0 },
        Quiet,
        Append { term: 6, entries: 1, bytes: 1 },
    ]
}

fn run_until_it_ends(disk: &SimulatedDisk, steps: &[Step]) -> History {
    simulate(async {
        // Without power the log cannot even be begun.
        let Ok(mut recorder) = Recorder::open(simulated_options(disk, SEGMENT_BYTES)) else {
            return History::default();
        };
        for step in steps {
            if let Err(error) = recorder.step(step).await {
                assert!(!disk.is_powered(), "only a power cut ends a run: {error}");
                break;
            }
        }
        recorder.history
    })
}

fn content_of(disk: &SimulatedDisk) -> Content {
    simulate(async {
        let options = simulated_options(disk, SEGMENT_BYTES);
        let mut log = SegmentLog::open(options).unwrap_or_else(|error| panic!("{error}"));
        Content::of(&mut log).await
    })
}

/// The number of operations of each kind that a whole run takes.
fn count(steps: &[Step]) -> OperationCounts {
    let disk = SimulatedDisk::new(0);
    run_until_it_ends(&disk, steps);
    disk.counts()
}

fn count_of(counts: OperationCounts, operation: Operation) -> u64 {
    match operation {
        Operation::Write => counts.writes,
        Operation::Sync => counts.syncs,
        Operation::Resize => counts.resizes,
        Operation::Name => counts.names,
        Operation::Read => counts.reads,
    }
}

/// Cuts the power at one operation, and checks what is there after a restart: at once, after another cut during
/// recovery, again (recovery must have settled it), and after going on.
fn cut_and_check(steps: &[Step], operation: Operation, nth: u64, seed: u64) {
    let story = (operation, nth, seed);
    let disk = SimulatedDisk::new(seed);
    disk.cut_power_at(operation, nth);
    let history = run_until_it_ends(&disk, steps);

    // The process alone dies: what it had written but not synced is found, and must be durable once it was found.
    let killed = disk.fork(seed + 3);
    killed.restart_process();
    let found = content_of(&killed);
    history.check(&found, &("killed", story));
    killed.restart();
    assert_eq!(content_of(&killed), found, "{story:?}");

    disk.restart();
    let interrupted = disk.fork(seed + 1);
    interrupted.cut_power_at([Operation::Write, Operation::Sync][(seed % 2) as usize], seed % 3 + 1);
    simulate(async {
        // The cut may come before, during or after recovery.
        drop(SegmentLog::open(simulated_options(&interrupted, SEGMENT_BYTES)));
    });
    interrupted.restart();
    history.check(&content_of(&interrupted), &("interrupted recovery", story));

    let found = content_of(&disk);
    let reached = history.check(&found, &story);
    // What was recovered is durable: another power cut takes nothing of it.
    disk.restart();
    assert_eq!(content_of(&disk), found, "{story:?}");

    // An entry exactly in place of the first lost one: what followed that must not come back behind it.
    let bytes = history.payload_bytes(reached).unwrap_or(30);
    let disk = disk.fork(seed + 2);
    simulate(async {
        let mut log = SegmentLog::open(simulated_options(&disk, SEGMENT_BYTES)).unwrap();
        append(&mut log, vec![entry(9, found.next, bytes)]).await.unwrap();
    });
    disk.restart();
    let after = content_of(&disk);
    assert_eq!(after.next, found.next + 1, "{story:?}");
    assert_eq!(after.entries.get(&found.next), Some(&entry(9, found.next, bytes)), "{story:?}");
}

fn cut_everywhere(steps: &[Step], seeds: std::ops::Range<u64>) {
    let counts = count(steps);
    for operation in CUTS {
        for nth in 1..=count_of(counts, operation) {
            for seed in seeds.clone() {
                cut_and_check(steps, operation, nth, seed);
            }
        }
    }
}

#[test]
fn nothing_acknowledged_is_lost_wherever_the_power_is_cut() {
    let counts = count(&script());
    assert!(
        counts.writes > 20 && counts.syncs > 20 && counts.names > 5,
        "the script writes enough: {counts:?}"
    );
    cut_everywhere(&script(), 0..16);
}

#[test]
fn an_uninterrupted_run_reads_back_as_requested() {
    let disk = SimulatedDisk::new(0);
    let history = run_until_it_ends(&disk, &script());
    assert_eq!(history.acknowledged(), history.changes.len());
    let expected = history.content_after(history.changes.len());
    assert_eq!(content_of(&disk), expected);
    disk.restart();
    let found = content_of(&disk);
    assert_eq!(Content { committed: expected.committed, ..found }, expected);
}

fn any_step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![Just(0_usize), 1..64_usize, 500..1600_usize];
    let appended = (1..4_u64, bytes);
    prop_oneof![
        4 => appended.clone().prop_map(|(entries, bytes)| Step::Append { term: 0, entries, bytes }),
        5 => appended.prop_map(|(entries, bytes)| Step::Submit { term: 0, entries, bytes }),
        1 => any::<bool>().prop_map(|committed| Step::Vote { term: 0, committed }),
        2 => (1..5_u64).prop_map(|entries| Step::Truncate { entries }),
        2 => (0..4_u64).prop_map(|behind| Step::Commit { behind }),
        1 => (0..6_u64).prop_map(|behind| Step::Purge { behind }),
        1 => (0..9_u64).prop_map(|ahead| Step::Install { term: 0, ahead }),
        1 => Just(Step::Flush),
        1 => Just(Step::Quiet),
    ]
}

/// Terms grow along the workload, as they do in Raft; a truncation comes with a new one.
fn any_workload() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(any_step(), 4..16).prop_map(|mut steps| {
        let mut now = 1;
        for step in &mut steps {
            match step {
                Step::Append { term, .. } | Step::Submit { term, .. } | Step::Install { term, .. } => {
                    *term = now
                }
                Step::Vote { term, .. } => {
                    now += 1;
                    *term = now;
                }
                Step::Truncate { .. } => now += 1,
                Step::Commit { .. } | Step::Purge { .. } | Step::Flush | Step::Quiet => {}
            }
        }
        steps
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_workloads_survive_cuts_everywhere(steps in any_workload(), seed in 0..1_000_000_u64) {
        cut_everywhere(&steps, seed..seed + 2);
    }
}

/// The one write that is in flight when the power goes may leave any of its blocks: all of them are tried.
#[test]
fn any_part_of_a_torn_write_is_cut_off() {
    let disk = SimulatedDisk::new(0);
    let write = |entries: Vec<_>| {
        simulate(async {
            let mut log = SegmentLog::open(simulated_options(&disk, 8192)).unwrap();
            append(&mut log, entries).await.unwrap();
        });
    };
    write((0..4).map(|index| entry(1, index, 100)).collect());
    let before = segment_files(&disk);
    disk.restart_process();
    let torn: Vec<_> = (4..14).map(|index| entry(2, index, 150 + 7 * index as usize)).collect();
    write(torn.clone());
    let after = segment_files(&disk);

    let (path, old) = before.first_key_value().unwrap();
    let new = &after[path];
    let blocks: Vec<usize> =
        (0..new.len() / 512).filter(|block| old[block * 512..][..512] != new[block * 512..][..512]).collect();
    assert!((5..=12).contains(&blocks.len()), "the write spans several blocks: {blocks:?}");
    let mut ends = BTreeSet::new();
    for kept in 0..1_u32 << blocks.len() {
        let mut bytes = old.clone();
        for (_, block) in blocks.iter().enumerate().filter(|(position, _)| kept >> position & 1 == 1) {
            bytes[block * 512..][..512].copy_from_slice(&new[block * 512..][..512]);
        }
        let disk = disk_with(&[(path.clone(), bytes)].into());
        let found = content_of(&disk);
        assert!((4..=14).contains(&found.next), "blocks {kept:b}");
        for (index, found) in found.entries.range(4..) {
            assert_eq!(found, &torn[*index as usize - 4], "blocks {kept:b}");
        }
        // Nothing of the torn part comes back behind an entry in place of the first lost one.
        disk.restart_process();
        simulate(async {
            let mut log = SegmentLog::open(simulated_options(&disk, 8192)).unwrap();
            append(&mut log, vec![entry(3, found.next, 150 + 7 * found.next as usize)]).await.unwrap();
        });
        disk.restart();
        assert_eq!(content_of(&disk).next, found.next + 1, "blocks {kept:b}");
        ends.insert(found.next);
    }
    assert!(ends.len() > 4 && ends.contains(&4) && ends.contains(&14), "it ended here and there: {ends:?}");
}
