//! Ctrl-C and SIGTERM.

use tokio::signal::unix::{SignalKind, signal};

/// Waits for a request to stop. Where signals cannot be watched this never happens, and the default action ends the
/// process.
pub async fn interrupted() {
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
