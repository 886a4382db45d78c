//! Every acknowledged append is there, once, with the position that it was given.

use std::collections::BTreeMap;

use super::{Verdict, places};
use crate::history::{History, Outcome};

/// Looks for losses and doubles.
pub fn check(history: &History) -> Verdict {
    let events = history.final_events();
    let places: BTreeMap<&str, Vec<usize>> = places(events);
    for append in &history.appends {
        let Outcome::Acknowledged { position } = append.outcome else { continue };
        for event_id in &append.event_ids {
            let count = places.get(event_id.as_str()).map_or(0, Vec::len);
            if count != 1 {
                return Err(format!("acknowledged event {event_id} is there {count} times: {append:?}"));
            }
        }
        let last = append.event_ids.last().ok_or_else(|| format!("an append of nothing: {append:?}"))?;
        let found = events[places[last.as_str()][0]].position;
        if found != position {
            return Err(format!("event {last} was acknowledged at {position} and is at {found}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::fixture, *};

    #[test]
    fn a_lost_event_is_found() {
        let mut history = fixture::good();
        history.finals[0].events.remove(1);
        assert!(check(&history).unwrap_err().contains("b1 is there 0 times"));
    }

    #[test]
    fn a_doubled_event_is_found() {
        let mut history = fixture::good();
        history.finals[0].events.push(fixture::event("a", 9));
        assert!(check(&history).unwrap_err().contains("a is there 2 times"));
    }

    #[test]
    fn an_event_at_another_position_than_acknowledged_is_found() {
        let mut history = fixture::good();
        history.appends[0].outcome = fixture::acknowledged(2);
        assert!(check(&history).is_err());
    }
}
