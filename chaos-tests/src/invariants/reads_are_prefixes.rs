//! Every read from the oldest event on is a prefix of the final log, and linearizable reads never go back.

use std::time::Duration;

use super::Verdict;
use crate::history::{History, Level};

/// Compares every read with the final log, and linearizable reads with each other.
pub fn check(history: &History) -> Verdict {
    let log = history.final_events();
    for read in &history.reads {
        let differs = read.events.iter().zip(log).find(|(seen, there)| seen != there);
        if let Some((seen, there)) = differs {
            return Err(format!("a read saw {seen:?} where {there:?} is in the end"));
        }
        if read.events.len() > log.len() {
            let lost = &read.events[log.len()];
            return Err(format!("a read saw {lost:?}, which is not there in the end"));
        }
    }
    never_back(history)
}

fn never_back(history: &History) -> Verdict {
    let linearizable = || history.reads.iter().filter(|read| read.level == Level::Linearizable);
    let mut ended: Vec<(Duration, usize)> =
        linearizable().map(|read| (read.ended, read.events.len())).collect();
    ended.sort_unstable();
    let mut began: Vec<_> = linearizable().collect();
    began.sort_by_key(|read| read.began);
    let (mut ended, mut longest) = (ended.into_iter().peekable(), 0);
    for read in began {
        while let Some((_, length)) = ended.next_if(|(end, _)| *end < read.began) {
            longest = longest.max(length);
        }
        if read.events.len() < longest {
            return Err(format!(
                "client {} read {} events from node {} at {:?} after {longest} had been read",
                read.client,
                read.events.len(),
                read.node,
                read.began
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::fixture, *};

    #[test]
    fn a_read_with_a_gap_is_found() {
        let mut history = fixture::good();
        history.reads[0].events.remove(1);
        assert!(check(&history).is_err());
    }

    #[test]
    fn a_read_of_something_that_is_gone_is_found() {
        let mut history = fixture::good();
        let mut events = history.finals[0].events.clone();
        events.push(fixture::event("gone", 9));
        history.reads.push(fixture::read(Level::Local, 100, 101, &events));
        assert!(check(&history).unwrap_err().contains("not there in the end"));
    }

    #[test]
    fn a_linearizable_read_behind_an_earlier_one_is_found() {
        let mut history = fixture::good();
        let events = history.finals[0].events[..2].to_vec();
        history.reads.push(fixture::read(Level::Linearizable, 25, 27, &events));
        assert!(check(&history).unwrap_err().contains("after 3 had been read"));
    }
}
