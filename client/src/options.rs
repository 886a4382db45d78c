//! How a client connects and how long it tries.

use std::time::Duration;

/// Options of a [`Client`](crate::Client). All durations are wall time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Client addresses of members, `host:port` or `http://host:port`. One is enough.
    pub addresses: Vec<String>,
    /// Whether to look for the other members.
    pub discovery: Discovery,
    /// For one TCP connection. Default 500 ms: a dead machine must not hold up a call that another one can serve.
    pub connect_timeout: Duration,
    /// For one call, all attempts together. Default 30 s.
    pub request_timeout: Duration,
    /// For one attempt at one node; then the next node is tried. Default 10 s, the longest that a node checks the
    /// context of one save.
    pub attempt_timeout: Duration,
    /// A connection that was silent for this long is probed. Default 500 ms.
    pub keep_alive_interval: Duration,
    /// A probe that is not answered within this ends the connection. Default 1.5 s.
    pub keep_alive_timeout: Duration,
    /// How often the members and the leader are asked for when nothing goes wrong. Default 5 s.
    pub refresh_interval: Duration,
    /// Saves on their way at the same time; further ones wait. Default 4,096, the length of a node's queue.
    pub max_in_flight: usize,
    /// Largest message taken from a node, in bytes. Default 32 MiB.
    pub max_message_bytes: usize,
}

/// Whether a client looks for members that it was not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Discovery {
    /// Learn all members and follow the leader.
    Members,
    /// Talk to the given addresses only, in the order given: for tools that look at one certain node.
    GivenOnly,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            discovery: Discovery::Members,
            connect_timeout: Duration::from_millis(500),
            request_timeout: Duration::from_secs(30),
            attempt_timeout: Duration::from_secs(10),
            keep_alive_interval: Duration::from_millis(500),
            keep_alive_timeout: Duration::from_millis(1500),
            refresh_interval: Duration::from_secs(5),
            max_in_flight: 4096,
            max_message_bytes: 32 << 20,
        }
    }
}

impl Options {
    /// The defaults with these addresses.
    pub fn new<A: Into<String>>(addresses: impl IntoIterator<Item = A>) -> Self {
        Self { addresses: addresses.into_iter().map(Into::into).collect(), ..Self::default() }
    }
}
