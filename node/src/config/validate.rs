//! What must hold between the values of a configuration.

use super::{Config, ConfigError, Engine, KEYS, Origin};

impl Config {
    /// Checks everything that can be checked without touching the machine. A configuration made in code is held to
    /// the same rules as one from a file.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.check_notation()?;
        if !self.engine.compiled_in() {
            return Err(ConfigError::EngineMissing(self.engine));
        }
        self.check_addresses()?;
        self.check_members()?;
        self.check_raft()?;
        self.check_limits()?;
        tracing_subscriber::EnvFilter::try_new(&self.log.level)
            .map_err(|source| ConfigError::LogFilter { filter: self.log.level.clone(), source })?;
        Ok(())
    }

    /// A value set in code can be one that the notation of its key excludes, such as a time of 0.
    fn check_notation(&self) -> Result<(), ConfigError> {
        let mut scratch = self.clone();
        for key in KEYS {
            let Some(value) = (key.get)(self) else { continue };
            if !(key.set)(&mut scratch, &value) {
                let (value, expected) = (value.to_string(), key.expected);
                return Err(ConfigError::WrongValue {
                    key: key.path,
                    origin: Origin::Default,
                    value,
                    expected,
                });
            }
        }
        Ok(())
    }

    fn check_addresses(&self) -> Result<(), ConfigError> {
        if self.insecure {
            return Ok(());
        }
        let listeners = [("listen", Some(&self.listen)), ("peer_listen", self.peer_address())];
        for (key, address) in listeners {
            if let Some(address) = address.filter(|address| !address.is_loopback()) {
                return Err(ConfigError::NotLoopback { key, address: address.clone() });
            }
        }
        Ok(())
    }

    fn check_members(&self) -> Result<(), ConfigError> {
        let members = &self.cluster.initial_members;
        if members.is_empty() {
            return Ok(());
        }
        let node_id = self.cluster.node_id.ok_or(ConfigError::NodeIdMissing)?;
        if !members.contains_key(&node_id) {
            let members = members.keys().map(u64::to_string).collect::<Vec<_>>().join(", ");
            return Err(ConfigError::NotAMember { node_id, members });
        }
        for (id, address) in members {
            if address.port == 0 {
                return Err(ConfigError::MemberWithoutPort { node_id: *id, address: address.clone() });
            }
            if let Some((other, _)) = members.range(id + 1..).find(|(_, other)| *other == address) {
                return Err(ConfigError::SharedAddress(*id, *other, address.clone()));
            }
        }
        Ok(())
    }

    fn check_raft(&self) -> Result<(), ConfigError> {
        let raft = &self.raft;
        at_least(
            "raft.election_min_ms",
            raft.election_min_ms,
            2 * raft.heartbeat_ms + 1,
            "a follower must miss more than two heartbeats (raft.heartbeat_ms) before it stands for election",
        )?;
        at_least(
            "raft.election_max_ms",
            raft.election_max_ms,
            raft.election_min_ms + 1,
            "followers draw different times above raft.election_min_ms",
        )?;
        at_least(
            "raft.segment_bytes",
            raft.segment_bytes,
            4 * self.limits.max_entry_bytes,
            "a segment holds at least four entries of limits.max_entry_bytes",
        )
    }

    fn check_limits(&self) -> Result<(), ConfigError> {
        let limits = &self.limits;
        at_least(
            "limits.max_save_bytes",
            limits.max_save_bytes,
            limits.max_event_bytes,
            "a save holds at least one event of limits.max_event_bytes",
        )?;
        at_least(
            "limits.max_entry_bytes",
            limits.max_entry_bytes,
            limits.max_save_bytes + limits.max_save_bytes / 2,
            "an entry holds at least one save of limits.max_save_bytes and what the store adds to it",
        )?;
        at_least(
            "limits.max_entry_bytes",
            limits.max_entry_bytes,
            self.sequencer.entry_bytes,
            "the sequencer fills entries up to sequencer.entry_bytes",
        )?;
        at_least(
            "limits.queue_bytes",
            limits.queue_bytes,
            limits.max_save_bytes,
            "the queue holds at least one save of limits.max_save_bytes",
        )
    }
}

fn at_least(key: &'static str, value: u64, minimum: u64, why: &'static str) -> Result<(), ConfigError> {
    if value < minimum { Err(ConfigError::TooSmall { key, value, minimum, why }) } else { Ok(()) }
}

impl Engine {
    /// The engines that this binary contains.
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|engine| engine.compiled_in()).collect()
    }
}
