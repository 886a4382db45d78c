//! Constant load: many writers, each with one save under way, every event with an id of its own.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tidemark_client::{ApiError, Client, Error, EventToSave, SaveRequest};
use tokio::{
    sync::{OwnedRwLockWriteGuard, RwLock},
    task::JoinHandle,
    time::Instant,
};

use crate::history::{self, Append, Outcome};

/// Between two saves of one writer.
const PAUSE: Duration = Duration::from_millis(10);

/// How long a writer tries: longer than anything that the loop breaks.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the writers have done so far.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// Every save whose outcome is there.
    pub(super) appends: Vec<Append>,
    /// Refusals that no kill explains.
    pub(super) refused_for_good: Vec<ApiError>,
}

/// The writers. They stop when this is dropped.
pub(super) struct Load {
    written: Arc<Mutex<Written>>,
    /// Writers hold it for reading during a save.
    gate: Arc<RwLock<()>>,
    writers: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts `writers` writers to `boundary`, which share `client`. Times count from `start`.
    pub(super) fn start(client: &Client, boundary: &str, writers: u64, start: Instant) -> Self {
        let (written, gate) = (Arc::<Mutex<Written>>::default(), Arc::new(RwLock::new(())));
        let writer = |number| {
            let writer = Writer {
                number,
                start,
                client: client.clone(),
                boundary: boundary.to_owned(),
                written: Arc::clone(&written),
                gate: Arc::clone(&gate),
            };
            tokio::spawn(writer.run())
        };
        let writers = (1..=writers).map(writer).collect();
        Self { written, gate, writers }
    }

    /// Waits until every save under way has its outcome, and keeps the writers from starting more until the guard
    /// is dropped.
    pub(super) async fn pause(&self) -> OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.gate).write_owned().await
    }

    /// Every save whose outcome is there.
    pub(super) fn appends(&self) -> Vec<Append> {
        self.written.lock().appends.clone()
    }

    /// Refusals that no kill explains.
    pub(super) fn refused_for_good(&self) -> Vec<ApiError> {
        self.written.lock().refused_for_good.clone()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.writers.iter().for_each(JoinHandle::abort);
    }
}

struct Writer {
    number: u64,
    start: Instant,
    client: Client,
    boundary: String,
    written: Arc<Mutex<Written>>,
    gate: Arc<RwLock<()>>,
}

impl Writer {
    async fn run(self) {
        for count in 1_u64.. {
            {
                let _open = self.gate.read().await;
                self.save(format!("writer-{}-{count}", self.number)).await;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn save(&self, event_id: String) {
        let data = format!("{{\"writer\":{},\"padding\":\"{}\"}}", self.number, "x".repeat(180));
        let event = EventToSave::new("Written", data.into_bytes()).event_id(event_id.clone());
        let request = SaveRequest::new(&self.boundary).event(event).timeout(PATIENCE);
        let began = self.start.elapsed();
        let saved = self.client.save(request).await;
        let ended = self.start.elapsed();
        let outcome = match saved {
            Ok(result) => {
                Outcome::Acknowledged { position: history::position(result.log_position.unwrap_or_default()) }
            }
            Err(Error::OutcomeUnknown { .. }) => Outcome::Unknown,
            Err(Error::Api(error)) => {
                let why = error.to_string();
                self.written.lock().refused_for_good.push(error);
                Outcome::Rejected { why }
            }
            Err(error @ (Error::Unavailable { .. } | Error::InvalidAddress { .. } | Error::NoAddress)) => {
                Outcome::Rejected { why: error.to_string() }
            }
        };
        // The client makes a key for its own repeats and uses it for nothing else.
        let append = Append {
            client: self.number,
            idempotency_key: None,
            event_ids: vec![event_id],
            began,
            ended,
            outcome,
        };
        self.written.lock().appends.push(append);
    }
}
