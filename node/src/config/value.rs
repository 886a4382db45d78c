//! How the values of configuration keys are read and shown.
//!
//! A file gives TOML values, the environment and flags give text; every codec accepts both, so that a key means
//! the same wherever it is set.

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    path::PathBuf,
    str::FromStr,
};

use toml::Value;

/// Reads and shows values of type `T` in one notation.
pub trait Codec<T> {
    /// What a person may write, for documentation and error messages.
    const EXPECTED: &'static str;
    /// The value, or nothing when `raw` is not in this notation.
    fn read(raw: &Value) -> Option<T>;
    /// The value in the notation of the file; nothing for an unset optional one.
    fn show(value: &T) -> Option<Value>;
}

/// `host:port`, where the host is an IP address or a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// A name or an IP address, without brackets.
    pub host: String,
    /// 0 lets the system choose, where an address is listened on.
    pub port: u16,
}

/// The text is not `host:port`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address of the form host:port")]
pub struct AddressError(String);

impl Address {
    /// An address of this host.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self { host: host.into(), port }
    }

    /// Whether only this machine can reach it. A name other than `localhost` counts as reachable from outside:
    /// what it resolves to may change after the check.
    pub fn is_loopback(&self) -> bool {
        match self.host.parse::<IpAddr>() {
            Ok(address) => address.is_loopback(),
            Err(_) => self.host == "localhost",
        }
    }

    /// The socket address to listen on; asks the resolver when the host is a name.
    pub fn resolve(&self) -> std::io::Result<SocketAddr> {
        (self.host.as_str(), self.port).to_socket_addrs()?.next().ok_or_else(|| {
            std::io::Error::new(std::io::ErrorKind::NotFound, format!("{} resolves to no address", self.host))
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::new(address.ip().to_string(), address.port())
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || AddressError(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(error)?;
        let port = port.parse().map_err(|_| error())?;
        let host = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']').ok_or_else(error)?,
            None if host.contains(':') => return Err(error()),
            None => host,
        };
        if host.is_empty() || host.contains(char::is_whitespace) {
            return Err(error());
        }
        Ok(Self::new(host, port))
    }
}

/// The storage engine of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// RocksDB, where it is compiled in.
    RocksDb,
    /// SQLite, where it is compiled in.
    Sqlite,
    /// Nothing survives the process: for tests and demonstrations.
    Memory,
}

impl Engine {
    /// Every engine, in the order of preference.
    pub const ALL: [Self; 3] = [Self::RocksDb, Self::Sqlite, Self::Memory];

    /// The name in configuration and status.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RocksDb => "rocksdb",
            Self::Sqlite => "sqlite",
            Self::Memory => "memory",
        }
    }

    /// Whether this binary contains it.
    pub const fn compiled_in(self) -> bool {
        match self {
            Self::RocksDb => cfg!(feature = "rocksdb"),
            Self::Sqlite => cfg!(feature = "sqlite"),
            Self::Memory => cfg!(any(feature = "rocksdb", feature = "sqlite")),
        }
    }
}

/// RocksDB where it is compiled in, else SQLite.
impl Default for Engine {
    fn default() -> Self {
        if Self::RocksDb.compiled_in() { Self::RocksDb } else { Self::Sqlite }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Not the name of an engine.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no engine: use rocksdb, sqlite or memory")]
pub struct UnknownEngine(String);

impl FromStr for Engine {
    type Err = UnknownEngine;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|engine| engine.name() == text)
            .ok_or_else(|| UnknownEngine(text.to_owned()))
    }
}

/// The form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

fn integer(raw: &Value) -> Option<u64> {
    match raw {
        Value::Integer(number) => u64::try_from(*number).ok(),
        Value::String(text) => text.trim().replace('_', "").parse().ok(),
        _ => None,
    }
}

fn shown_integer(value: u64) -> Option<Value> {
    // TOML has no integers above i64::MAX; such a value is shown as text, which every codec reads.
    Some(i64::try_from(value).map_or_else(|_| Value::String(value.to_string()), Value::Integer))
}

/// A number of bytes: an integer or a text with a binary unit.
pub struct Size;

const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

impl Codec<u64> for Size {
    const EXPECTED: &'static str =
        "bytes, at least 1: an integer or a text like \"64 MiB\" (KiB, MiB, GiB, TiB)";

    fn read(raw: &Value) -> Option<u64> {
        let bytes = match raw {
            Value::String(text) => {
                let text = text.trim();
                let found = UNITS.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
                let (number, factor) = found.unwrap_or((text.strip_suffix('B').unwrap_or(text), 1));
                number.trim().replace('_', "").parse::<u64>().ok()?.checked_mul(factor)
            }
            _ => integer(raw),
        };
        bytes.filter(|bytes| *bytes > 0)
    }

    fn show(value: &u64) -> Option<Value> {
        match UNITS.iter().find(|(_, factor)| *value >= *factor && value.is_multiple_of(*factor)) {
            Some((unit, factor)) => Some(Value::String(format!("{} {unit}", value / factor))),
            None => shown_integer(*value),
        }
    }
}

/// A whole number of at least 1.
pub struct Count;

impl Codec<u64> for Count {
    const EXPECTED: &'static str = "a whole number of at least 1";

    fn read(raw: &Value) -> Option<u64> {
        integer(raw).filter(|number| *number > 0)
    }

    fn show(value: &u64) -> Option<Value> {
        shown_integer(*value)
    }
}

impl Codec<usize> for Count {
    const EXPECTED: &'static str = <Self as Codec<u64>>::EXPECTED;

    fn read(raw: &Value) -> Option<usize> {
        <Self as Codec<u64>>::read(raw).and_then(|number| usize::try_from(number).ok())
    }

    fn show(value: &usize) -> Option<Value> {
        shown_integer(*value as u64)
    }
}

impl Codec<u32> for Count {
    const EXPECTED: &'static str = <Self as Codec<u64>>::EXPECTED;

    fn read(raw: &Value) -> Option<u32> {
        <Self as Codec<u64>>::read(raw).and_then(|number| u32::try_from(number).ok())
    }

    fn show(value: &u32) -> Option<Value> {
        shown_integer(u64::from(*value))
    }
}

/// A whole number, where 0 has a meaning of its own.
pub struct CountOrZero;

impl Codec<u64> for CountOrZero {
    const EXPECTED: &'static str = "a whole number";

    fn read(raw: &Value) -> Option<u64> {
        integer(raw)
    }

    fn show(value: &u64) -> Option<Value> {
        shown_integer(*value)
    }
}

impl Codec<usize> for CountOrZero {
    const EXPECTED: &'static str = <Self as Codec<u64>>::EXPECTED;

    fn read(raw: &Value) -> Option<usize> {
        integer(raw).and_then(|number| usize::try_from(number).ok())
    }

    fn show(value: &usize) -> Option<Value> {
        shown_integer(*value as u64)
    }
}

/// Milliseconds, at least 1.
pub struct Millis;

impl Codec<u64> for Millis {
    const EXPECTED: &'static str = "milliseconds, at least 1";

    fn read(raw: &Value) -> Option<u64> {
        <Count as Codec<u64>>::read(raw)
    }

    fn show(value: &u64) -> Option<Value> {
        shown_integer(*value)
    }
}

/// `true` or `false`.
pub struct Flag;

impl Codec<bool> for Flag {
    const EXPECTED: &'static str = "true or false";

    fn read(raw: &Value) -> Option<bool> {
        match raw {
            Value::Boolean(value) => Some(*value),
            Value::String(text) => text.parse().ok(),
            _ => None,
        }
    }

    fn show(value: &bool) -> Option<Value> {
        Some(Value::Boolean(*value))
    }
}

/// Any text.
pub struct Text;

impl Codec<String> for Text {
    const EXPECTED: &'static str = "a text";

    fn read(raw: &Value) -> Option<String> {
        raw.as_str().map(str::to_owned)
    }

    fn show(value: &String) -> Option<Value> {
        Some(Value::String(value.clone()))
    }
}

/// A path; relative ones start at the working directory.
pub struct Path;

impl Codec<PathBuf> for Path {
    const EXPECTED: &'static str = "a path";

    fn read(raw: &Value) -> Option<PathBuf> {
        raw.as_str().filter(|text| !text.is_empty()).map(PathBuf::from)
    }

    fn show(value: &PathBuf) -> Option<Value> {
        Some(Value::String(value.display().to_string()))
    }
}

/// `host:port`.
pub struct HostPort;

impl Codec<Address> for HostPort {
    const EXPECTED: &'static str = "an address like \"127.0.0.1:7400\" or \"host:7400\"";

    fn read(raw: &Value) -> Option<Address> {
        raw.as_str()?.parse().ok()
    }

    fn show(value: &Address) -> Option<Value> {
        Some(Value::String(value.to_string()))
    }
}

/// One of the names of an enum.
pub struct Name;

impl Codec<Engine> for Name {
    const EXPECTED: &'static str = "rocksdb, sqlite or memory";

    fn read(raw: &Value) -> Option<Engine> {
        raw.as_str()?.parse().ok()
    }

    fn show(value: &Engine) -> Option<Value> {
        Some(Value::String(value.name().to_owned()))
    }
}

impl Codec<LogFormat> for Name {
    const EXPECTED: &'static str = "text or json";

    fn read(raw: &Value) -> Option<LogFormat> {
        match raw.as_str()? {
            "text" => Some(LogFormat::Text),
            "json" => Some(LogFormat::Json),
            _ => None,
        }
    }

    fn show(value: &LogFormat) -> Option<Value> {
        let name = match value {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        };
        Some(Value::String(name.to_owned()))
    }
}

/// Node ids and their addresses.
pub struct Members;

impl Codec<BTreeMap<u64, Address>> for Members {
    const EXPECTED: &'static str = "node ids from 1 and peer addresses: a table { 1 = \"host:port\", … } or a text \"1=host:port,2=host:port\"";

    fn read(raw: &Value) -> Option<BTreeMap<u64, Address>> {
        let mut members = BTreeMap::new();
        let mut add = |id: &str, address: &str| {
            let id = id.trim().parse::<u64>().ok().filter(|id| *id > 0)?;
            members.insert(id, address.trim().parse().ok()?).is_none().then_some(())
        };
        match raw {
            Value::Table(table) => table.iter().try_for_each(|(id, address)| add(id, address.as_str()?))?,
            Value::String(text) => {
                text.split(',').filter(|part| !part.trim().is_empty()).try_for_each(|part| {
                    let (id, address) = part.split_once('=')?;
                    add(id, address)
                })?
            }
            _ => return None,
        }
        Some(members)
    }

    fn show(value: &BTreeMap<u64, Address>) -> Option<Value> {
        let table = value.iter().map(|(id, address)| (id.to_string(), Value::String(address.to_string())));
        Some(Value::Table(table.collect()))
    }
}

/// A value that need not be set.
pub struct Optional<C>(std::marker::PhantomData<C>);

impl<T, C: Codec<T>> Codec<Option<T>> for Optional<C> {
    const EXPECTED: &'static str = C::EXPECTED;

    fn read(raw: &Value) -> Option<Option<T>> {
        C::read(raw).map(Some)
    }

    fn show(value: &Option<T>) -> Option<Value> {
        value.as_ref().and_then(C::show)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::String(text.to_owned())
    }

    #[test]
    fn sizes_are_read_with_and_without_units_and_shown_in_the_largest_exact_one() {
        assert_eq!(Size::read(&text("64 MiB")), Some(64 << 20));
        assert_eq!(Size::read(&text("3KiB")), Some(3 << 10));
        assert_eq!(Size::read(&text("1_000")), Some(1000));
        assert_eq!(Size::read(&Value::Integer(17)), Some(17));
        assert_eq!(Size::show(&(64 << 20)), Some(text("64 MiB")));
        assert_eq!(Size::show(&1500), Some(Value::Integer(1500)));
        for wrong in ["", "MiB", "64 MB", "-1", "0", "99999999999 TiB"] {
            assert_eq!(Size::read(&text(wrong)), None, "{wrong:?}");
        }
        assert_eq!(Size::read(&Value::Integer(-1)), None);
    }

    #[test]
    fn addresses_keep_names_and_brackets_of_ipv6() {
        for ok in ["127.0.0.1:7400", "[::1]:7400", "db-1.example:80"] {
            assert_eq!(ok.parse::<Address>().map(|address| address.to_string()), Ok(ok.to_owned()));
        }
        for wrong in ["", "host", "host:", ":1", "host:99999", "::1:7400", "[::1:7400", "a b:1"] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn only_addresses_that_cannot_leave_the_machine_are_loopback() {
        for (address, loopback) in [
            ("127.0.0.1:1", true),
            ("127.9.9.9:1", true),
            ("[::1]:1", true),
            ("localhost:1", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
            ("10.0.0.1:1", false),
            ("localhost.example:1", false),
        ] {
            let parsed: Address = address.parse().unwrap();
            assert_eq!(parsed.is_loopback(), loopback, "{address}");
        }
    }

    #[test]
    fn members_are_read_from_tables_and_text_alike() {
        let from_text = Members::read(&text("1=a:1,2=b:2")).unwrap();
        let table = Members::show(&from_text).unwrap();
        assert_eq!(Members::read(&table), Some(from_text));
        for wrong in ["1", "0=a:1", "x=a:1", "1=a", "1=a:1,1=b:2"] {
            assert_eq!(Members::read(&text(wrong)), None, "{wrong:?}");
        }
    }
}
