//! Repeats under one idempotency key return one position; another request under a used key is refused.

use std::collections::BTreeMap;

use tidemark_storage::Position;

use super::Verdict;
use crate::history::{History, Outcome};

/// Compares the acknowledgements of each key.
pub fn check(history: &History) -> Verdict {
    let mut known: BTreeMap<&str, (Position, &[String])> = BTreeMap::new();
    for append in &history.appends {
        let (Some(key), Outcome::Acknowledged { position }) = (&append.idempotency_key, &append.outcome)
        else {
            continue;
        };
        let (first, event_ids) = *known.entry(key).or_insert((*position, &append.event_ids));
        if event_ids != append.event_ids {
            return Err(format!("key {key} was acknowledged for two requests: {append:?}"));
        }
        if first != *position {
            return Err(format!("key {key} was acknowledged at {first} and at {position}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::fixture, *};

    #[test]
    fn a_repeat_that_was_written_again_is_found() {
        let mut history = fixture::good();
        history.appends[4].outcome = fixture::acknowledged(9);
        assert!(check(&history).unwrap_err().contains("key k"));
    }

    #[test]
    fn another_request_under_a_used_key_is_found() {
        let mut history = fixture::good();
        history.appends[4].event_ids = vec!["other".to_owned()];
        assert!(check(&history).unwrap_err().contains("two requests"));
    }
}
