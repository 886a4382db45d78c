//! If two logs hold an entry with the same index and term, they are equal up to there (Raft, section 5.3).

use super::Verdict;
use crate::history::{History, LogView};

/// Compares the logs of each moment in pairs, and each log with itself for gaps.
pub fn check(history: &History) -> Verdict {
    for logs in &history.logs {
        for (number, log) in logs.iter().enumerate() {
            if let Some(pair) = log.entries.windows(2).find(|pair| pair[0].index + 1 != pair[1].index) {
                return Err(format!("the log of node {} has a gap after {}", log.node, pair[0].index));
            }
            logs[number + 1..].iter().try_for_each(|other| matches(log, other))?;
        }
    }
    Ok(())
}

fn matches(one: &LogView, other: &LogView) -> Verdict {
    let (Some(first_one), Some(first_other)) = (one.entries.first(), other.entries.first()) else {
        return Ok(());
    };
    let from = first_one.index.max(first_other.index);
    let one_part = one.entries.iter().skip_while(|entry| entry.index < from);
    let other_part = other.entries.iter().skip_while(|entry| entry.index < from);
    let common: Vec<_> = one_part.zip(other_part).collect();
    // Equality up to the last agreement: a difference before it is a violation, one behind it is not.
    let agreed = common.iter().rposition(|(one, other)| one.term == other.term);
    let differs = common.iter().take(agreed.map_or(0, |last| last + 1)).find(|(one, other)| one != other);
    match differs {
        Some((left, right)) => Err(format!(
            "nodes {} and {} agree on a later entry and differ: {left:?}, {right:?}",
            one.node, other.node
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::fixture, *};

    #[test]
    fn a_difference_before_an_agreement_is_found() {
        let mut history = fixture::good();
        history.logs[0][1].entries[1].term = 2;
        assert!(check(&history).is_err());
    }

    #[test]
    fn one_entry_with_two_payloads_is_found() {
        let mut history = fixture::good();
        history.logs[0][0].entries[2] = fixture::logged(3, 2, 99);
        assert!(check(&history).is_err());
    }

    #[test]
    fn a_gap_is_found() {
        let mut history = fixture::good();
        history.logs[0][0].entries.remove(1);
        assert!(check(&history).unwrap_err().contains("gap after 1"));
    }

    #[test]
    fn logs_may_end_differently_and_begin_at_different_entries() {
        let mut history = fixture::good();
        history.logs[0][0].entries[2] = fixture::logged(3, 3, 4);
        history.logs[0][1].entries.remove(0);
        assert_eq!(check(&history), Ok(()));
    }
}
