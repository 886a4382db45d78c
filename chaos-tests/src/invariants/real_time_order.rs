//! If one append was answered before another one began, its position is smaller.

use super::Verdict;
use crate::history::{Append, History, Outcome};
use tidemark_storage::Position;

/// Compares every append with the largest position that had been acknowledged when it began.
pub fn check(history: &History) -> Verdict {
    let acknowledged = |append: &Append| match append.outcome {
        Outcome::Acknowledged { position } => Some(position),
        Outcome::Rejected { .. } | Outcome::Unknown => None,
    };
    let mut ended: Vec<(&Append, Position)> =
        history.appends.iter().filter_map(|append| Some((append, acknowledged(append)?))).collect();
    let mut began = ended.clone();
    ended.sort_by_key(|(append, _)| append.ended);
    began.sort_by_key(|(append, _)| append.began);
    let mut largest: Option<(&Append, Position)> = None;
    let mut ended = ended.into_iter().peekable();
    let mut seen_keys = std::collections::BTreeSet::new();
    for (append, position) in began {
        while let Some(earlier) = ended.next_if(|(earlier, _)| earlier.ended < append.began) {
            seen_keys.extend(earlier.0.idempotency_key.as_deref());
            if largest.is_none_or(|(_, largest)| largest < earlier.1) {
                largest = Some(earlier);
            }
        }
        // A repeat under a key that was answered before gets the earlier position: that is its purpose.
        let is_repeat = append.idempotency_key.as_deref().is_some_and(|key| seen_keys.contains(key));
        if let Some((earlier, largest)) = largest
            && largest >= position
            && !is_repeat
        {
            return Err(format!("{append:?} began after {earlier:?} had been answered"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::fixture, *};

    #[test]
    fn a_later_append_with_a_smaller_position_is_found() {
        let mut history = fixture::good();
        history.appends[0].outcome = fixture::acknowledged(4);
        assert!(check(&history).is_err());
    }

    #[test]
    fn concurrent_appends_may_have_either_order() {
        let mut history = fixture::good();
        history.appends[0].outcome = fixture::acknowledged(4);
        history.appends[0].ended = history.appends[1].began;
        history.appends[3].outcome = fixture::acknowledged(7);
        history.appends[4].outcome = fixture::acknowledged(7);
        assert_eq!(check(&history), Ok(()));
    }
}
