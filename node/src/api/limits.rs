//! Every bound on requests, answers, queues and scans, under the name that its configuration key has.
//!
//! **Invariant**: an error that refuses something for its size names one of these fields, so that a reader of the
//! error finds the key to change.

use crate::config::Config;

/// What a message between nodes may hold beside the entries, in bytes: stamps, log ids and framing.
const PEER_MESSAGE_OVERHEAD_BYTES: u64 = 64 << 10;

/// The bounds that a node works under. [`Limits::DEFAULT`] holds the defaults of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Data, metadata and encoded attributes of one event, in bytes.
    pub max_event_bytes: u64,
    /// One save, in bytes as it is encoded into the log: the events with everything that names and frames them.
    pub max_save_bytes: u64,
    /// Events of one save.
    pub max_events_per_save: usize,
    /// One entry of the log, in bytes.
    pub max_entry_bytes: u64,
    /// Saves that wait for the sequencer.
    pub queue_requests: usize,
    /// Bytes of the saves that wait for the sequencer.
    pub queue_bytes: u64,
    /// Requests of one entry.
    pub entry_requests: usize,
    /// Events of one entry, unless one request has more.
    pub entry_events: usize,
    /// Bytes of one entry, unless one request is larger.
    pub entry_bytes: u64,
    /// Entries of one message to another node, in bytes; at least one entry goes.
    pub peer_append_bytes: u64,
    /// One page of events, in bytes; at least one event goes. Clients in other languages stop at 4 MiB.
    pub max_page_bytes: u64,
    /// Events that one read may ask for.
    pub max_count: u32,
    /// Nesting of JSON: the root object is level 1.
    pub max_json_depth: usize,
    /// Attribute key, tag key, event type, event id, content type, boundary name in a request and idempotency key,
    /// each in bytes of UTF-8.
    pub max_key_bytes: usize,
    /// The text of an attribute or tag, in bytes of UTF-8.
    pub max_tag_value_bytes: u64,
    /// Observations of one save.
    pub max_observations: usize,
    /// Criteria over all queries of one request.
    pub max_criteria: usize,
    /// Tags over all queries of one request.
    pub max_tags: usize,
    /// Keys that one page of a read may pass before it ends early.
    pub read_scan_keys: u64,
    /// Milliseconds that one page of a read may take before it ends early.
    pub read_scan_ms: u64,
    /// Keys that one consistency check may pass.
    pub check_scan_keys: u64,
    /// Milliseconds that one consistency check may take.
    pub check_scan_ms: u64,
}

impl Limits {
    /// What holds where nothing is configured.
    pub const DEFAULT: Self = Self {
        max_event_bytes: 1 << 20,
        max_save_bytes: 8 << 20,
        max_events_per_save: 4_096,
        max_entry_bytes: 16 << 20,
        queue_requests: 4_096,
        queue_bytes: 64 << 20,
        entry_requests: 512,
        entry_events: 1_024,
        entry_bytes: 4 << 20,
        peer_append_bytes: 2 << 20,
        max_page_bytes: 3 << 20,
        max_count: 10_000,
        max_json_depth: 128,
        max_key_bytes: 128,
        max_tag_value_bytes: 64 << 10,
        max_observations: 1_024,
        max_criteria: 4_096,
        max_tags: 16_384,
        read_scan_keys: 100_000,
        read_scan_ms: 250,
        check_scan_keys: 4_000_000,
        check_scan_ms: 10_000,
    };

    /// The largest message between nodes, in bytes: one entry of the largest size and what surrounds it.
    pub const fn peer_message_bytes(&self) -> u64 {
        self.max_entry_bytes + PEER_MESSAGE_OVERHEAD_BYTES
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The bounds that a node was configured with.
impl From<&Config> for Limits {
    fn from(config: &Config) -> Self {
        let Config { limits, sequencer, .. } = config;
        Limits {
            max_event_bytes: limits.max_event_bytes,
            max_save_bytes: limits.max_save_bytes,
            max_events_per_save: limits.max_events_per_save,
            max_entry_bytes: limits.max_entry_bytes,
            queue_requests: limits.queue_requests,
            queue_bytes: limits.queue_bytes,
            entry_requests: sequencer.entry_requests,
            entry_events: sequencer.entry_events,
            entry_bytes: sequencer.entry_bytes,
            peer_append_bytes: limits.peer_append_bytes,
            max_page_bytes: limits.max_page_bytes,
            max_count: limits.max_count,
            max_json_depth: limits.max_json_depth,
            max_key_bytes: limits.max_key_bytes,
            max_tag_value_bytes: limits.max_tag_value_bytes,
            max_observations: limits.max_observations,
            max_criteria: limits.max_criteria,
            max_tags: limits.max_tags,
            read_scan_keys: limits.read_scan_keys,
            read_scan_ms: limits.read_scan_ms,
            check_scan_keys: limits.check_scan_keys,
            check_scan_ms: limits.check_scan_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_configuration() {
        let configured = Limits::from(&Config::default());
        assert_eq!(Limits::default(), configured);
    }

    #[test]
    fn a_peer_message_holds_an_entry_and_64_kib() {
        assert_eq!(Limits::DEFAULT.peer_message_bytes(), 16 * 1024 * 1024 + 64 * 1024);
    }
}
