//! Batches of events from a file or standard input, in order.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use flate2::bufread::MultiGzDecoder;
use tidemark_proto::v1::EventToSave;
use tokio::sync::mpsc;

use super::line::{self, LineError};
use crate::cli::exit::CliError;

/// Longer lines cannot be events of any sensible configuration; a bound keeps a file that is no NDJSON from filling
/// the memory.
const MAX_LINE_BYTES: usize = 64 << 20;

/// A batch is closed at this size, so that large events stay below what a server takes in one save.
const MAX_BATCH_BYTES: usize = 4 << 20;

/// Batches read ahead of the ones that are being saved.
const READ_AHEAD: usize = 16;

/// Where the events come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file, compressed with gzip or not.
    File(PathBuf),
    /// Standard input, likewise.
    Stdin,
}

impl Source {
    /// `-` means standard input.
    pub fn new(path: &Path) -> Self {
        if path == Path::new("-") { Self::Stdin } else { Self::File(path.to_owned()) }
    }

    /// What stands before a line number in messages.
    pub fn label(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Stdin => "stdin".to_owned(),
        }
    }

    /// Opens it; compression is told from the first bytes.
    pub fn open(&self) -> Result<Box<dyn BufRead + Send>, CliError> {
        let failed = |source| CliError::File { what: "read", path: PathBuf::from(self.label()), source };
        let mut raw: Box<dyn BufRead + Send> = match self {
            Self::File(path) => {
                Box::new(BufReader::with_capacity(1 << 16, File::open(path).map_err(failed)?))
            }
            Self::Stdin => Box::new(BufReader::new(io::stdin())),
        };
        let compressed = raw.fill_buf().map_err(failed)?.starts_with(&[0x1f, 0x8b]);
        Ok(if compressed {
            Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(raw)))
        } else {
            raw
        })
    }
}

/// What to do with lines that are no events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// Stop at the first one.
    Stop,
    /// Leave them out and count them.
    Skip,
}

/// How lines become batches.
#[derive(Clone, Copy, Debug)]
pub struct Batching {
    /// Events in one batch.
    pub events: usize,
    /// What to do with other lines.
    pub invalid: Invalid,
    /// Lines that were saved earlier.
    pub skip_lines: u64,
}

/// Events that are saved together.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Empty only in a last batch that reports invalid lines and nothing else.
    pub events: Vec<EventToSave>,
    /// The line of each event, from 1.
    pub lines: Vec<u64>,
    /// Lines consumed up to and including this batch, empty and invalid ones counted.
    pub end_line: u64,
    /// BLAKE3 of the lines of this batch.
    pub digest: blake3::Hash,
    /// BLAKE3 of all lines from the first one to `end_line`; tells a file that changed since it was imported.
    pub prefix_digest: blake3::Hash,
    /// Invalid lines left out before and within this batch.
    pub invalid: u64,
}

/// Reads batches on a thread of its own; the reader stops when the receiver is dropped.
pub fn batches(source: Source, batching: Batching) -> mpsc::Receiver<Result<Batch, CliError>> {
    let (sender, receiver) = mpsc::channel(READ_AHEAD);
    tokio::task::spawn_blocking(move || {
        let result = source.open().and_then(|reader| {
            let mut batcher = Batcher::new(source.label(), batching);
            batcher.run(reader, |batch| sender.blocking_send(Ok(batch)).is_ok())
        });
        if let Err(error) = result {
            // Nobody is left to tell when the receiver is gone.
            let _ = sender.blocking_send(Err(error));
        }
    });
    receiver
}

/// What was read before the first batch, for a resumed import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// Lines that there were, at most as many as asked for.
    pub lines: u64,
    /// BLAKE3 of them.
    pub digest: blake3::Hash,
}

/// Reads the first `lines` lines and gives their digest.
pub fn prefix(source: &Source, lines: u64) -> Result<Prefix, CliError> {
    let mut reader = source.open()?;
    let (mut hasher, mut line, mut read) = (blake3::Hasher::new(), Vec::new(), 0);
    while read < lines && next_line(&mut reader, &mut line, &source.label(), read + 1)? {
        hasher.update(&line);
        read += 1;
    }
    Ok(Prefix { lines: read, digest: hasher.finalize() })
}

struct Batcher {
    label: String,
    batching: Batching,
    number: u64,
    invalid: u64,
    bytes: usize,
    events: Vec<EventToSave>,
    lines: Vec<u64>,
    hasher: blake3::Hasher,
    prefix: blake3::Hasher,
}

impl Batcher {
    fn new(label: String, batching: Batching) -> Self {
        Self {
            label,
            batching,
            number: 0,
            invalid: 0,
            bytes: 0,
            events: Vec::new(),
            lines: Vec::new(),
            hasher: blake3::Hasher::new(),
            prefix: blake3::Hasher::new(),
        }
    }

    /// Ends early, without an error, when `yield_batch` returns false.
    fn run(
        &mut self,
        mut reader: impl BufRead,
        mut yield_batch: impl FnMut(Batch) -> bool,
    ) -> Result<(), CliError> {
        let mut line = Vec::new();
        while next_line(&mut reader, &mut line, &self.label, self.number + 1)? {
            self.number += 1;
            self.prefix.update(&line);
            if self.number <= self.batching.skip_lines || line.trim_ascii().is_empty() {
                continue;
            }
            self.push(&line)?;
            if (self.events.len() == self.batching.events || self.bytes >= MAX_BATCH_BYTES)
                && !yield_batch(self.close())
            {
                return Ok(());
            }
        }
        if !self.events.is_empty() || self.invalid > 0 {
            yield_batch(self.close());
        }
        Ok(())
    }

    fn push(&mut self, line: &[u8]) -> Result<(), CliError> {
        match (line::parse(line), self.batching.invalid) {
            (Ok(event), _) => {
                self.events.push(event);
                self.lines.push(self.number);
                self.hasher.update(line);
                self.bytes += line.len();
            }
            (Err(_), Invalid::Skip) => self.invalid += 1,
            (Err(reason), Invalid::Stop) => {
                return Err(CliError::Line { place: format!("{}:{}", self.label, self.number), reason });
            }
        }
        Ok(())
    }

    fn close(&mut self) -> Batch {
        self.bytes = 0;
        let digest = self.hasher.finalize();
        self.hasher.reset();
        Batch {
            events: std::mem::take(&mut self.events),
            lines: std::mem::take(&mut self.lines),
            end_line: self.number,
            digest,
            prefix_digest: self.prefix.finalize(),
            invalid: std::mem::take(&mut self.invalid),
        }
    }
}

/// The next line with its end; false at the end of the input.
fn next_line(
    reader: &mut impl BufRead,
    line: &mut Vec<u8>,
    label: &str,
    number: u64,
) -> Result<bool, CliError> {
    line.clear();
    let mut bounded = reader.by_ref().take(MAX_LINE_BYTES as u64 + 1);
    bounded.read_until(b'\n', line).map_err(|source| CliError::File {
        what: "read",
        path: PathBuf::from(label),
        source,
    })?;
    if line.len() > MAX_LINE_BYTES {
        let place = format!("{label}:{number}");
        return Err(CliError::Line { place, reason: LineError::TooLong(MAX_LINE_BYTES) });
    }
    Ok(!line.is_empty())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn event(id: u32) -> String {
        format!("{{\"event_id\":\"e{id}\",\"event_type\":\"T\"}}\n")
    }

    fn run(text: &str, batching: Batching) -> (Vec<Batch>, Result<(), CliError>) {
        let mut batches = Vec::new();
        let mut batcher = Batcher::new("f".to_owned(), batching);
        let result = batcher.run(text.as_bytes(), |batch| {
            batches.push(batch);
            true
        });
        (batches, result)
    }

    const PAIRS: Batching = Batching { events: 2, invalid: Invalid::Stop, skip_lines: 0 };

    #[test]
    fn batches_keep_order_and_know_their_lines() {
        let text = format!("{}\n{}{}{}", event(1), event(2), event(3), event(4).trim_end());
        let (batches, result) = run(&text, PAIRS);
        result.unwrap();
        let lines: Vec<_> = batches.iter().map(|batch| (batch.lines.clone(), batch.end_line)).collect();
        assert_eq!(lines, [(vec![1, 3], 3), (vec![4, 5], 5)]);
        assert_ne!(batches[0].digest, batches[1].digest);
        assert_eq!(batches[1].prefix_digest, blake3::hash(text.as_bytes()));
    }

    #[test]
    fn a_bad_line_stops_with_its_place_and_its_batch_is_held_back() {
        let text = format!("{}{}{}not json\n", event(1), event(2), event(3));
        let (batches, result) = run(&text, PAIRS);
        assert_eq!(batches.len(), 1, "the batch of the bad line must not be sent in part");
        assert!(result.unwrap_err().to_string().starts_with("f:4: expected"));
    }

    #[test]
    fn bad_lines_can_be_left_out_and_are_counted() {
        let text = format!("x\n{}y\n{}", event(1), event(2));
        let (batches, result) = run(&text, Batching { invalid: Invalid::Skip, ..PAIRS });
        result.unwrap();
        assert_eq!((batches[0].invalid, batches[0].lines.clone()), (2, vec![2, 4]));
    }

    #[test]
    fn bad_lines_after_the_last_event_are_counted() {
        let text = format!("{}{}y\n", event(1), event(2));
        let (batches, result) = run(&text, Batching { invalid: Invalid::Skip, ..PAIRS });
        result.unwrap();
        assert_eq!(
            batches.iter().map(|batch| (batch.events.len(), batch.invalid)).collect::<Vec<_>>(),
            [(2, 0), (0, 1)]
        );
    }

    #[test]
    fn skipped_lines_are_part_of_the_prefix_only() {
        let text = [event(1), event(2), event(3), event(4)].concat();
        let (all, _) = run(&text, PAIRS);
        let (rest, _) = run(&text, Batching { skip_lines: 2, ..PAIRS });
        assert_eq!(rest, all[1..]);
    }

    #[test]
    fn compressed_files_are_recognised_by_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events");
        let mut encoder =
            flate2::write::GzEncoder::new(File::create(&path).unwrap(), flate2::Compression::fast());
        encoder.write_all(event(1).as_bytes()).unwrap();
        encoder.finish().unwrap();
        let found = prefix(&Source::File(path), 10).unwrap();
        assert_eq!(found, Prefix { lines: 1, digest: blake3::hash(event(1).as_bytes()) });
    }
}
