//! How the command ends: its errors and its exit codes.

use std::{path::PathBuf, process::ExitCode};

use tidemark_client::Error;

use super::{api::may_succeed_later, processes::ProcessError};
use crate::config::ConfigError;

/// What `tidemark --help` says about exit codes.
pub const EXIT_CODES: &str = "\
Exit codes:
    0  done
    1  failed: the request was refused, a check did not hold, input is wrong, or the server cannot start
    2  usage: the command line or the configuration is wrong
    3  unavailable: no node answered in time, or the outcome is unknown
    4  fault: the server stopped because of its disk or its data; its log says more
  130  interrupted";

/// Why a command did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The server refused, or could not be reached.
    #[error(transparent)]
    Client(#[from] Error),
    /// The configuration is not accepted.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A flag or argument makes no sense.
    #[error("{0}")]
    Usage(&'static str),
    /// Reading or writing a file failed.
    #[error("cannot {what} {}: {source}", path.display())]
    File {
        /// What was being done to it.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Standard output failed.
    #[error("cannot write to standard output: {0}")]
    Output(#[source] std::io::Error),
    /// A line of the input is no event.
    #[error("{place}: {reason}")]
    Line {
        /// `file:line`.
        place: String,
        /// What is wrong with it.
        reason: super::append::LineError,
    },
    /// The server refused an event of the input.
    #[error("{place}: {source}")]
    EventRefused {
        /// `file:line`.
        place: String,
        /// Why.
        #[source]
        source: Error,
    },
    /// The progress file belongs to something else.
    #[error("the progress file {} {mismatch}", path.display())]
    Progress {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        mismatch: super::append::Mismatch,
    },
    /// A child process could not be run.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// Something that was waited for did not happen.
    #[error("{what} did not happen within {seconds} s")]
    TimedOut {
        /// What was waited for.
        what: &'static str,
        /// For how long.
        seconds: u64,
    },
    /// A check found something wrong; the report was printed.
    #[error("{0}")]
    CheckFailed(&'static str),
    /// The server could not start.
    #[error("the server cannot start: {0}")]
    Start(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The server stopped because of a fault.
    #[error("the server stopped because of a fault: {0}")]
    Fault(String),
    /// Logging could not be set up.
    #[error(transparent)]
    Logging(#[from] crate::telemetry::logging::LoggingError),
    /// A runtime or a signal handler could not be made.
    #[error("cannot {what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Ctrl-C or SIGTERM.
    #[error("interrupted")]
    Interrupted,
}

impl CliError {
    /// The exit code, as [`EXIT_CODES`] documents it.
    pub fn code(&self) -> u8 {
        match self {
            Self::Client(Error::InvalidAddress { .. } | Error::NoAddress) => 2,
            Self::Client(error) | Self::EventRefused { source: error, .. } if may_succeed_later(error) => 3,
            Self::Config(_) | Self::Usage(_) => 2,
            Self::TimedOut { .. } => 3,
            Self::Fault(_) => 4,
            Self::Interrupted => 130,
            Self::Client(_)
            | Self::EventRefused { .. }
            | Self::File { .. }
            | Self::Output(_)
            | Self::Line { .. }
            | Self::Progress { .. }
            | Self::Process(_)
            | Self::CheckFailed(_)
            | Self::Start(_)
            | Self::Logging(_)
            | Self::System { .. } => 1,
        }
    }

    /// Reports the error on standard error and gives the exit code. A reader that closed our output, as `head`
    /// does, has what it wanted: that is no error.
    #[expect(clippy::print_stderr, reason = "the command's own error message")]
    pub fn report(&self) -> ExitCode {
        match self {
            Self::Output(source) if source.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            _ => {
                eprintln!("tidemark: {self}");
                ExitCode::from(self.code())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tidemark_proto::ApiError;

    use super::*;

    #[test]
    fn refusals_fail_and_silence_is_unavailable() {
        let unknown = ApiError::BoundaryUnknown { boundary: "b".to_owned() };
        assert_eq!(CliError::Client(unknown.into()).code(), 1);
        assert_eq!(CliError::Client(Error::Unavailable { last: None }).code(), 3);
        let key = "k".to_owned();
        assert_eq!(CliError::Client(Error::OutcomeUnknown { idempotency_key: key }).code(), 3);
        assert_eq!(CliError::Client(Error::NoAddress).code(), 2);
        assert_eq!(CliError::Usage("x").code(), 2);
        assert_eq!(CliError::Fault("disk".to_owned()).code(), 4);
    }
}
