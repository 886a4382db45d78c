//! A follower that was down while the log was cut behind its end catches up through a snapshot.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tidemark_raft::Retention;
use tokio::time::Instant;

use super::{
    client::Client,
    cluster::Cluster,
    node::{Crash, Profile},
    run::{BOUNDARY, Failure, Run, converge, create_boundary, final_states, in_simulated_time},
    trace::Trace,
};
use crate::{
    history::History,
    invariants::{self, Violation},
};

/// The log must be cut within this much simulated time of writing.
const CUT_WITHIN: Duration = Duration::from_secs(60);

/// Runs the scenario with one seed, and says up to which index the follower had come and from which index the
/// others still had their logs.
///
/// # Errors
///
/// [`Failure`].
pub fn snapshot_catch_up(seed: u64) -> Result<(Run, u64, u64), Failure> {
    in_simulated_time(seed, simulate(seed))
}

async fn simulate(seed: u64) -> Result<(Run, u64, u64), Failure> {
    let mut random = SmallRng::seed_from_u64(seed);
    let trace = Trace::begin();
    let cluster = Cluster::new(random.random(), &profile(), &trace);
    cluster.start_all();
    create_boundary(&cluster).await?;
    let history = Arc::new(Mutex::new(History::default()));
    write(&cluster, &history, &mut random, Duration::from_secs(1)).await?;
    converge(&cluster).await?;

    let leader = cluster.leader().ok_or_else(|| Failure::NotConverged("no leader".to_owned()))?;
    let follower = cluster.nodes.keys().copied().find(|id| *id != leader).expect("there are three nodes");
    let reached = last_index(&cluster, follower);
    cluster.nodes[&follower].crash(Crash::PowerLoss);
    let give_up = Instant::now() + CUT_WITHIN;
    let first = loop {
        write(&cluster, &history, &mut random, Duration::from_secs(2)).await?;
        let first =
            cluster.running().iter().filter_map(|(_, node)| node.raft.log().stats().first_index).min();
        match first {
            Some(first) if first > reached + 1 => break first,
            _ if Instant::now() >= give_up => {
                return Err(Failure::NotConverged("the log was not cut".to_owned()));
            }
            _ => {}
        }
    };
    // The disk is slow, so that the next crash comes after the install and before the log was purged behind it.
    cluster.start(follower, Duration::from_millis(50));
    installed(&cluster, follower, first).await?;
    cluster.nodes[&follower].crash(Crash::PowerLoss);
    cluster.start(follower, Duration::from_millis(1));
    write(&cluster, &history, &mut random, Duration::from_secs(2)).await?;
    converge(&cluster).await?;
    let finals = final_states(&cluster).await?;
    let mut history = std::mem::take(&mut *history.lock());
    history.finals = finals;
    let violations: Vec<Violation> = invariants::violations(&history);
    if !violations.is_empty() {
        return Err(Failure::Violated(violations));
    }
    Ok((Run { steps: trace.steps(), history }, reached, first))
}

/// Waits until the follower has applied something that the log of the others has no entries for any more.
async fn installed(cluster: &Cluster, follower: u64, first: u64) -> Result<(), Failure> {
    let give_up = Instant::now() + CUT_WITHIN;
    loop {
        let applied = cluster.nodes[&follower].running().map(|node| node.raft.progress().borrow().index());
        if applied.is_some_and(|applied| applied + 1 >= first) {
            return Ok(());
        }
        if Instant::now() >= give_up {
            return Err(Failure::NotConverged(format!("no snapshot was installed; applied: {applied:?}")));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn last_index(cluster: &Cluster, node: u64) -> u64 {
    cluster.nodes[&node].running().map_or(0, |running| running.raft.status().last_log_index)
}

fn profile() -> Profile {
    Profile {
        segment_bytes: 8 << 10,
        log_cache_bytes: 4 << 10,
        retention: Retention {
            flush_interval_ms: 100,
            snapshot_log_bytes: 16 << 10,
            keep_log_bytes: 8 << 10,
        },
        // Small blocks, so that the snapshot is many messages.
        snapshot_block_bytes: 1 << 10,
        entries_in_flight: 4,
    }
}

async fn write(
    cluster: &Cluster,
    history: &Arc<Mutex<History>>,
    random: &mut SmallRng,
    during: Duration,
) -> Result<(), Failure> {
    let until = Instant::now() + during;
    let clients: Vec<_> = (0..4)
        .map(|_| {
            // Ids of clients are drawn, so that event ids differ between rounds.
            let (id, seed) = (u64::from(random.random::<u32>()), random.random());
            let client = Client::new(id, seed, cluster.clone(), BOUNDARY, Arc::clone(history));
            tokio::spawn(client.run(until, Duration::from_millis(40)))
        })
        .collect();
    for client in clients {
        client.await.map_err(|error| Failure::Panicked(error.to_string()))?;
    }
    Ok(())
}
