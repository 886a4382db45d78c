//! What the demo was promised: every acknowledged event, and when answers stayed away.

use std::time::Duration;

use indicatif::ProgressBar;
use tidemark_proto::v1::WriteResult;
use tokio::{sync::watch, time::Instant};

use crate::cli::{
    append::{Batch, Observer, Tally},
    exit::CliError,
};

/// One event, to compare.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Record {
    /// The label that the client gave it.
    pub event_id: String,
    /// BLAKE3 of its data.
    pub data: [u8; 32],
}

impl Record {
    /// Of an event sent or read.
    pub fn new(event_id: &str, data: &[u8]) -> Self {
        Self { event_id: event_id.to_owned(), data: *blake3::hash(data).as_bytes() }
    }
}

/// Remembers acknowledged events in the order of the input.
pub struct Ledger {
    records: Vec<Record>,
    last: Option<Instant>,
    longest_gap: Duration,
    bar: ProgressBar,
    progress: watch::Sender<u64>,
}

impl Ledger {
    /// Nothing is acknowledged yet; `progress` is told the number of events.
    pub fn new(bar: ProgressBar, progress: watch::Sender<u64>) -> Self {
        Self { records: Vec::new(), last: None, longest_gap: Duration::ZERO, bar, progress }
    }

    /// All acknowledged events.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// The longest time between two acknowledgements.
    pub fn longest_gap(&self) -> Duration {
        self.longest_gap
    }
}

impl Observer for Ledger {
    fn acknowledged(&mut self, batch: &Batch, _: &WriteResult, tally: &Tally) -> Result<(), CliError> {
        let now = Instant::now();
        if let Some(last) = self.last.replace(now) {
            self.longest_gap = self.longest_gap.max(now - last);
        }
        self.records.extend(batch.events.iter().map(|event| Record::new(&event.event_id, &event.data)));
        self.bar.set_position(tally.events);
        self.progress.send_replace(tally.events);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tidemark_proto::v1::EventToSave;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_longest_time_between_two_acknowledgements_is_kept() {
        let (sender, receiver) = watch::channel(0);
        let mut ledger = Ledger::new(ProgressBar::hidden(), sender);
        let digest = blake3::hash(b"");
        let batch = Batch {
            events: vec![EventToSave { event_id: "e".to_owned(), ..EventToSave::default() }],
            lines: vec![1],
            end_line: 1,
            digest,
            prefix_digest: digest,
            invalid: 0,
        };
        for (pause_ms, events) in [(5_000, 1), (20, 2), (1_700, 3), (30, 4)] {
            tokio::time::advance(Duration::from_millis(pause_ms)).await;
            let tally = Tally { events, ..Tally::default() };
            ledger.acknowledged(&batch, &WriteResult::default(), &tally).unwrap();
        }
        assert_eq!(
            ledger.longest_gap(),
            Duration::from_millis(1_700),
            "the wait before the first one is no gap"
        );
        assert_eq!((ledger.records().len(), *receiver.borrow()), (4, 4));
    }
}
