//! The Rust client of Tidemark.
//!
//! A [`Client`] is given the address of any member and finds the others and the leader by itself. It goes on when
//! the member it was given dies, and it repeats what is safe to repeat: every save carries an idempotency key, so a
//! repeat never writes twice. What it cannot settle before the deadline it calls [`Error::OutcomeUnknown`], never
//! "failed".
//!
//! ```no_run
//! use futures::TryStreamExt;
//! use tidemark_client::{Client, Error, EventToSave, NOTHING, Options, SaveRequest, any_of, criterion, v1};
//!
//! # async fn book() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect(Options::new(["10.0.0.1:7400"])).await?;
//! client.create_boundary(v1::BoundaryDefinition { name: "flights".into(), ..Default::default() }).await?;
//!
//! // Read the facts, decide, and save only if they still hold.
//! let seat = any_of([criterion([("flight", "TM1"), ("seat", "4A")])]);
//! let page = client
//!     .get_events(v1::GetEventsRequest {
//!         boundary: "flights".into(),
//!         query: Some(seat.clone()),
//!         count: 100,
//!         ..Default::default()
//!     })
//!     .await?;
//! if page.events.is_empty() {
//!     let booked =
//!         EventToSave::json("SeatBooked", &serde_json::json!({"flight": "TM1", "seat": "4A", "by": "Ada"}))?;
//!     let save = SaveRequest::new("flights").event(booked).observe(seat, NOTHING);
//!     match client.save(save).await {
//!         Ok(written) => println!("booked at {:?}", written.log_position),
//!         Err(error) if error.is_conflict() => println!("somebody was faster"),
//!         Err(Error::OutcomeUnknown { idempotency_key }) => {
//!             println!("save again with the key {idempotency_key} to find out")
//!         }
//!         Err(error) => return Err(error.into()),
//!     }
//! }
//!
//! // Read everything, page by page.
//! let all = v1::GetEventsRequest { boundary: "flights".into(), count: 1_000, ..Default::default() };
//! let mut events = std::pin::pin!(client.read_all(all));
//! while let Some(event) = events.try_next().await? {
//!     println!("{} {:?}", event.event_type, event.position);
//! }
//! # Ok(())
//! # }
//! ```

mod client;
mod error;
mod node;
mod options;
mod retry;
mod save_stream;
mod topology;
mod types;

pub use client::Client;
pub use error::Error;
pub use options::{Discovery, Options};
pub use tidemark_proto::{ApiError, LeaderHint, LimitKind, Retry, UnknownCause, v1};
pub use types::{EventToSave, NOTHING, SaveRequest, any_of, criterion};
