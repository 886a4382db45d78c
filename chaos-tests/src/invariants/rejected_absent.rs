//! Nothing of an append that was refused is there.

use std::collections::BTreeSet;

use super::{Verdict, places};
use crate::history::{History, Outcome};

/// Looks for events of refused appends.
pub fn check(history: &History) -> Verdict {
    let places = places(history.final_events());
    // A repeat under a key of something that was accepted before names the same events.
    let accepted: BTreeSet<&str> = history
        .appends
        .iter()
        .filter(|append| !matches!(append.outcome, Outcome::Rejected { .. }))
        .flat_map(|append| append.event_ids.iter().map(String::as_str))
        .collect();
    for append in &history.appends {
        let Outcome::Rejected { why } = &append.outcome else { continue };
        let found = append
            .event_ids
            .iter()
            .find(|id| places.contains_key(id.as_str()) && !accepted.contains(id.as_str()));
        if let Some(event_id) = found {
            return Err(format!("event {event_id} is there, although it was refused: {why}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::fixture, *};

    #[test]
    fn an_event_that_was_refused_and_written_is_found() {
        let mut history = fixture::good();
        history.finals[0].events.push(fixture::event("x", 8));
        assert!(check(&history).unwrap_err().contains("event x is there"));
    }
}
