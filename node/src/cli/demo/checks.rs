//! What must hold after a failover, and how the demo reports it.

use std::{collections::HashMap, time::Duration};

use serde_json::json;

use super::ledger::Record;
use crate::cli::{
    exit::CliError,
    output::{Form, Output, Table, Tone, grouped},
};

/// Differences between what was acknowledged and what is readable. All zero: nothing was broken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Events read.
    pub readable: u64,
    /// Acknowledged events that are not readable.
    pub lost: u64,
    /// Events that are readable more often than they were acknowledged; never acknowledged ones included.
    pub surplus: u64,
    /// Events that are readable with other data.
    pub changed: u64,
    /// Places where an event is followed by one that was acknowledged before it.
    pub reordered: u64,
    /// Positions that are not larger than the one before.
    pub positions_back: u64,
}

/// Compares the events acknowledged, in the order of the input, with the events read, in the order of positions.
pub fn compare(acknowledged: &[Record], read: &[Record], positions: &[(i64, i64)]) -> Findings {
    let mut expected: HashMap<&str, Vec<usize>> = HashMap::new();
    for (index, record) in acknowledged.iter().enumerate().rev() {
        expected.entry(&record.event_id).or_default().push(index);
    }
    let mut findings = Findings { readable: read.len() as u64, ..Findings::default() };
    let mut before = None;
    for record in read {
        // Of several acknowledged events with one id, the earliest that was not yet read.
        let Some(index) = expected.get_mut(record.event_id.as_str()).and_then(Vec::pop) else {
            findings.surplus += 1;
            continue;
        };
        findings.changed += u64::from(acknowledged[index].data != record.data);
        findings.reordered += u64::from(before.is_some_and(|before| index < before));
        before = Some(index);
    }
    findings.lost = expected.values().map(|left| left.len() as u64).sum();
    findings.positions_back = positions.windows(2).filter(|pair| pair[0] >= pair[1]).count() as u64;
    findings
}

/// What the demo saw.
#[derive(Debug)]
pub struct Report {
    /// Events acknowledged.
    pub acknowledged: u64,
    /// Attempts that had to be repeated, beside those that the client repeated by itself.
    pub retries: u64,
    /// The node that was killed.
    pub killed: u64,
    /// Events acknowledged at that time.
    pub killed_at: u64,
    /// Lines of the input.
    pub total: u64,
    /// The node that led afterwards.
    pub new_leader: u64,
    /// From the kill until the others knew the new leader.
    pub election: Duration,
    /// The longest time without an acknowledged save.
    pub longest_gap: Duration,
    /// From the restart of the killed node until it was no further behind than a healthy one.
    pub caught_up_in: Duration,
    /// What the comparison found.
    pub findings: Findings,
    /// Replicas compared.
    pub replicas: u64,
    /// Whether all digests agree.
    pub replicas_equal: bool,
}

struct Check {
    what: &'static str,
    holds: bool,
    detail: String,
}

impl Report {
    /// Whether every promise was kept.
    pub fn holds(&self) -> bool {
        self.checks().iter().all(|check| check.holds)
    }

    fn checks(&self) -> Vec<Check> {
        let found = &self.findings;
        let check = |what, holds, detail| Check { what, holds, detail };
        vec![
            check(
                "acknowledged = readable",
                found.lost == 0
                    && found.surplus == 0
                    && self.acknowledged == found.readable
                    && found.readable > 0,
                format!(
                    "{} acknowledged, {} readable, {} lost, {} too many",
                    grouped(self.acknowledged),
                    grouped(found.readable),
                    grouped(found.lost),
                    grouped(found.surplus)
                ),
            ),
            check(
                "order of the input kept",
                found.reordered == 0,
                format!("{} out of order", grouped(found.reordered)),
            ),
            check("data unchanged", found.changed == 0, format!("{} changed", grouped(found.changed))),
            check(
                "positions strictly increase",
                found.positions_back == 0,
                format!("{} not larger than the one before", grouped(found.positions_back)),
            ),
            check(
                "replicas equal",
                self.replicas_equal && self.replicas == super::NODES,
                format!("digests of {} replicas compared", self.replicas),
            ),
            check(
                "leader killed in the middle",
                self.killed_at < self.total && self.new_leader != self.killed,
                format!(
                    "node {} at event {}; node {} led after {:.2} s",
                    self.killed,
                    grouped(self.killed_at),
                    self.new_leader,
                    self.election.as_secs_f64()
                ),
            ),
        ]
    }

    /// The summary.
    pub fn print(&self, output: Output) -> Result<(), CliError> {
        let checks = self.checks();
        if output.form() == Form::Json {
            let checks = checks.iter().map(|check| json!({"check": check.what, "holds": check.holds}));
            return output.json(&json!({
                "holds": self.holds(), "checks": checks.collect::<Vec<_>>(),
                "acknowledged": self.acknowledged, "readable": self.findings.readable, "lost": self.findings.lost,
                "surplus": self.findings.surplus, "changed": self.findings.changed,
                "reordered": self.findings.reordered, "positions_back": self.findings.positions_back,
                "killed_node": self.killed, "new_leader": self.new_leader, "retries": self.retries,
                "election_ms": self.election.as_millis() as u64,
                "without_leader_ms": self.longest_gap.as_millis() as u64,
                "catch_up_ms": self.caught_up_in.as_millis() as u64,
            }));
        }
        let mut table = Table::new(["check", "result", "detail"]);
        for check in &checks {
            let result = if check.holds { "ok" } else { "BROKEN" };
            table.row([check.what.to_owned(), result.to_owned(), check.detail.clone()]);
        }
        table.print(&output)?;
        output.line(format!(
            "time without a leader, as a client saw it: {:.2} s; the killed node had caught up {:.2} s after its restart",
            self.longest_gap.as_secs_f64(),
            self.caught_up_in.as_secs_f64()
        ))?;
        let (tone, text) = if self.holds() {
            (Tone::Good, "every promise was kept")
        } else {
            (Tone::Bad, "a promise was broken")
        };
        output.line(output.paint(tone, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(ids: &[&str]) -> Vec<Record> {
        ids.iter().map(|id| Record::new(id, id.as_bytes())).collect()
    }

    fn found(read: &[&str]) -> Findings {
        let positions: Vec<(i64, i64)> = (0..read.len() as i64).map(|index| (1, index)).collect();
        compare(&records(&["a", "b", "c", "c"]), &records(read), &positions)
    }

    #[test]
    fn the_same_events_in_the_same_order_break_nothing() {
        assert_eq!(found(&["a", "b", "c", "c"]), Findings { readable: 4, ..Findings::default() });
    }

    #[test]
    fn each_broken_promise_is_told_apart() {
        assert_eq!(found(&["a", "c", "c"]).lost, 1);
        assert_eq!(found(&["a", "b", "c", "c", "c"]).surplus, 1);
        assert_eq!(found(&["a", "b", "x", "c", "c"]).surplus, 1);
        assert_eq!(found(&["b", "a", "c", "c"]).reordered, 1);
        let mut changed = records(&["a", "b", "c", "c"]);
        changed[1].data = [0; 32];
        assert_eq!(compare(&records(&["a", "b", "c", "c"]), &changed, &[]).changed, 1);
        assert_eq!(compare(&[], &[], &[(1, 1), (1, 1), (0, 5), (2, 0)]).positions_back, 2);
    }

    fn kept() -> Report {
        Report {
            acknowledged: 4,
            retries: 0,
            killed: 1,
            killed_at: 2,
            total: 4,
            new_leader: 2,
            election: Duration::ZERO,
            longest_gap: Duration::ZERO,
            caught_up_in: Duration::ZERO,
            findings: found(&["a", "b", "c", "c"]),
            replicas: 3,
            replicas_equal: true,
        }
    }

    #[test]
    fn one_broken_promise_breaks_the_demo() {
        assert!(kept().holds());
        let broken = |change: fn(&mut Report)| {
            let mut report = kept();
            change(&mut report);
            report
        };
        for report in [
            broken(|report| report.findings.lost = 1),
            broken(|report| report.findings.surplus = 1),
            broken(|report| report.findings.changed = 1),
            broken(|report| report.findings.reordered = 1),
            broken(|report| report.findings.positions_back = 1),
            broken(|report| report.acknowledged = 5),
            broken(|report| report.replicas_equal = false),
            broken(|report| report.replicas = 2),
            broken(|report| report.killed_at = 4),
            broken(|report| report.findings.readable = 0),
        ] {
            assert!(!report.holds(), "{report:?}");
        }
    }
}
