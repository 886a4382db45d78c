//! `tidemark append`: events from NDJSON into a boundary.

mod import;
mod line;
mod pace;
mod progress;
mod source;

use std::{
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::Args;
use indicatif::ProgressBar;
use tidemark_proto::v1::WriteResult;

pub use import::{ImportOptions, Observer, Order, Tally, import};
pub use line::LineError;
pub use progress::Mismatch;
pub use source::{Batch, Batching, Invalid, Source, batches, prefix};

use self::progress::Progress;
use super::{
    api::Api,
    exit::CliError,
    output::{self, Form, Output},
    signals,
};

/// How often the progress file is written at most: each write is a sync.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Appends events from NDJSON, in order and without doubles
///
/// One event per line:
/// {"event_id":"…","event_type":"…","data":{…},"metadata":{…},"attributes":{"key":"text or integer"}}
/// Only event_type is required. Input may be compressed with gzip. Batches are sent one after another, so that the
/// events of the boundary have the order of the input also when the leader changes in the middle.
///
/// Running the same import again writes nothing twice: each batch has an idempotency key made of the boundary, the
/// source's name, its first line's number and its content. The boundary keeps keys for its idempotency retention
/// (24 hours by default). Use the same --batch again, for other batches have other keys. Standard input without
/// --source is a new source each time.
#[derive(Args, Debug)]
pub struct AppendArgs {
    /// The boundary that gets the events.
    #[arg(long, short)]
    boundary: String,
    /// NDJSON, or - for standard input.
    #[arg(default_value = "-", value_name = "FILE")]
    file: PathBuf,
    /// Events per save.
    #[arg(long, default_value = "100", value_name = "EVENTS")]
    batch: NonZeroUsize,
    /// Faster, but batches may end up in another order. The order within a batch holds.
    #[arg(long)]
    unordered: bool,
    /// Saves in flight.
    #[arg(long, default_value = "16", value_name = "SAVES", requires = "unordered")]
    in_flight: NonZeroUsize,
    /// Name of the source in idempotency keys [default: the file's name without directories].
    #[arg(long, value_name = "NAME")]
    source: Option<String>,
    /// Goes on where the last run with --resume stopped, and notes how far this one gets in FILE.BOUNDARY.progress.
    #[arg(long)]
    resume: bool,
    /// The file for --resume; implies it.
    #[arg(long, value_name = "FILE")]
    progress: Option<PathBuf>,
    /// At most so many events per second.
    #[arg(long, value_name = "EVENTS")]
    rate: Option<NonZeroU32>,
    /// Leaves out lines that are no events, and counts them, instead of stopping.
    #[arg(long)]
    skip_invalid: bool,
    /// How long a batch is repeated while no node answers.
    #[arg(long, default_value = "60", value_name = "SECONDS")]
    patience: u64,
}

/// Runs it.
pub async fn run(api: &dyn Api, args: AppendArgs, output: Output) -> Result<(), CliError> {
    let source = Source::new(&args.file);
    let name = source_name(&args, &source);
    let progress_file = progress_file(&args, &source)?;
    let earlier = resume_point(&args, &source, &name, progress_file.as_deref())?;
    let invalid = if args.skip_invalid { Invalid::Skip } else { Invalid::Stop };
    let batching = Batching { events: args.batch.get(), invalid, skip_lines: earlier };
    let options = ImportOptions {
        boundary: args.boundary.clone(),
        source: name.clone(),
        label: source.label(),
        order: if args.unordered { Order::Free { in_flight: args.in_flight } } else { Order::Kept },
        rate: args.rate,
        patience: Duration::from_secs(args.patience),
    };
    let template = Progress {
        boundary: args.boundary,
        source: name,
        batch: args.batch.get(),
        lines: 0,
        digest: String::new(),
    };
    let mut recorder = Recorder {
        bar: output::progress(None, "events"),
        progress: progress_file.map(|path| (path, template)),
        written: Instant::now(),
    };
    let started = Instant::now();
    let mut tally = Tally::default();
    let receiver = batches(source, batching);
    let result = tokio::select! {
        result = import(api, receiver, &options, &mut tally, &mut recorder) => result,
        () = signals::interrupted() => Err(CliError::Interrupted),
    };
    recorder.bar.finish_and_clear();
    let noted = recorder.note();
    report(output, &tally, earlier, started.elapsed())?;
    result.and(noted)
}

fn source_name(args: &AppendArgs, source: &Source) -> String {
    match (&args.source, source) {
        (Some(name), _) => name.clone(),
        (None, Source::File(path)) => {
            path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
        }
        // Two commands that pipe in the same lines mean to append them twice.
        (None, Source::Stdin) => uuid::Uuid::new_v4().to_string(),
    }
}

fn progress_file(args: &AppendArgs, source: &Source) -> Result<Option<PathBuf>, CliError> {
    if args.progress.is_none() && !args.resume {
        return Ok(None);
    }
    match (&args.progress, source) {
        (_, Source::Stdin) => Err(CliError::Usage("standard input cannot be resumed: give a FILE")),
        (Some(path), Source::File(_)) => Ok(Some(path.clone())),
        (None, Source::File(file)) => {
            let mut path = file.as_os_str().to_owned();
            path.push(format!(".{}.progress", args.boundary));
            Ok(Some(path.into()))
        }
    }
}

/// Lines saved by earlier runs; 0 without a progress file.
fn resume_point(
    args: &AppendArgs,
    source: &Source,
    name: &str,
    file: Option<&std::path::Path>,
) -> Result<u64, CliError> {
    let Some(file) = file else { return Ok(0) };
    let Some(progress) = Progress::read(file)? else { return Ok(0) };
    let prefix = source::prefix(source, progress.lines)?;
    progress
        .check(&args.boundary, name, args.batch.get(), prefix)
        .map_err(|mismatch| CliError::Progress { path: file.to_owned(), mismatch })?;
    Ok(progress.lines)
}

struct Recorder {
    bar: ProgressBar,
    progress: Option<(PathBuf, Progress)>,
    written: Instant,
}

impl Recorder {
    /// Writes the progress file, if something was acknowledged.
    fn note(&mut self) -> Result<(), CliError> {
        self.written = Instant::now();
        match &self.progress {
            Some((path, progress)) if progress.lines > 0 => progress.write(path),
            _ => Ok(()),
        }
    }
}

impl Observer for Recorder {
    fn acknowledged(&mut self, batch: &Batch, _: &WriteResult, tally: &Tally) -> Result<(), CliError> {
        self.bar.set_position(tally.events);
        if let Some((_, progress)) = &mut self.progress {
            progress.lines = batch.end_line;
            progress.digest = batch.prefix_digest.to_hex().to_string();
        }
        if self.progress.is_some() && self.written.elapsed() >= PROGRESS_INTERVAL {
            self.note()
        } else {
            Ok(())
        }
    }
}

fn report(output: Output, tally: &Tally, skipped_lines: u64, elapsed: Duration) -> Result<(), CliError> {
    let seconds = elapsed.as_secs_f64();
    let per_second = tally.events as f64 / seconds.max(0.001);
    match output.form() {
        Form::Json => output.json(&serde_json::json!({
            "events": tally.events, "batches": tally.batches, "already_applied": tally.already_applied,
            "invalid_lines": tally.invalid, "skipped_lines": skipped_lines, "retries": tally.retries,
            "seconds": seconds, "events_per_second": per_second,
        })),
        Form::Human => {
            let mut text = format!(
                "{} events in {seconds:.1} s ({} per second)",
                output::grouped(tally.events),
                output::grouped(per_second as u64)
            );
            let counted = [
                (tally.already_applied, "already applied"),
                (tally.invalid, "invalid lines left out"),
                (skipped_lines, "lines of earlier runs skipped"),
                (tally.retries, "attempts repeated"),
            ];
            for (number, what) in counted.iter().filter(|(number, _)| *number > 0) {
                text.push_str(&format!(", {} {what}", output::grouped(*number)));
            }
            output.line(text)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: AppendArgs,
    }

    fn args(line: &[&str]) -> Result<AppendArgs, clap::Error> {
        use clap::Parser;
        let words = ["append", "--boundary", "b"].iter().chain(line);
        Command::try_parse_from(words).map(|command| command.args)
    }

    #[test]
    fn saves_in_flight_need_unordered() {
        assert!(args(&["--in-flight", "4"]).is_err());
        assert!(args(&["--in-flight", "4", "--unordered"]).is_ok());
    }

    #[test]
    fn a_file_is_its_own_source_and_standard_input_a_new_one_each_time() {
        let file = args(&["/data/flights.ndjson.gz"]).unwrap();
        assert_eq!(source_name(&file, &Source::new(&file.file)), "flights.ndjson.gz");
        let stdin = args(&[]).unwrap();
        let names = [source_name(&stdin, &Source::Stdin), source_name(&stdin, &Source::Stdin)];
        assert_ne!(names[0], names[1]);
        let named = args(&["--source", "feed"]).unwrap();
        assert_eq!(source_name(&named, &Source::Stdin), "feed");
    }

    #[test]
    fn resumption_goes_on_after_the_lines_saved_and_refuses_a_changed_input() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        let mut input = std::fs::File::create(&file).unwrap();
        input.write_all(b"one\ntwo\nthree\n").unwrap();
        let args = args(&["--resume", file.to_str().unwrap()]).unwrap();
        let source = Source::new(&args.file);
        let path = progress_file(&args, &source).unwrap().unwrap();
        assert_eq!(path, dir.path().join("f.b.progress"));
        assert_eq!(resume_point(&args, &source, "f", Some(&path)).unwrap(), 0);
        let digest = blake3::hash(b"one\ntwo\n").to_hex().to_string();
        let progress =
            Progress { boundary: "b".to_owned(), source: "f".to_owned(), batch: 100, lines: 2, digest };
        progress.write(&path).unwrap();
        assert_eq!(resume_point(&args, &source, "f", Some(&path)).unwrap(), 2);
        std::fs::write(&file, "one\nTWO\nthree\n").unwrap();
        let error = resume_point(&args, &source, "f", Some(&path)).unwrap_err().to_string();
        assert!(error.contains("first 2 lines are not the ones of this input"), "{error}");
    }

    #[test]
    fn standard_input_cannot_be_resumed() {
        let args = args(&["--resume"]).unwrap();
        assert!(progress_file(&args, &Source::Stdin).is_err());
    }
}
