//! Applies a digest command: it writes nothing, its outcome asks the replica to digest this very state.

use crate::{command::Digest, outcome::Outcome};

pub(super) fn apply(digest: &Digest) -> Outcome {
    Outcome::Digest { digest_id: digest.digest_id }
}
