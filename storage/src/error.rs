//! Faults of the storage: what failed, on which file or directory, and what a person can do.
//!
//! Every one of them stops a node's writing. Absence of a key is a value, not an error.

use std::{
    error::Error as StdError,
    io,
    path::{Path, PathBuf},
};

/// The result of an operation of the storage.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The engine's or the operating system's own error.
pub type Source = Box<dyn StdError + Send + Sync>;

/// Why an operation of the storage failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system or the engine could not read or write.
    #[error("cannot {action} {}: check the disk and the permissions, then restart the node", path.display())]
    Io {
        /// What was being done, as a verb phrase.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Source,
    },
    /// The disk, the quota or the shared memory is full.
    #[error("no space left to {action} {}: free space there, then restart the node", path.display())]
    NoSpace {
        /// What was being done, as a verb phrase.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Source,
    },
    /// Stored bytes are not what was written, or not what any release writes.
    #[error("{damage} in {}: replace this member, or restore the directory from a backup", path.display())]
    Corruption {
        /// What is wrong.
        damage: Damage,
        /// The file or directory.
        path: PathBuf,
        /// The cause, where the engine noticed it.
        #[source]
        source: Option<Source>,
    },
    /// The directory holds a format that this build cannot open.
    #[error(
        "{} has format {found}, this release supports formats {oldest} to {newest}: open it with release {release} or later{}",
        path.display(),
        if *found < *oldest { " that still reads it" } else { "" }
    )]
    Unsupported {
        /// The file or directory.
        path: PathBuf,
        /// The format that was found.
        found: u32,
        /// The oldest format that this build opens.
        oldest: u32,
        /// The newest format that this build opens.
        newest: u32,
        /// The first release that can read the format found.
        release: String,
    },
    /// The caller or the operator asked for something that cannot be done.
    #[error(transparent)]
    Usage(#[from] Usage),
}

/// What is wrong with stored bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The engine's own structure or checksum does not hold.
    #[error("damaged {0} structure")]
    Structure(&'static str),
    /// The checksum of a row does not match it.
    #[error("wrong checksum of the row {}", HexKey(.0))]
    RowChecksum(Vec<u8>),
    /// A row does not have the layout of its table.
    #[error("malformed {table} row of {length} bytes")]
    Row {
        /// The table, as in [`crate::tables`].
        table: &'static str,
        /// The length of the malformed part.
        length: usize,
    },
    /// The row that names the format is missing.
    #[error("missing format row")]
    NoFormat,
}

/// Prints at most 40 bytes of a key.
struct HexKey<'a>(&'a [u8]);

impl std::fmt::Display for HexKey<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = &self.0[..self.0.len().min(40)];
        shown.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        if shown.len() < self.0.len() { write!(f, "… ({} bytes)", self.0.len()) } else { Ok(()) }
    }
}

/// A request that cannot be done as asked.
#[derive(Debug, thiserror::Error)]
pub enum Usage {
    /// A database is created only where nothing is.
    #[error("cannot create a database in {}: it is not empty; open it, or choose another directory", .0.display())]
    NotEmpty(PathBuf),
    /// There is no database to open.
    #[error("cannot open {}: there is no {engine} database; create it, or choose another directory", path.display())]
    NoDatabase {
        /// The directory.
        path: PathBuf,
        /// The engine that was asked for.
        engine: &'static str,
    },
    /// Another process, or another part of this one, has the database open.
    #[error("cannot open {}: it is open elsewhere; stop the process that uses it", .0.display())]
    InUse(PathBuf),
    /// The engine's name is unknown or it was not compiled in.
    #[error("unknown storage engine {name}: this build has {}", if .available.is_empty() { "none".into() } else { .available.join(", ") })]
    UnknownEngine {
        /// The name asked for.
        name: String,
        /// The engines of this build.
        available: &'static [&'static str],
    },
    /// `bulk_load` needs an empty database.
    #[error("cannot bulk load into {}: it already holds rows; create a fresh database", .0.display())]
    LoadIntoRows(PathBuf),
    /// `bulk_load` needs strictly ascending keys.
    #[error("cannot bulk load into {}: key number {index} does not ascend; sort the pairs", path.display())]
    LoadUnsorted {
        /// The directory.
        path: PathBuf,
        /// The zero-based place of the offending pair.
        index: u64,
    },
    /// The source of the pairs of a `bulk_load` failed.
    #[error("cannot bulk load: the source of the rows failed; repeat it with a fresh database")]
    LoadSource(#[source] Source),
    /// The database was lost in a simulated crash; open it again.
    #[error("the database in {} was lost in a crash: open it again", .0.display())]
    Crashed(PathBuf),
    /// A numeric field is larger than `i64::MAX`.
    #[error("{field} {value} is above the largest allowed value {}", i64::MAX)]
    OutOfRange {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

/// The kinds of [`Error`], for metrics and exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// [`Error::Io`].
    Io,
    /// [`Error::NoSpace`].
    NoSpace,
    /// [`Error::Corruption`].
    Corruption,
    /// [`Error::Unsupported`].
    Unsupported,
    /// [`Error::Usage`].
    Usage,
}

impl Error {
    /// The kind of this error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { .. } => ErrorKind::Io,
            Self::NoSpace { .. } => ErrorKind::NoSpace,
            Self::Corruption { .. } => ErrorKind::Corruption,
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::Usage(_) => ErrorKind::Usage,
        }
    }

    /// An operating-system error, told apart by whether space ran out.
    pub fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        let full = matches!(
            source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
        );
        let (path, source) = (path.to_path_buf(), source.into());
        if full { Self::NoSpace { action, path, source } } else { Self::Io { action, path, source } }
    }

    /// A row that does not have the layout of its table.
    ///
    /// The bytes came out of a database whose checksums held, so there is no file to name.
    pub fn malformed(table: &'static str, length: usize) -> Self {
        Self::Corruption {
            damage: Damage::Row { table, length },
            path: PathBuf::from("the database"),
            source: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_from_other_faults() {
        let path = Path::new("/data/kv");
        let full = Error::io("write", path, io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!(full.kind(), ErrorKind::NoSpace);
        assert_eq!(
            full.to_string(),
            "no space left to write /data/kv: free space there, then restart the node"
        );
        let denied = Error::io("write", path, io::Error::from(io::ErrorKind::PermissionDenied));
        assert_eq!(denied.kind(), ErrorKind::Io);
        assert!(denied.source().is_some());
    }

    #[test]
    fn a_refused_format_names_both_versions_and_the_release() {
        let error = Error::Unsupported {
            path: "/data/kv".into(),
            found: 7,
            oldest: 1,
            newest: 2,
            release: "1.4.0".to_owned(),
        };
        assert_eq!(
            error.to_string(),
            "/data/kv has format 7, this release supports formats 1 to 2: open it with release 1.4.0 or later"
        );
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn a_long_key_is_shortened_in_messages() {
        let message = Damage::RowChecksum(vec![0xab; 100]).to_string();
        assert!(message.ends_with("… (100 bytes)"), "{message}");
        assert_eq!(Damage::RowChecksum(vec![0, 0xff]).to_string(), "wrong checksum of the row 00ff");
    }
}
