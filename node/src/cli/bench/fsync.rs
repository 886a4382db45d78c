//! What a durable write costs here: the floor under every latency that a bench reports.

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::cli::exit::CliError;

const BLOCK_BYTES: usize = 4096;
const ROUNDS: usize = 200;

/// On a very slow disk fewer rounds must do.
const LONGEST: Duration = Duration::from_secs(5);

/// The median time of a 4 KiB append with `fdatasync` in `directory`.
pub async fn probe(directory: &Path) -> Result<Duration, CliError> {
    let path = directory.join("fsync-probe");
    let failed =
        |path: PathBuf| move |source: io::Error| CliError::File { what: "measure syncs in", path, source };
    let measured = path.clone();
    let result = tokio::task::spawn_blocking(move || measure(&measured)).await;
    result.map_err(io::Error::other).and_then(|times| times).map_err(failed(path))
}

fn measure(path: &Path) -> io::Result<Duration> {
    let mut file = File::create(path)?;
    let block = [0x5a; BLOCK_BYTES];
    let mut times = Vec::with_capacity(ROUNDS);
    let started = Instant::now();
    while times.len() < ROUNDS && (times.is_empty() || started.elapsed() < LONGEST) {
        let before = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        times.push(before.elapsed());
    }
    times.sort_unstable();
    std::fs::remove_file(path)?;
    Ok(times[times.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_probe_leaves_nothing_behind() {
        let directory = tempfile::tempdir().unwrap();
        assert!(probe(directory.path()).await.unwrap() > Duration::ZERO);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        assert!(probe(&directory.path().join("missing")).await.is_err());
    }
}
