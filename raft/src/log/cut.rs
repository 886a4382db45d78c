//! Where the log may be cut, in bytes rather than entries.

use super::{LogHandle, index::Index};

impl LogHandle {
    /// Index of the last entry that may go so that whole segments of at least `keep_bytes` remain behind it; none
    /// when nothing can go. What purges do with it is another question: they never pass the purge limit.
    pub fn purge_candidate(&self, keep_bytes: u64) -> Option<u64> {
        let state = self.shared().state.lock();
        let limit = state.purge_limit?;
        candidate(&state.index, keep_bytes).map(|index| index.min(limit))
    }
}

fn candidate(index: &Index, keep_bytes: u64) -> Option<u64> {
    let mut kept = 0;
    for segment in index.segments().rev() {
        if kept >= keep_bytes
            && let Some(last) = segment.last_entry()
        {
            return Some(last);
        }
        kept += segment.file_bytes;
    }
    None
}
