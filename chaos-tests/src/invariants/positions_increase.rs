//! Positions strictly increase in everything that is read, and no event id is given twice.

use std::collections::BTreeMap;

use super::Verdict;
use crate::history::{History, Outcome, SeenEvent};

/// Checks the order of every read and of the final logs, and the uniqueness of ids over all of them.
pub fn check(history: &History) -> Verdict {
    let mut owners: BTreeMap<i64, &str> = BTreeMap::new();
    let reads = history.reads.iter().map(|read| &read.events);
    let finals = history.finals.iter().map(|state| &state.events);
    for events in reads.chain(finals) {
        increase(events)?;
        for event in events {
            own(&mut owners, event.position.prepare_position, &event.event_id)?;
        }
    }
    for append in &history.appends {
        if let (Outcome::Acknowledged { position }, Some(last)) = (&append.outcome, append.event_ids.last()) {
            own(&mut owners, position.prepare_position, last)?;
        }
    }
    Ok(())
}

fn increase(events: &[SeenEvent]) -> Verdict {
    match events.windows(2).find(|pair| pair[0].position >= pair[1].position) {
        Some(pair) => Err(format!("{:?} comes before {:?}", pair[0], pair[1])),
        None => Ok(()),
    }
}

fn own<'a>(owners: &mut BTreeMap<i64, &'a str>, id: i64, event_id: &'a str) -> Verdict {
    let owner = *owners.entry(id).or_insert(event_id);
    if owner == event_id { Ok(()) } else { Err(format!("id {id} was given to {owner} and to {event_id}")) }
}

#[cfg(test)]
mod tests {
    use super::{super::fixture, *};

    #[test]
    fn a_position_that_goes_back_is_found() {
        let mut history = fixture::good();
        history.finals[1].events.swap(0, 3);
        assert!(check(&history).is_err());
    }

    #[test]
    fn an_id_that_was_given_twice_is_found_even_if_one_of_its_events_is_gone() {
        let mut history = fixture::good();
        history.reads[0].events[2].event_id = "gone".to_owned();
        assert!(check(&history).unwrap_err().contains("was given to"));
    }

    #[test]
    fn an_id_that_was_acknowledged_for_another_event_is_found() {
        let mut history = fixture::good();
        history.appends[0].event_ids = vec!["other".to_owned()];
        assert!(check(&history).unwrap_err().contains("id 1 "));
    }
}
