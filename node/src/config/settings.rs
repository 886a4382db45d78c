//! The one table of configuration keys: each declaration gives the field, its documentation, its notation and
//! its default. The typed structures, the flags, the environment variables, `--print-config` and
//! `docs/configuration.md` all come from it.

use std::{collections::BTreeMap, path::PathBuf};

use toml::Value;

use super::value::{
    Address, Codec, Count, CountOrZero, Engine, Flag, HostPort, LogFormat, Members, Millis, Name, Optional,
    Path, Size, Text,
};

/// One configuration key.
pub struct Key {
    /// `section.name`, or `name` at the top of the file.
    pub path: &'static str,
    /// Lines of documentation.
    pub doc: &'static [&'static str],
    /// What values may look like.
    pub expected: &'static str,
    /// The default in words, where a value would not say it.
    pub default_words: Option<&'static str>,
    /// The value in the notation of the file; nothing when unset.
    pub get: fn(&Config) -> Option<Value>,
    /// Sets the value; false when it is not what `expected` says.
    pub set: fn(&mut Config, &Value) -> bool,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Key").field(&self.path).finish()
    }
}

/// One section of the file.
#[derive(Debug)]
pub struct Section {
    /// Its name.
    pub name: &'static str,
    /// Lines of documentation.
    pub doc: &'static [&'static str],
}

macro_rules! default_words {
    () => {
        None
    };
    ($words:literal) => {
        Some($words)
    };
}

macro_rules! settings {
    (
        root {
            $(
                $(#[doc = $root_doc:literal])+
                $root:ident: $root_type:ty as $root_codec:ty = $root_default:expr $(, shown $root_words:literal)?;
            )+
        }
        $(
            $(#[doc = $section_doc:literal])+
            $section:ident: $struct:ident {
                $(
                    $(#[doc = $doc:literal])+
                    $field:ident: $type:ty as $codec:ty = $default:expr $(, shown $words:literal)?;
                )+
            }
        )+
    ) => {
        /// The typed configuration of a node.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $($(#[doc = $root_doc])+ pub $root: $root_type,)+
            $($(#[doc = $section_doc])+ pub $section: $struct,)+
        }

        impl Default for Config {
            fn default() -> Self {
                Self { $($root: $root_default,)+ $($section: $struct::default(),)+ }
            }
        }

        $(
            $(#[doc = $section_doc])+
            #[derive(Clone, Debug, PartialEq)]
            pub struct $struct {
                $($(#[doc = $doc])+ pub $field: $type,)+
            }

            impl Default for $struct {
                fn default() -> Self {
                    Self { $($field: $default,)+ }
                }
            }
        )+

        /// Every key, in the order of the reference.
        pub static KEYS: &[Key] = &[
            $(Key {
                path: stringify!($root),
                doc: &[$($root_doc),+],
                expected: <$root_codec as Codec<$root_type>>::EXPECTED,
                default_words: default_words!($($root_words)?),
                get: |config| <$root_codec as Codec<$root_type>>::show(&config.$root),
                set: |config, raw| {
                    <$root_codec as Codec<$root_type>>::read(raw).map(|value| config.$root = value).is_some()
                },
            },)+
            $($(Key {
                path: concat!(stringify!($section), ".", stringify!($field)),
                doc: &[$($doc),+],
                expected: <$codec as Codec<$type>>::EXPECTED,
                default_words: default_words!($($words)?),
                get: |config| <$codec as Codec<$type>>::show(&config.$section.$field),
                set: |config, raw| {
                    <$codec as Codec<$type>>::read(raw).map(|value| config.$section.$field = value).is_some()
                },
            },)+)+
        ];

        /// Every section, in the order of the reference.
        pub static SECTIONS: &[Section] = &[
            $(Section { name: stringify!($section), doc: &[$($section_doc),+] },)+
        ];
    };
}

settings! {
    root {
        /// Where the node keeps its log and its database. One node per directory.
        data_dir: PathBuf as Path = PathBuf::from("./tidemark-data");
        /// The storage engine. `memory` keeps nothing after the process ends.
        engine: Engine as Name = Engine::default(), shown "`rocksdb` where compiled in, else `sqlite`";
        /// The address for clients. Port 0 takes any free one.
        listen: Address as HostPort = Address::new("127.0.0.1", 7400);
        /// The address that clients and other nodes are told, where it differs from `listen` (for example behind a
        /// container's port mapping).
        advertise: Option<Address> as Optional<HostPort> = None, shown "the address that `listen` got";
        /// The address for the other nodes of the cluster.
        peer_listen: Option<Address> as Optional<HostPort> = None,
            shown "this node's address in `cluster.initial_members`; none for a single node";
        /// Allows addresses that are reachable from outside this machine although connections are neither encrypted
        /// nor authenticated. Without it the node refuses to start on such an address.
        insecure: bool as Flag = false;
    }

    /// Who the members are at the first start. Later starts read it from the data directory.
    cluster: ClusterConfig {
        /// Tells this cluster from others that ever have the same members. The same on all members.
        id_token: String as Text = "tidemark".to_owned();
        /// This node's id, from 1. Required with `initial_members`; a single node is node 1.
        node_id: Option<u64> as Optional<Count> = None, shown "1 for a single node";
        /// All members of the first start and their peer addresses; the same on all of them. Empty: a single node.
        initial_members: BTreeMap<u64, Address> as Members = BTreeMap::new(), shown "empty: a single node";
    }

    /// Replication: timing, the log, snapshots.
    raft: RaftConfig {
        /// How often the leader says that it is there.
        heartbeat_ms: u64 as Millis = 200;
        /// Shortest time without a leader before a follower stands for election. Above two heartbeats.
        election_min_ms: u64 as Millis = 1_000;
        /// Longest such time; each round draws one between the two, so that candidates do not collide.
        election_max_ms: u64 as Millis = 2_000;
        /// Size of one log segment, preallocated. At least four times `limits.max_entry_bytes`.
        segment_bytes: u64 as Size = 64 << 20;
        /// Entries kept in memory for followers that are a little behind.
        log_cache_bytes: u64 as Size = 64 << 20;
        /// The log is cut once this much of it is older than the durable state.
        snapshot_log_bytes: u64 as Size = 256 << 20;
        /// Log kept behind a cut, so that a node that was away for a short while catches up from the log instead of a
        /// snapshot.
        keep_log_bytes: u64 as Size = 128 << 20;
        /// Pace of a snapshot that is sent to another node.
        snapshot_bytes_per_second: u64 as Size = 32 << 20;
    }

    /// The database that holds the applied state.
    storage: StorageConfig {
        /// Memory for blocks read from the database.
        block_cache_bytes: u64 as Size = 16 << 20;
        /// Memory for rows not yet written to the database's files; bounds what is replayed after a crash.
        memtable_bytes: u64 as Size = 64 << 20;
        /// How often the applied state is made durable; bounds what is replayed after a crash.
        flush_interval_ms: u64 as Millis = 10_000;
    }

    /// Bounds on requests, answers and queues. What is above a bound is refused and names the key.
    limits: LimitsConfig {
        /// Data, metadata and attributes of one event.
        max_event_bytes: u64 as Size = 1 << 20;
        /// One save.
        max_save_bytes: u64 as Size = 8 << 20;
        /// Events of one save.
        max_events_per_save: usize as Count = 4_096;
        /// One entry of the log.
        max_entry_bytes: u64 as Size = 16 << 20;
        /// Saves waiting for the sequencer.
        queue_requests: usize as Count = 4_096;
        /// Bytes of the saves waiting for the sequencer.
        queue_bytes: u64 as Size = 64 << 20;
        /// Entries sent to another node in one message; at least one entry goes.
        peer_append_bytes: u64 as Size = 2 << 20;
        /// One page of events; at least one event goes. Clients in other languages stop at 4 MiB.
        max_page_bytes: u64 as Size = 3 << 20;
        /// Events that one read may ask for.
        max_count: u32 as Count = 10_000;
        /// Nesting of JSON.
        max_json_depth: usize as Count = 128;
        /// An attribute's key, an event type, an event id, an idempotency key.
        max_key_bytes: usize as Count = 128;
        /// The value of a tag.
        max_tag_value_bytes: u64 as Size = 64 << 10;
        /// Observations of one save.
        max_observations: usize as Count = 1_024;
        /// Criteria over all queries of one request.
        max_criteria: usize as Count = 4_096;
        /// Tags over all queries of one request.
        max_tags: usize as Count = 16_384;
        /// Keys that one page of a read may pass before it ends early.
        read_scan_keys: u64 as Count = 100_000;
        /// Time that one page of a read may take before it ends early.
        read_scan_ms: u64 as Millis = 250;
        /// Keys that a consistency check may pass.
        check_scan_keys: u64 as Count = 4_000_000;
        /// Time that a consistency check may take.
        check_scan_ms: u64 as Millis = 10_000;
    }

    /// Group commit: how saves become entries of the log.
    sequencer: SequencerConfig {
        /// Requests in one entry.
        entry_requests: usize as Count = 512;
        /// Events in one entry, unless one request has more.
        entry_events: usize as Count = 1_024;
        /// Bytes of one entry, unless one request is larger.
        entry_bytes: u64 as Size = 4 << 20;
        /// How long to wait for more saves before an entry is closed. 0: never; the sync in flight is the window.
        batch_delay_ms: u64 as CountOrZero = 0;
        /// Entries proposed and not yet applied.
        entries_in_flight: usize as Count = 4;
        /// How long an entry may take before the outcome of its saves is reported as unknown.
        flush_timeout_ms: u64 as Millis = 30_000;
    }

    /// Threads and time-outs of the process.
    server: ServerConfig {
        /// Threads that serve clients. 0: one per core that this process may use.
        runtime_threads: usize as CountOrZero = 0, shown "0: one per core";
        /// Threads that replicate and keep time, apart from those that serve clients.
        raft_threads: usize as Count = 2;
        /// The deadline of a request that names none.
        request_timeout_ms: u64 as Millis = 10_000;
        /// How long a stopping node may take to hand over and flush before it ends anyway.
        shutdown_timeout_ms: u64 as Millis = 10_000;
    }

    /// What the node writes to standard error.
    log: LogConfig {
        /// The form of log lines.
        format: LogFormat as Name = LogFormat::Text;
        /// What is logged: a level, or a filter like `info,tidemark_raft=debug`. The library under
        /// `tidemark_raft` tells every step of every election at `info`, which only its developers need.
        level: String as Text = "info,openraft=warn".to_owned();
    }
}

impl Key {
    /// The environment variable: `TIDEMARK_` and the path in capitals, `.` as `_`.
    pub fn variable(&self) -> String {
        format!("TIDEMARK_{}", self.path.to_uppercase().replace('.', "_"))
    }

    /// The flag without its dashes. Keys of `cluster` do without the section's name, for people type them.
    pub fn flag(&self) -> String {
        self.path.strip_prefix("cluster.").unwrap_or(self.path).replace(['.', '_'], "-")
    }

    /// The name of the section, empty at the top of the file.
    pub fn section(&self) -> &'static str {
        self.path.split_once('.').map_or("", |(section, _)| section)
    }

    /// The name within its section.
    pub fn name(&self) -> &'static str {
        self.path.rsplit_once('.').map_or(self.path, |(_, name)| name)
    }
}
