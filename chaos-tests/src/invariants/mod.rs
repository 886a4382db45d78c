//! What must hold whatever breaks: one file per invariant, each a pure function of the history.

use std::{collections::BTreeMap, fmt};

use crate::history::{History, SeenEvent};

pub mod acknowledged_once;
pub mod applied_never_changes;
pub mod at_least_reads;
pub mod election_safety;
pub mod idempotent_repeats;
pub mod linearizable_reads;
pub mod log_matching;
pub mod nothing_unasked;
pub mod positions_increase;
pub mod reads_are_prefixes;
pub mod real_time_order;
pub mod rejected_absent;
pub mod replicas_equal;
pub mod unknown_at_most_once;

#[cfg(test)]
mod fixture;

/// An invariant that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Its name: that of its file.
    pub invariant: &'static str,
    /// The evidence.
    pub evidence: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.evidence)
    }
}

/// The evidence against an invariant, if there is any.
pub type Verdict = Result<(), String>;

/// Judges a history.
pub type Check = fn(&History) -> Verdict;

/// All invariants.
pub const ALL: &[(&str, Check)] = &[
    ("election_safety", election_safety::check),
    ("log_matching", log_matching::check),
    ("applied_never_changes", applied_never_changes::check),
    ("replicas_equal", replicas_equal::check),
    ("acknowledged_once", acknowledged_once::check),
    ("rejected_absent", rejected_absent::check),
    ("unknown_at_most_once", unknown_at_most_once::check),
    ("nothing_unasked", nothing_unasked::check),
    ("idempotent_repeats", idempotent_repeats::check),
    ("positions_increase", positions_increase::check),
    ("real_time_order", real_time_order::check),
    ("reads_are_prefixes", reads_are_prefixes::check),
    ("linearizable_reads", linearizable_reads::check),
    ("at_least_reads", at_least_reads::check),
];

/// Every violation, one per invariant.
pub fn violations(history: &History) -> Vec<Violation> {
    let violated = |(invariant, check): &(&'static str, Check)| {
        check(history).err().map(|evidence| Violation { invariant, evidence })
    };
    ALL.iter().filter_map(violated).collect()
}

/// The places of every event id in the final log.
fn places(events: &[SeenEvent]) -> BTreeMap<&str, Vec<usize>> {
    let mut places: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (place, event) in events.iter().enumerate() {
        places.entry(&event.event_id).or_default().push(place);
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_good_history_violates_nothing() {
        assert_eq!(violations(&fixture::good()), vec![]);
    }

    #[test]
    fn an_invariant_is_named_like_its_file() {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/invariants");
        for (name, _) in ALL {
            assert!(directory.join(format!("{name}.rs")).is_file(), "{name}");
        }
        let files = std::fs::read_dir(directory).unwrap().count();
        assert_eq!(files, ALL.len() + 2, "besides the invariants there are mod.rs and fixture.rs");
    }
}
