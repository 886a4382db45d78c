//! An append whose outcome is unknown is there once, whole, or not at all.

use super::{Verdict, places};
use crate::history::{History, Outcome};

/// Looks for doubled and for torn appends.
pub fn check(history: &History) -> Verdict {
    let events = history.final_events();
    let places = places(events);
    for append in history.appends.iter().filter(|append| append.outcome == Outcome::Unknown) {
        let found: Vec<&Vec<usize>> =
            append.event_ids.iter().filter_map(|event_id| places.get(event_id.as_str())).collect();
        if let Some(doubled) = found.iter().find(|places| places.len() > 1) {
            return Err(format!("an event is there {} times: {append:?}", doubled.len()));
        }
        if !found.is_empty() && found.len() != append.event_ids.len() {
            return Err(format!(
                "{} of {} events are there: {append:?}",
                found.len(),
                append.event_ids.len()
            ));
        }
        if !found.windows(2).all(|pair| pair[0] < pair[1]) {
            return Err(format!("the events of a save are not in its order: {append:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::fixture, *};

    #[test]
    fn an_unknown_append_may_be_absent() {
        let mut history = fixture::good();
        history.finals[0].events.pop();
        assert_eq!(check(&history), Ok(()));
    }

    #[test]
    fn an_unknown_append_that_was_written_twice_is_found() {
        let mut history = fixture::good();
        history.finals[0].events.push(fixture::event("d", 9));
        assert!(check(&history).unwrap_err().contains("2 times"));
    }

    #[test]
    fn half_an_append_is_found() {
        let mut history = fixture::good();
        history.appends[1].outcome = Outcome::Unknown;
        history.finals[0].events.remove(2);
        assert!(check(&history).unwrap_err().contains("1 of 2"));
    }

    #[test]
    fn a_save_whose_events_changed_places_is_found() {
        let mut history = fixture::good();
        history.appends[1].outcome = Outcome::Unknown;
        history.finals[0].events.swap(1, 2);
        assert!(check(&history).is_err());
    }
}
