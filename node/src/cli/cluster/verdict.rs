//! The state of a cluster in one sentence: who is behind, and why.

use tidemark_proto::v1::{GetClusterInfoResponse, MemberInfo, Role};

use crate::cli::output::grouped;

/// Entries that a healthy follower may be behind: what is on its way under full load.
pub const LAG_ENTRIES: u64 = 64;

/// A disk this much slower than the leader's is worth naming as the reason.
const SLOW_DISK_FACTOR: u64 = 3;

/// Below this a slow disk is no reason for anything.
const SLOW_DISK_US: u64 = 5_000;

/// How the cluster fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// All members are up to date.
    Good,
    /// It takes writes, but a member is missing or behind.
    Degraded,
    /// It takes no writes.
    Down,
}

impl Health {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Degraded => "degraded",
            Self::Down => "down",
        }
    }
}

/// The sentence and what it amounts to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// How the cluster fares.
    pub health: Health,
    /// In words.
    pub text: String,
}

/// Judges what one node knows of all members.
pub fn verdict(info: &GetClusterInfoResponse) -> Verdict {
    let voters = info.members.iter().filter(|member| member.voter).count();
    let reachable = info.members.iter().filter(|member| member.voter && member.reachable).count();
    let quorum = voters / 2 + 1;
    let leader = info.members.iter().find(|member| member.node_id == info.leader_id);
    let Some(leader) = leader else {
        return Verdict { health: Health::Down, text: no_leader(info, reachable, voters, quorum) };
    };
    let problems: Vec<String> = info.members.iter().filter_map(|member| problem(member, leader)).collect();
    if problems.is_empty() {
        let text = match info.members.len() {
            1 => format!("the only node is up to date and leads in term {}", info.term),
            count => format!(
                "all {count} nodes are up to date; node {} leads in term {}",
                leader.node_id, info.term
            ),
        };
        return Verdict { health: Health::Good, text };
    }
    let mut text = problems.join("; ");
    if reachable < quorum {
        text.push_str(&format!(
            "; {reachable} of {voters} voters are reachable and {quorum} are needed: no writes"
        ));
        return Verdict { health: Health::Down, text };
    }
    if reachable == quorum && voters > 1 {
        text.push_str("; writes go on, but no further node may fail");
    }
    Verdict { health: Health::Degraded, text }
}

fn no_leader(info: &GetClusterInfoResponse, reachable: usize, voters: usize, quorum: usize) -> String {
    let missing: Vec<String> =
        info.members.iter().filter(|member| !member.reachable).map(unreachable).collect();
    let state = if reachable < quorum {
        format!("no leader: {reachable} of {voters} voters are reachable and {quorum} are needed")
    } else {
        format!("no leader: an election is under way in term {}", info.term)
    };
    if missing.is_empty() { state } else { format!("{state}; {}", missing.join("; ")) }
}

fn unreachable(member: &MemberInfo) -> String {
    if member.problem.is_empty() {
        format!("node {} is unreachable", member.node_id)
    } else {
        format!("node {} is unreachable ({})", member.node_id, member.problem)
    }
}

fn problem(member: &MemberInfo, leader: &MemberInfo) -> Option<String> {
    if !member.reachable {
        return Some(unreachable(member));
    }
    let id = member.node_id;
    if leader.first_log_index > member.last_log_index + 1 {
        return Some(format!("node {id} is behind the leader's log and needs a snapshot"));
    }
    if member.lag_entries > LAG_ENTRIES {
        let lag = grouped(member.lag_entries);
        return Some(format!("node {id} is {lag} entries behind because {}", log_lag_reason(member, leader)));
    }
    let unapplied = member.committed_index.saturating_sub(member.applied_index);
    if unapplied > LAG_ENTRIES {
        let unapplied = grouped(unapplied);
        return Some(format!(
            "node {id} has its log but applies slowly: {unapplied} entries are not applied"
        ));
    }
    match member.role() {
        Role::Candidate => Some(format!("node {id} stands for election: it does not hear the leader")),
        Role::Leader | Role::Follower | Role::Learner | Role::Unspecified => None,
    }
}

fn log_lag_reason(member: &MemberInfo, leader: &MemberInfo) -> String {
    let slow = member.fsync_p50_us >= SLOW_DISK_US
        && member.fsync_p50_us >= SLOW_DISK_FACTOR.saturating_mul(leader.fsync_p50_us);
    if slow {
        let ms = |us: u64| format!("{:.1} ms", us as f64 / 1000.0);
        format!(
            "its disk is slow: a sync takes {} against the leader's {}",
            ms(member.fsync_p50_us),
            ms(leader.fsync_p50_us)
        )
    } else if member.uptime_ms < leader.uptime_ms / 2 {
        "it was restarted and is catching up".to_owned()
    } else {
        "entries reach it slowly: look at the network between them".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(node_id: u64) -> MemberInfo {
        MemberInfo {
            node_id,
            voter: true,
            reachable: true,
            role: if node_id == 1 { Role::Leader } else { Role::Follower }.into(),
            first_log_index: 1,
            last_log_index: 5_000,
            committed_index: 5_000,
            applied_index: 5_000,
            fsync_p50_us: 1_000,
            uptime_ms: 100_000,
            ..MemberInfo::default()
        }
    }

    fn three(change: impl FnOnce(&mut GetClusterInfoResponse)) -> Verdict {
        let mut info = GetClusterInfoResponse {
            node_id: 1,
            leader_id: 1,
            term: 7,
            members: (1..=3).map(member).collect(),
            ..GetClusterInfoResponse::default()
        };
        change(&mut info);
        verdict(&info)
    }

    #[track_caller]
    fn says(verdict: &Verdict, health: Health, words: &str) {
        assert_eq!(verdict.health, health, "{}", verdict.text);
        assert!(verdict.text.contains(words), "{:?} lacks {words:?}", verdict.text);
    }

    #[test]
    fn a_healthy_cluster_names_its_leader() {
        says(&three(|_| ()), Health::Good, "all 3 nodes are up to date; node 1 leads in term 7");
        says(&three(|info| info.members.truncate(1)), Health::Good, "the only node is up to date");
    }

    #[test]
    fn an_unreachable_node_is_named_with_its_problem() {
        let one_down = three(|info| {
            info.members[2].reachable = false;
            info.members[2].problem = "connection refused".to_owned();
        });
        says(
            &one_down,
            Health::Degraded,
            "node 3 is unreachable (connection refused); writes go on, but no further",
        );
        let two_down = three(|info| info.members[1..].iter_mut().for_each(|member| member.reachable = false));
        says(&two_down, Health::Down, "1 of 3 voters are reachable and 2 are needed");
    }

    #[test]
    fn the_reason_for_a_lag_is_told() {
        let behind = |change: fn(&mut MemberInfo)| {
            three(|info| {
                info.members[1].lag_entries = 1_234;
                info.members[1].last_log_index -= 1_234;
                change(&mut info.members[1]);
            })
        };
        let slow_disk = behind(|member| member.fsync_p50_us = 12_000);
        says(
            &slow_disk,
            Health::Degraded,
            "node 2 is 1,234 entries behind because its disk is slow: a sync takes 12.0 ms",
        );
        says(
            &behind(|member| member.uptime_ms = 1_000),
            Health::Degraded,
            "it was restarted and is catching up",
        );
        says(&behind(|_| ()), Health::Degraded, "look at the network");
    }

    #[test]
    fn slow_apply_and_snapshots_are_told_from_a_lagging_log() {
        let slow = three(|info| info.members[2].applied_index = 1_000);
        says(&slow, Health::Degraded, "node 3 has its log but applies slowly: 4,000 entries");
        let snapshot = three(|info| {
            info.members[0].first_log_index = 4_000;
            info.members[2].last_log_index = 100;
        });
        says(&snapshot, Health::Degraded, "node 3 is behind the leader's log and needs a snapshot");
    }

    #[test]
    fn without_a_leader_it_says_whether_one_can_be_elected() {
        says(&three(|info| info.leader_id = 0), Health::Down, "an election is under way in term 7");
        let alone = three(|info| {
            info.leader_id = 0;
            info.members[1..].iter_mut().for_each(|member| member.reachable = false);
        });
        says(&alone, Health::Down, "1 of 3 voters are reachable and 2 are needed; node 2 is unreachable");
    }

    #[test]
    fn entries_on_their_way_are_no_problem() {
        says(&three(|info| info.members[1].lag_entries = LAG_ENTRIES), Health::Good, "up to date");
    }
}
