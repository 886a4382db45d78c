//! In the end all replicas hold the same events and have the same digest.

use super::Verdict;
use crate::history::History;

/// Compares every replica with the first one.
pub fn check(history: &History) -> Verdict {
    let Some((first, others)) = history.finals.split_first() else {
        return Err("nothing was read from any replica in the end".to_owned());
    };
    for other in others {
        let pairs = first.events.iter().zip(&other.events);
        if let Some((left, right)) = pairs.into_iter().find(|(left, right)| left != right) {
            return Err(format!("node {} has {left:?}, node {} has {right:?}", first.node, other.node));
        }
        if first.events.len() != other.events.len() {
            let (left, right) = (first.events.len(), other.events.len());
            return Err(format!("node {} has {left} events, node {} has {right}", first.node, other.node));
        }
        if first.digest != other.digest {
            return Err(format!("the digests of nodes {} and {} differ", first.node, other.node));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::fixture, *};

    #[test]
    fn a_replica_with_fewer_events_is_found() {
        let mut history = fixture::good();
        history.finals[1].events.pop();
        assert!(check(&history).unwrap_err().contains("has 4"));
    }

    #[test]
    fn a_replica_with_another_digest_is_found() {
        let mut history = fixture::good();
        history.finals[1].digest[0] ^= 1;
        assert!(check(&history).unwrap_err().contains("digests"));
    }

    #[test]
    fn a_history_that_nobody_read_back_is_no_proof() {
        let mut history = fixture::good();
        history.finals.clear();
        assert!(check(&history).is_err());
    }
}
