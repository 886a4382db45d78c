//! At most one leader per term (Raft, section 5.2).

use std::collections::BTreeMap;

use super::Verdict;
use crate::history::History;

/// Looks for two leaders of one term.
pub fn check(history: &History) -> Verdict {
    let mut leaders = BTreeMap::new();
    for election in &history.elections {
        let leader = *leaders.entry(election.term).or_insert(election.node);
        if leader != election.node {
            return Err(format!("nodes {leader} and {} both lead in term {}", election.node, election.term));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::fixture, *};
    use crate::history::Election;

    #[test]
    fn two_leaders_of_one_term_are_found() {
        let mut history = fixture::good();
        history.elections.push(Election { term: 2, node: 2 });
        assert!(check(&history).unwrap_err().contains("term 2"));
    }

    #[test]
    fn one_leader_may_be_seen_often() {
        let mut history = fixture::good();
        history.elections.push(Election { term: 2, node: 3 });
        assert_eq!(check(&history), Ok(()));
    }
}
