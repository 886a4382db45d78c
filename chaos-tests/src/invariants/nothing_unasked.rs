//! Every event that is there was appended by somebody.

use std::collections::BTreeSet;

use super::Verdict;
use crate::history::History;

/// Looks for events that nobody appended.
pub fn check(history: &History) -> Verdict {
    let asked: BTreeSet<&str> =
        history.appends.iter().flat_map(|append| append.event_ids.iter().map(String::as_str)).collect();
    match history.final_events().iter().find(|event| !asked.contains(event.event_id.as_str())) {
        Some(event) => Err(format!("nobody appended {event:?}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::fixture, *};

    #[test]
    fn an_event_out_of_nowhere_is_found() {
        let mut history = fixture::good();
        history.finals[0].events.push(fixture::event("ghost", 9));
        assert!(check(&history).unwrap_err().contains("ghost"));
    }
}
