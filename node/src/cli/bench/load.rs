//! The closed loop.

use std::time::Duration;

use bytes::Bytes;
use hdrhistogram::Histogram;
use tidemark_client::{Client, EventToSave, SaveRequest};
use tokio::{task::JoinSet, time::Instant};

/// Bytes of the data of one event.
const EVENT_BYTES: usize = 256;

/// Latencies are kept in microseconds with three digits, up to this many.
const LONGEST_US: u64 = 600_000_000;

/// What to do.
#[derive(Clone, Debug)]
pub struct Load {
    /// The boundary to write.
    pub boundary: String,
    /// Saves in flight.
    pub clients: usize,
    /// Events per save.
    pub batch: usize,
    /// Not measured.
    pub warm_up: Duration,
    /// Measured, after the warm-up.
    pub measured: Duration,
}

/// What came of it.
#[derive(Debug)]
pub struct Measured {
    /// Saves that were acknowledged while it was measured.
    pub operations: u64,
    /// Saves that failed, or whose outcome stayed unknown.
    pub errors: u64,
    latencies_us: Histogram<u64>,
}

impl Measured {
    fn new() -> Self {
        let latencies_us = Histogram::new_with_bounds(1, LONGEST_US, 3).expect("the bounds above are valid");
        Self { operations: 0, errors: 0, latencies_us }
    }

    fn record(&mut self, latency: Duration) {
        self.operations += 1;
        self.latencies_us.saturating_record(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX).max(1));
    }

    fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.errors += other.errors;
        self.latencies_us.add(&other.latencies_us).expect("all histograms have the same bounds");
    }

    /// A quantile of the latencies.
    pub fn quantile_ms(&self, quantile: f64) -> f64 {
        self.latencies_us.value_at_quantile(quantile) as f64 / 1000.0
    }
}

/// Runs all clients to the end.
pub async fn run(client: &Client, load: &Load) -> Measured {
    let from = Instant::now() + load.warm_up;
    let window = Window { from, until: from + load.measured };
    let mut clients = JoinSet::new();
    for number in 0..load.clients {
        clients.spawn(one_client(client.clone(), load.clone(), number, window));
    }
    let mut total = Measured::new();
    while let Some(measured) = clients.join_next().await {
        match measured {
            Ok(measured) => total.add(&measured),
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        }
    }
    total
}

/// When answers count.
#[derive(Clone, Copy)]
struct Window {
    from: Instant,
    until: Instant,
}

async fn one_client(client: Client, load: Load, number: usize, window: Window) -> Measured {
    let mut measured = Measured::new();
    let mut sequence = 0;
    loop {
        let mut request = SaveRequest::new(load.boundary.clone());
        for _ in 0..load.batch {
            request = request.event(EventToSave::new("BenchEvent", event_data(number, sequence)));
            sequence += 1;
        }
        let sent = Instant::now();
        if sent >= window.until {
            return measured;
        }
        let answer = client.save(request).await;
        let now = Instant::now();
        // An answer counts where it arrives: the throughput is of the window, whenever its saves were sent.
        if now < window.from || now >= window.until {
            continue;
        }
        match answer {
            Ok(_) => measured.record(now - sent),
            Err(error) => {
                tracing::debug!(%error, "a save failed");
                measured.errors += 1;
            }
        }
    }
}

/// A JSON object of exactly [`EVENT_BYTES`] bytes, different for each event.
fn event_data(client: usize, sequence: u64) -> Bytes {
    let mut text = format!("{{\"client\":{client},\"sequence\":{sequence},\"filler\":\"");
    const END: &str = "\"}";
    let filler = EVENT_BYTES.saturating_sub(text.len() + END.len());
    text.extend(std::iter::repeat_n('x', filler));
    text.push_str(END);
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_json_objects_of_256_bytes() {
        for (client, sequence) in [(0, 0), (9_999, u64::MAX)] {
            let data = event_data(client, sequence);
            assert_eq!(data.len(), 256);
            let parsed: serde_json::Value = serde_json::from_slice(&data).unwrap();
            assert_eq!(parsed["client"], client);
        }
    }

    #[test]
    fn measurements_of_clients_add_up() {
        let mut total = Measured::new();
        for latency_ms in [1, 2, 100] {
            let mut one = Measured::new();
            one.record(Duration::from_millis(latency_ms));
            one.errors = 1;
            total.add(&one);
        }
        assert_eq!((total.operations, total.errors), (3, 3));
        assert!((total.quantile_ms(0.5) - 2.0).abs() < 0.01);
        assert!((total.quantile_ms(0.99) - 100.0).abs() < 0.1);
    }
}
