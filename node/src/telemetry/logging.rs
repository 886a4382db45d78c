//! Structured logs on standard error.

use std::io::IsTerminal;

use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use crate::config::{LogConfig, LogFormat};

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    /// The filter cannot be parsed.
    #[error("log.level {filter:?} is no level or filter")]
    Filter {
        /// As configured.
        filter: String,
        /// Why.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// Something else in this process has set up logging.
    #[error("logging is set up already")]
    AlreadySet(#[from] tracing_subscriber::util::TryInitError),
}

/// Sends the logs of this process to standard error, in the configured form. Once per process.
pub fn init(config: &LogConfig) -> Result<(), LoggingError> {
    let filter = EnvFilter::try_new(&config.level)
        .map_err(|source| LoggingError::Filter { filter: config.level.clone(), source })?;
    let registry = tracing_subscriber::registry().with(filter);
    match config.format {
        LogFormat::Text => {
            let layer = fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
            registry.with(layer).try_init()?;
        }
        LogFormat::Json => {
            let layer = fmt::layer().json().flatten_event(true).with_writer(std::io::stderr);
            registry.with(layer).try_init()?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_cannot_be_parsed_is_refused() {
        let config = LogConfig { level: "a=b=c".to_owned(), ..LogConfig::default() };
        assert!(matches!(init(&config), Err(LoggingError::Filter { .. })));
    }
}
