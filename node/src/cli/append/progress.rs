//! The progress file: how far an import got, so that the next run goes on from there.
//!
//! It may lag behind what was saved, never run ahead of it: what it lacks is sent again under the same idempotency
//! keys and reported as already applied.

use std::{
    fs::{self, File},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::source::Prefix;
use crate::cli::exit::CliError;

/// What a progress file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// The boundary that is written.
    pub boundary: String,
    /// The name of the source.
    pub source: String,
    /// Events per save: batches of another size would have other idempotency keys.
    pub batch: usize,
    /// Lines saved, from the first one on without a gap.
    pub lines: u64,
    /// BLAKE3 of these lines, in hexadecimal digits.
    pub digest: String,
}

/// Why an import cannot go on from a progress file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// Of another boundary.
    #[error("is about boundary {0:?}: name another file")]
    Boundary(String),
    /// Of another source.
    #[error("is about source {0:?}: name another file")]
    Source(String),
    /// Of another batch size.
    #[error(
        "was written with --batch {0}: use the same, or events in flight when it stopped may be saved twice"
    )]
    Batch(usize),
    /// The lines that were saved are not the lines of the input.
    #[error("is about an input whose first {0} lines are not the ones of this input: it changed since")]
    Input(u64),
}

impl Progress {
    /// The file's content; nothing when there is no file.
    pub fn read(path: &Path) -> Result<Option<Self>, CliError> {
        let failed =
            |source| CliError::File { what: "read the progress file", path: path.to_owned(), source };
        match fs::read(path) {
            Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| failed(error.into())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// Replaces the file as a whole: a crash leaves the old or the new content.
    pub fn write(&self, path: &Path) -> Result<(), CliError> {
        let failed =
            |source| CliError::File { what: "write the progress file", path: path.to_owned(), source };
        let mut staged = path.as_os_str().to_owned();
        staged.push(".new");
        let staged = PathBuf::from(staged);
        let text = serde_json::to_vec(self).map_err(|error| failed(error.into()))?;
        let write = || {
            let mut file = File::create(&staged)?;
            file.write_all(&text)?;
            file.sync_data()?;
            fs::rename(&staged, path)
        };
        write().map_err(failed)
    }

    /// Whether an import of this kind may go on from here; `prefix` is what the input has in the lines saved.
    pub fn check(&self, boundary: &str, source: &str, batch: usize, prefix: Prefix) -> Result<(), Mismatch> {
        if self.boundary != boundary {
            return Err(Mismatch::Boundary(self.boundary.clone()));
        }
        if self.source != source {
            return Err(Mismatch::Source(self.source.clone()));
        }
        if self.batch != batch {
            return Err(Mismatch::Batch(self.batch));
        }
        if prefix.lines != self.lines || prefix.digest.to_hex().as_str() != self.digest {
            return Err(Mismatch::Input(self.lines));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress() -> Progress {
        Progress {
            boundary: "b".to_owned(),
            source: "s".to_owned(),
            batch: 2,
            lines: 4,
            digest: blake3::hash(b"x").to_hex().to_string(),
        }
    }

    #[test]
    fn a_written_file_is_read_back_and_a_missing_one_is_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p");
        assert_eq!(Progress::read(&path).unwrap(), None);
        progress().write(&path).unwrap();
        assert_eq!(Progress::read(&path).unwrap(), Some(progress()));
        fs::write(&path, "{").unwrap();
        assert!(Progress::read(&path).is_err());
    }

    #[test]
    fn only_the_same_import_goes_on() {
        let prefix = Prefix { lines: 4, digest: blake3::hash(b"x") };
        let progress = progress();
        assert_eq!(progress.check("b", "s", 2, prefix), Ok(()));
        assert_eq!(progress.check("c", "s", 2, prefix), Err(Mismatch::Boundary("b".to_owned())));
        assert_eq!(progress.check("b", "t", 2, prefix), Err(Mismatch::Source("s".to_owned())));
        assert_eq!(progress.check("b", "s", 3, prefix), Err(Mismatch::Batch(2)));
        let changed = Prefix { digest: blake3::hash(b"y"), ..prefix };
        assert_eq!(progress.check("b", "s", 2, changed), Err(Mismatch::Input(4)));
        assert_eq!(progress.check("b", "s", 2, Prefix { lines: 3, ..prefix }), Err(Mismatch::Input(4)));
    }
}
