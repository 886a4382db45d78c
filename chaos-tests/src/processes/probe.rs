//! How long something takes to work again after a kill.

use std::time::Duration;

use tidemark_client::{Client, Discovery, Error, EventToSave, Options, SaveRequest, v1};
use tidemark_storage::Position;
use tokio::time::Instant;

use crate::history;

/// What does not work after this long does not come back.
pub(super) const GIVE_UP: Duration = Duration::from_secs(30);

/// One look at a node that may not be there yet.
const LOOK: Duration = Duration::from_millis(250);

/// A client of this node alone.
pub(super) fn client_of(address: &str) -> Result<Client, Error> {
    Client::connect_lazy(Options { discovery: Discovery::GivenOnly, ..Options::new([address]) })
}

/// Waits until the node answers a linearizable read by itself; `None`: it does not.
pub(super) async fn serves(address: &str, boundary: &str, since: Instant) -> Result<Option<Duration>, Error> {
    let options = Options {
        discovery: Discovery::GivenOnly,
        connect_timeout: LOOK,
        request_timeout: LOOK,
        attempt_timeout: LOOK,
        ..Options::new([address])
    };
    let request = v1::GetEventsRequest {
        boundary: boundary.to_owned(),
        count: 1,
        direction: v1::Direction::Descending.into(),
        consistency: Some(v1::ReadConsistency {
            level: Some(v1::read_consistency::Level::Linearizable(v1::Linearizable {})),
        }),
        ..v1::GetEventsRequest::default()
    };
    while since.elapsed() < GIVE_UP {
        // A client remembers for a while that a node was unreachable: a fresh one does not.
        if Client::connect_lazy(options.clone())?.get_events(request.clone()).await.is_ok() {
            return Ok(Some(since.elapsed()));
        }
    }
    Ok(None)
}

/// A save that came through.
#[derive(Clone, Copy, Debug)]
pub(super) struct Saved {
    /// How long it took.
    pub(super) after: Duration,
    /// Where its event is.
    pub(super) position: Position,
}

/// Saves one event, as often as the client repeats it by itself; `None`: it could not be saved.
pub(super) async fn writes(client: &Client, boundary: &str, event_id: &str, since: Instant) -> Option<Saved> {
    let event = EventToSave::new("Probed", &b"{}"[..]).event_id(event_id);
    let request = SaveRequest::new(boundary).event(event).timeout(GIVE_UP);
    let written = client.save(request).await.ok()?;
    Some(Saved { after: since.elapsed(), position: history::position(written.log_position?) })
}
