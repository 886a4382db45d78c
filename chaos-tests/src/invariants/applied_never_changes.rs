//! No two nodes apply different entries at one index, ever: what is committed stays (Raft, section 5.4.3).

use std::collections::BTreeMap;

use super::Verdict;
use crate::history::History;

/// Compares the terms under which each index was applied, over all nodes and all their lives.
pub fn check(history: &History) -> Verdict {
    let mut applied = BTreeMap::new();
    for entry in &history.applied {
        let (term, node) = *applied.entry(entry.index).or_insert((entry.term, entry.node));
        if term != entry.term {
            return Err(format!(
                "node {node} applied entry {} of term {term} and node {} the one of term {}",
                entry.index, entry.node, entry.term
            ));
        }
    }
    // Terms grow along the log, so a committed entry of an old term behind one of a newer term was undone.
    let terms: Vec<_> = applied.into_iter().collect();
    match terms.windows(2).find(|pair| pair[0].1.0 > pair[1].1.0) {
        Some(pair) => Err(format!("entries {} and {} were applied with falling terms", pair[0].0, pair[1].0)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::fixture, *};
    use crate::history::AppliedEntry;

    #[test]
    fn two_entries_at_one_index_are_found() {
        let mut history = fixture::good();
        history.applied.push(AppliedEntry { node: 3, index: 2, term: 2 });
        assert!(check(&history).unwrap_err().contains("entry 2"));
    }

    #[test]
    fn terms_that_fall_along_the_log_are_found() {
        let mut history = fixture::good();
        history.applied.push(AppliedEntry { node: 3, index: 4, term: 1 });
        assert!(check(&history).unwrap_err().contains("falling terms"));
    }
}
