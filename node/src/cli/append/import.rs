//! Saves batches one after another, through failovers, and counts what became of them.
//!
//! **Order.** With [`Order::Kept`] the next batch is sent only after the one before was acknowledged. That is what
//! keeps the input's order across a failover: of several saves in flight, a later one can reach the new leader
//! before an earlier one is repeated. A repeat of a save whose outcome is unknown carries the same idempotency key,
//! so a first attempt that lands late after all writes nothing. [`Order::Free`] trades the order of batches for
//! speed; the order within a batch always holds.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    time::Duration,
};

use futures::{StreamExt, stream};
use serde::Serialize;
use tidemark_client::Error;
use tidemark_proto::{ApiError, v1::WriteResult};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};

use super::{pace::Pace, source::Batch};
use crate::cli::{
    api::{Api, may_succeed_later},
    exit::CliError,
};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Whether batches become visible in the order of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// They do: one save in flight.
    Kept,
    /// They may not.
    Free {
        /// Saves in flight.
        in_flight: NonZeroUsize,
    },
}

/// What is imported where, and how.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// The boundary that gets the events.
    pub boundary: String,
    /// Name of the source, part of every idempotency key.
    pub source: String,
    /// What stands before line numbers in messages.
    pub label: String,
    /// Whether order is kept.
    pub order: Order,
    /// Events per second; none: as fast as the cluster takes them.
    pub rate: Option<NonZeroU32>,
    /// How long one batch is repeated while the cluster does not answer.
    pub patience: Duration,
}

/// What became of the batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Events acknowledged, earlier ones included.
    pub events: u64,
    /// Saves acknowledged.
    pub batches: u64,
    /// Events that were there already: of an earlier run, or of an attempt of this one whose answer was lost.
    pub already_applied: u64,
    /// Lines left out.
    pub invalid: u64,
    /// Attempts that had to be repeated.
    pub retries: u64,
}

/// Is told of every acknowledged batch, in the order of the input.
pub trait Observer: Send {
    /// The batch is committed.
    ///
    /// # Errors
    /// End the import.
    fn acknowledged(&mut self, batch: &Batch, written: &WriteResult, tally: &Tally) -> Result<(), CliError>;
}

/// The idempotency key of a batch: the same lines at the same place of the same source have the same one.
pub fn idempotency_key(boundary: &str, source: &str, batch: &Batch) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in [boundary, source] {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
    }
    let first_line = batch.lines.first().copied().unwrap_or(batch.end_line);
    hasher.update(&first_line.to_le_bytes()).update(batch.digest.as_bytes());
    hasher.finalize().to_hex().to_string()
}

/// Imports until the batches end or something goes wrong; `tally` and `observer` then hold what was acknowledged.
///
/// # Errors
/// A line that is no event, an event that the server refuses, a cluster that does not answer for longer than
/// `patience`, an error of the observer.
pub async fn import(
    api: &dyn Api,
    batches: mpsc::Receiver<Result<Batch, CliError>>,
    options: &ImportOptions,
    tally: &mut Tally,
    observer: &mut dyn Observer,
) -> Result<(), CliError> {
    let in_flight = match options.order {
        Order::Kept => 1,
        Order::Free { in_flight } => in_flight.get(),
    };
    let pace = options.rate.map(|rate| Pace::new(rate, Instant::now()));
    // `buffered` yields in the order of the input, so what was acknowledged is always a prefix of it.
    let mut saved = stream::unfold((batches, pace), paced)
        .map(|batch| async { save(api, batch?, options).await })
        .buffered(in_flight)
        .boxed();
    while let Some(result) = saved.next().await {
        let Saved { batch, written, retries } = result?;
        tally.invalid += batch.invalid;
        tally.retries += retries;
        let Some(written) = written else { continue };
        let events = batch.events.len() as u64;
        tally.events += events;
        tally.batches += 1;
        tally.already_applied += if written.already_applied { events } else { 0 };
        observer.acknowledged(&batch, &written, tally)?;
    }
    Ok(())
}

type Incoming = Result<Batch, CliError>;

async fn paced(
    (mut batches, mut pace): (mpsc::Receiver<Incoming>, Option<Pace>),
) -> Option<(Incoming, (mpsc::Receiver<Incoming>, Option<Pace>))> {
    let batch = batches.recv().await?;
    if let (Ok(batch), Some(pace)) = (&batch, &mut pace) {
        sleep_until(pace.next(batch.events.len(), Instant::now())).await;
    }
    Some((batch, (batches, pace)))
}

struct Saved {
    batch: Batch,
    written: Option<WriteResult>,
    retries: u64,
}

async fn save(api: &dyn Api, batch: Batch, options: &ImportOptions) -> Result<Saved, CliError> {
    if batch.events.is_empty() {
        return Ok(Saved { batch, written: None, retries: 0 });
    }
    let key = idempotency_key(&options.boundary, &options.source, &batch);
    let give_up = Instant::now() + options.patience;
    let (mut pause, mut retries) = (FIRST_PAUSE, 0);
    loop {
        let error = match api.save(&options.boundary, &batch.events, &key).await {
            Ok(written) => return Ok(Saved { batch, written: Some(written), retries }),
            Err(error) => error,
        };
        if !may_succeed_later(&error) || Instant::now() + pause >= give_up {
            return Err(refused(error, &batch, &options.label));
        }
        tracing::debug!(%error, first_line = batch.lines[0], "repeating a save");
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        retries += 1;
    }
}

/// Adds the place in the input to an error that is about the batch.
fn refused(error: Error, batch: &Batch, label: &str) -> CliError {
    let line = match &error {
        Error::Api(ApiError::InvalidRequest { field, .. }) => {
            event_index(field).and_then(|index| batch.lines.get(index))
        }
        _ => None,
    };
    match (line, batch.lines.as_slice()) {
        (Some(line), _) => CliError::EventRefused { place: format!("{label}:{line}"), source: error },
        (None, [first, .., last]) => {
            CliError::EventRefused { place: format!("{label}:{first}-{last}"), source: error }
        }
        (None, [only]) => CliError::EventRefused { place: format!("{label}:{only}"), source: error },
        (None, []) => CliError::Client(error),
    }
}

/// The index in a field path like `events[3].data`.
fn event_index(field: &str) -> Option<usize> {
    field.strip_prefix("events[")?.split_once(']')?.0.parse().ok()
}

#[cfg(test)]
#[path = "import_tests.rs"]
mod tests;
