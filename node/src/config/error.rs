//! Why a configuration is not accepted.

use std::path::PathBuf;

use super::{Address, Engine, Origin};

/// Why a configuration could not be loaded or does not make sense.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is no TOML.
    #[error("{} is not valid TOML: {source}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// There is no such key.
    #[error("unknown key {key} in {origin}{}", suggested(suggestion.as_deref()))]
    UnknownKey {
        /// As it was written.
        key: String,
        /// Where.
        origin: Origin,
        /// The known one that looks most like it.
        suggestion: Option<String>,
    },
    /// A value is not what its key takes.
    #[error("{key} in {origin} is {value}, but must be {expected}")]
    WrongValue {
        /// The key.
        key: &'static str,
        /// Where.
        origin: Origin,
        /// As it was written.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
    /// An address can be reached from outside, and nothing protects it.
    #[error(
        "{key} is {address}, which is reachable from outside this machine, and connections are not encrypted: \
         listen on a loopback address, or set insecure = true (--insecure) if the network is trusted"
    )]
    NotLoopback {
        /// The key.
        key: &'static str,
        /// The address.
        address: Address,
    },
    /// This binary does not contain the engine.
    #[error("engine {0} is not compiled into this binary: choose another, or build with the feature {0}")]
    EngineMissing(Engine),
    /// Members are named, but not which one this node is.
    #[error(
        "cluster.initial_members is set, so cluster.node_id (--node-id) must say which of them this node is"
    )]
    NodeIdMissing,
    /// This node is not among the members.
    #[error("cluster.node_id is {node_id}, which is not among cluster.initial_members ({members})")]
    NotAMember {
        /// This node.
        node_id: u64,
        /// The ids named.
        members: String,
    },
    /// Two members share an address.
    #[error("members {0} and {1} of cluster.initial_members have the same address {2}")]
    SharedAddress(u64, u64, Address),
    /// A member's address has no port that others could connect to.
    #[error("the address {address} of member {node_id} in cluster.initial_members has no port")]
    MemberWithoutPort {
        /// The member.
        node_id: u64,
        /// Its address.
        address: Address,
    },
    /// One value must be larger than another one.
    #[error("{key} is {value}, but must be at least {minimum}: {why}")]
    TooSmall {
        /// The key.
        key: &'static str,
        /// Its value.
        value: u64,
        /// What it must reach.
        minimum: u64,
        /// Where the bound comes from.
        why: &'static str,
    },
    /// The log filter cannot be parsed.
    #[error("log.level {filter:?} is no level or filter")]
    LogFilter {
        /// As it was written.
        filter: String,
        /// Why.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
}

fn suggested(suggestion: Option<&str>) -> String {
    match suggestion {
        Some(name) => format!("; did you mean {name}?"),
        None => "; docs/configuration.md lists all keys".to_owned(),
    }
}
