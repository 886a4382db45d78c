//! A read that asked for a position sees the event there and everything before it.

use super::Verdict;
use crate::history::{History, Level};

/// Compares every such read with the final log.
pub fn check(history: &History) -> Verdict {
    for read in &history.reads {
        let Level::AtLeast(wanted) = read.level else { continue };
        let due = history.final_events().iter().take_while(|event| event.position <= wanted).count();
        if read.events.len() < due {
            return Err(format!(
                "a read from node {} that wanted {wanted} saw {} events of {due}",
                read.node,
                read.events.len()
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::fixture, *};

    #[test]
    fn a_read_that_misses_its_position_is_found() {
        let mut history = fixture::good();
        history.reads[1].events.pop();
        assert!(check(&history).unwrap_err().contains("saw 2 events of 3"));
    }
}
