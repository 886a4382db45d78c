//! A linearizable read sees everything that was acknowledged before it began.

use std::collections::BTreeSet;

use super::Verdict;
use crate::history::{History, Level, Outcome};

/// Compares every linearizable read with the acknowledgements before it.
pub fn check(history: &History) -> Verdict {
    let mut acknowledged: Vec<_> = history
        .appends
        .iter()
        .filter(|append| matches!(append.outcome, Outcome::Acknowledged { .. }))
        .collect();
    acknowledged.sort_by_key(|append| append.ended);
    for read in history.reads.iter().filter(|read| read.level == Level::Linearizable) {
        let seen: BTreeSet<&str> = read.events.iter().map(|event| event.event_id.as_str()).collect();
        let before = acknowledged.iter().take_while(|append| append.ended < read.began);
        for append in before {
            if let Some(missed) = append.event_ids.iter().find(|id| !seen.contains(id.as_str())) {
                return Err(format!(
                    "a linearizable read from node {} at {:?} missed {missed}, acknowledged at {:?}",
                    read.node, read.began, append.ended
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::fixture, *};

    #[test]
    fn a_stale_linearizable_read_is_found() {
        let mut history = fixture::good();
        history.reads[0].events.truncate(2);
        assert!(check(&history).unwrap_err().contains("missed b2"));
    }

    #[test]
    fn a_local_read_may_be_stale() {
        let mut history = fixture::good();
        history.reads[0].level = Level::Local;
        history.reads[0].events.clear();
        assert_eq!(check(&history), Ok(()));
    }
}
