//! Digests of the state that `Digest` commands asked for, computed in the background.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use tidemark_proto::peer::GetDigestResponse;
use tidemark_state_machine::digest;
use tidemark_storage::contract::Snapshot;
use tokio::sync::watch;

use crate::{convert, environment::Environment, types::LogId};

/// Digests that are remembered; older ones are forgotten.
const REMEMBERED: usize = 16;

type Known = VecDeque<(u64, GetDigestResponse)>;

/// The newest digests of this replica.
#[derive(Debug, Default)]
pub struct Digests {
    known: watch::Sender<Known>,
}

impl Digests {
    /// Digests `snapshot`, the state at `applied`, without holding up apply.
    pub(crate) fn compute(
        self: &Arc<Self>,
        environment: &Environment,
        digest_id: u64,
        applied: LogId,
        snapshot: Arc<dyn Snapshot>,
    ) {
        let digests = Arc::clone(self);
        environment.executor.spawn_blocking(Box::new(move || match digest::digest(&*snapshot) {
            Ok(state) => digests.remember(
                digest_id,
                GetDigestResponse {
                    digest: Bytes::copy_from_slice(&state.hash),
                    applied: Some(convert::log_id_to_record(&applied)),
                    row_count: state.rows,
                },
            ),
            // Whoever asked sees that this replica does not answer.
            Err(fault) => tracing::error!(%fault, digest_id, "cannot digest the state"),
        }));
    }

    fn remember(&self, digest_id: u64, digest: GetDigestResponse) {
        self.known.send_modify(|known| {
            known.push_back((digest_id, digest));
            if known.len() > REMEMBERED {
                known.pop_front();
            }
        });
    }

    /// The digest of command `digest_id`; `None` if it is not there within `timeout`.
    pub async fn wait(&self, digest_id: u64, timeout: Duration) -> Option<GetDigestResponse> {
        let mut known = self.known.subscribe();
        let find =
            |known: &Known| known.iter().find(|(id, _)| *id == digest_id).map(|(_, digest)| digest.clone());
        let found = tokio::time::timeout(timeout, known.wait_for(|known| find(known).is_some())).await;
        found.ok()?.ok().and_then(|known| find(&known))
    }
}
