//! What a kill loop found, for people and for programs.

use std::time::Duration;

use serde::Serialize;

/// What a killed node was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Role {
    /// It led.
    Leader,
    /// It followed.
    Follower,
}

/// One kill.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Round {
    pub(super) round: u64,
    pub(super) node: u64,
    pub(super) role: Role,
    /// From the start of its process until it answered a linearizable read; absent: it never did.
    pub(super) serves_after_ms: Option<u64>,
    /// After the kill of a leader: from the kill until a client of another node had saved an event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) writes_after_ms: Option<u64>,
}

/// Largest and median.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Times {
    pub(super) count: usize,
    pub(super) median_ms: u64,
    pub(super) max_ms: u64,
}

impl Times {
    pub(super) fn of(times: impl Iterator<Item = u64>) -> Self {
        let mut sorted: Vec<u64> = times.collect();
        sorted.sort_unstable();
        let count = sorted.len();
        let median_ms = sorted.get(count.saturating_sub(1) / 2).copied().unwrap_or(0);
        Self { count, median_ms, max_ms: sorted.last().copied().unwrap_or(0) }
    }
}

/// The whole run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    pub(super) passed: bool,
    pub(super) engine: String,
    pub(super) nodes: u64,
    pub(super) seed: u64,
    pub(super) rounds: Vec<Round>,
    pub(super) serves_after: Times,
    pub(super) writes_after: Times,
    pub(super) acknowledged: usize,
    pub(super) rejected: usize,
    pub(super) unknown: usize,
    /// Times that everything was read back from every node.
    pub(super) verifications: usize,
    /// What went wrong; empty if nothing did.
    pub(super) problems: Vec<String>,
}

impl Report {
    /// The last line: what came out, in one sentence.
    pub(super) fn summary(&self) -> String {
        let verdict = if self.passed { "PASS" } else { "FAIL" };
        format!(
            "{verdict}: {} kills on {} nodes with {}; a node serves again after {} ms (median {}), writes go on after \
             {} ms (median {}); {} saves acknowledged, {} verifications, {} problems",
            self.rounds.len(),
            self.nodes,
            self.engine,
            self.serves_after.max_ms,
            self.serves_after.median_ms,
            self.writes_after.max_ms,
            self.writes_after.median_ms,
            self.acknowledged,
            self.verifications,
            self.problems.len()
        )
    }

    /// One line per round, for people.
    pub(super) fn table(&self) -> String {
        let mut table = format!(
            "{:>5} {:>5} {:<9} {:>14} {:>14}\n",
            "round", "node", "role", "serves after", "writes after"
        );
        let shown = |time: Option<u64>| time.map_or_else(|| "-".to_owned(), |time| format!("{time} ms"));
        for round in &self.rounds {
            let role = match round.role {
                Role::Leader => "leader",
                Role::Follower => "follower",
            };
            let (serves, writes) = (shown(round.serves_after_ms), shown(round.writes_after_ms));
            table += &format!("{:>5} {:>5} {role:<9} {serves:>14} {writes:>14}\n", round.round, round.node);
        }
        table
    }
}

/// Whole milliseconds.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_count_is_the_lower_one_and_of_nothing_zero() {
        assert_eq!(Times::of([4, 1, 9, 2].into_iter()), Times { count: 4, median_ms: 2, max_ms: 9 });
        assert_eq!(Times::of([4, 1, 9].into_iter()), Times { count: 3, median_ms: 4, max_ms: 9 });
        assert_eq!(Times::of(std::iter::empty()), Times::default());
    }
}
