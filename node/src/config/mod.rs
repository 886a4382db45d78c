//! The configuration of a node: one TOML file, environment variables, flags, each stronger than the one before.
//!
//! **Invariant**: keys, defaults and documentation stand in one table (`settings`); nothing else in the crate
//! reads the environment or knows a default.

mod error;
mod reference;
mod settings;
mod validate;
mod value;

use std::{collections::BTreeMap, fmt, path::PathBuf};

use toml::Value;

pub use error::ConfigError;
pub use reference::reference;
pub use settings::{
    ClusterConfig, Config, KEYS, Key, LimitsConfig, LogConfig, RaftConfig, SECTIONS, Section,
    SequencerConfig, ServerConfig, StorageConfig,
};
pub use value::{Address, AddressError, Engine, LogFormat, UnknownEngine};

/// Variables with the prefix that are no keys: they belong to the command and not to the node.
const OTHER_VARIABLES: [&str; 2] = ["TIDEMARK_CONFIG", "TIDEMARK_URL"];

/// Where a value comes from, weakest first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// The configuration file.
    File(PathBuf),
    /// This environment variable.
    Environment(String),
    /// This flag, without its dashes.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag --{name}"),
        }
    }
}

/// What a configuration is made of.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The file to read.
    pub file: Option<PathBuf>,
    /// All environment variables; those without the prefix `TIDEMARK_` are not looked at.
    pub environment: Vec<(String, String)>,
    /// Key paths and values given on the command line.
    pub flags: Vec<(String, String)>,
}

/// A validated configuration and where its values come from.
#[derive(Clone, Debug)]
pub struct Effective {
    /// The values.
    pub config: Config,
    origins: BTreeMap<&'static str, Origin>,
}

impl Effective {
    /// Where the value of a key comes from.
    pub fn origin(&self, key: &Key) -> &Origin {
        self.origins.get(key.path).unwrap_or(&Origin::Default)
    }
}

impl Config {
    /// Reads and validates a configuration.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place: an unreadable file, an unknown key, a value that its key does
    /// not take, values that do not fit together.
    pub fn load(sources: &Sources) -> Result<Effective, ConfigError> {
        let mut effective = Effective { config: Self::default(), origins: BTreeMap::new() };
        if let Some(path) = &sources.file {
            let text = std::fs::read_to_string(path)
                .map_err(|source| ConfigError::Unreadable { path: path.clone(), source })?;
            effective.apply_file(path, &text)?;
        }
        effective.apply_environment(&sources.environment)?;
        for (path, text) in &sources.flags {
            let flag = KEYS.iter().find(|key| key.path == path).map_or_else(|| path.clone(), Key::flag);
            effective.set(path, &Value::String(text.clone()), Origin::Flag(flag))?;
        }
        effective.config.validate()?;
        Ok(effective)
    }

    /// This node's id; 1 for a single node that names none.
    pub fn node_id(&self) -> u64 {
        self.cluster.node_id.unwrap_or(1)
    }

    /// Where this node listens for its peers: `peer_listen`, else its own address among the initial members; nothing
    /// for a single node.
    pub fn peer_address(&self) -> Option<&Address> {
        self.peer_listen.as_ref().or_else(|| self.cluster.initial_members.get(&self.node_id()))
    }
}

impl Effective {
    fn apply_file(&mut self, path: &std::path::Path, text: &str) -> Result<(), ConfigError> {
        let table: toml::Table = text
            .parse()
            .map_err(|source| ConfigError::Syntax { path: path.to_owned(), source: Box::new(source) })?;
        let origin = Origin::File(path.to_owned());
        for (name, value) in &table {
            match value {
                Value::Table(section) if SECTIONS.iter().any(|known| known.name == name) => {
                    for (field, value) in section {
                        self.set(&format!("{name}.{field}"), value, origin.clone())?;
                    }
                }
                _ => self.set(name, value, origin.clone())?,
            }
        }
        Ok(())
    }

    fn apply_environment(&mut self, variables: &[(String, String)]) -> Result<(), ConfigError> {
        for (name, text) in variables.iter().filter(|(name, _)| is_setting(name)) {
            let origin = Origin::Environment(name.clone());
            let Some(key) = KEYS.iter().find(|key| key.variable() == *name) else {
                let known = KEYS.iter().map(Key::variable);
                let suggestion = most_similar(name, known);
                return Err(ConfigError::UnknownKey { key: name.clone(), origin, suggestion });
            };
            self.set(key.path, &Value::String(text.clone()), origin)?;
        }
        Ok(())
    }

    fn set(&mut self, path: &str, raw: &Value, origin: Origin) -> Result<(), ConfigError> {
        let Some(key) = KEYS.iter().find(|key| key.path == path) else {
            let suggestion = suggest(path);
            return Err(ConfigError::UnknownKey { key: path.to_owned(), origin, suggestion });
        };
        if !(key.set)(&mut self.config, raw) {
            let (value, expected) = (raw.to_string(), key.expected);
            return Err(ConfigError::WrongValue { key: key.path, origin, value, expected });
        }
        self.origins.insert(key.path, origin);
        Ok(())
    }
}

/// Kubernetes adds variables like `TIDEMARK_SERVICE_HOST` and `TIDEMARK_PORT_7400_TCP` for a service that is called
/// `tidemark`; a node must not refuse to start because of them.
fn is_setting(variable: &str) -> bool {
    let Some(name) = variable.strip_prefix("TIDEMARK_") else { return false };
    let service_link = name == "PORT"
        || name.starts_with("PORT_")
        || name.contains("SERVICE_HOST")
        || name.contains("SERVICE_PORT");
    !service_link && !OTHER_VARIABLES.contains(&variable)
}

/// The key that was probably meant: one of the same name in another section, else the one that looks most alike.
fn suggest(path: &str) -> Option<String> {
    let name = path.rsplit_once('.').map_or(path, |(_, name)| name);
    let elsewhere = KEYS.iter().find(|key| key.name() == name).map(|key| key.path.to_owned());
    elsewhere
        .or_else(|| most_similar(path, KEYS.iter().map(|key| key.path.to_owned())))
        .or_else(|| most_similar(path, SECTIONS.iter().map(|section| section.name.to_owned())))
}

fn most_similar(written: &str, known: impl Iterator<Item = String>) -> Option<String> {
    // Below this similarity a suggestion confuses more than it helps.
    const SIMILAR: f64 = 0.8;
    known
        .map(|name| (strsim::jaro_winkler(written, &name), name))
        .filter(|(similarity, _)| *similarity >= SIMILAR)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests;
