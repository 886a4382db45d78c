//! `tidemark boundary`: namespaces, each with one ordered log.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;
use tidemark_proto::{
    ApiError,
    v1::{Boundary, BoundaryDefinition, BoundaryState},
};
use tokio::time::{Instant, sleep};

use super::{
    api::Api,
    exit::CliError,
    output::{Form, Output, Table, Tone},
};

const POLL: Duration = Duration::from_millis(50);

/// Boundaries: namespaces, each with one ordered log.
#[derive(Subcommand, Debug)]
pub enum BoundaryCommand {
    /// Creates a boundary and waits until it takes events. The same name and definition again is no error.
    Create(CreateArgs),
    /// Lists all boundaries.
    List,
}

/// The definition of a new boundary.
#[derive(Args, Debug)]
pub struct CreateArgs {
    /// Letters, digits and underscores, at most 63, not beginning with a digit.
    name: String,
    /// What it is for.
    #[arg(long, default_value = "")]
    description: String,
    /// Width of the time buckets of positions; cannot be changed later.
    #[arg(long, default_value_t = 1, value_name = "MILLISECONDS")]
    time_bucket_ms: u64,
    /// How long idempotency keys are kept, for example 12h or 30m.
    #[arg(long, default_value = "24h", value_name = "DURATION", value_parser = parse_duration)]
    idempotency_retention: Duration,
    /// How long to wait until it takes events.
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    wait: u64,
}

/// Runs it.
pub async fn run(api: &dyn Api, command: BoundaryCommand, output: Output) -> Result<(), CliError> {
    match command {
        BoundaryCommand::Create(args) => create(api, args, output).await,
        BoundaryCommand::List => list(api, output).await,
    }
}

async fn create(api: &dyn Api, args: CreateArgs, output: Output) -> Result<(), CliError> {
    let definition = BoundaryDefinition {
        name: args.name,
        description: args.description,
        time_bucket_ms: args.time_bucket_ms,
        idempotency_retention_ms: args.idempotency_retention.as_millis() as u64,
        ..BoundaryDefinition::default()
    };
    let boundary = create_and_wait(api, definition, Duration::from_secs(args.wait)).await?;
    match output.form() {
        Form::Json => output.json(&as_json(&boundary)),
        Form::Human => {
            output.line(format!("boundary {} is {}", name(&boundary), state_name(boundary.state())))
        }
    }
}

/// Creates a boundary and waits until it is active.
///
/// # Errors
/// The server refuses it, cannot provision it, or does not in time.
pub async fn create_and_wait(
    api: &dyn Api,
    definition: BoundaryDefinition,
    wait: Duration,
) -> Result<Boundary, CliError> {
    let wanted = definition.name.clone();
    let give_up = Instant::now() + wait;
    let mut boundary = api.create_boundary(definition).await?;
    loop {
        match boundary.state() {
            BoundaryState::Active => return Ok(boundary),
            BoundaryState::Failed => {
                let failed = ApiError::BoundaryFailed { boundary: wanted, failure: boundary.failure };
                return Err(CliError::Client(failed.into()));
            }
            BoundaryState::Provisioning | BoundaryState::Inactive | BoundaryState::Unspecified => {}
        }
        if Instant::now() >= give_up {
            return Err(CliError::TimedOut {
                what: "the activation of the boundary",
                seconds: wait.as_secs(),
            });
        }
        sleep(POLL).await;
        let found = api.list_boundaries().await?.into_iter().find(|found| name(found) == wanted);
        boundary = found.unwrap_or(boundary);
    }
}

async fn list(api: &dyn Api, output: Output) -> Result<(), CliError> {
    let boundaries = api.list_boundaries().await?;
    if output.form() == Form::Json {
        return output.json(&boundaries.iter().map(as_json).collect::<Vec<_>>());
    }
    let mut table = Table::new(["name", "state", "bucket ms", "idempotency", "description"]).numeric([2]);
    for boundary in &boundaries {
        let definition = boundary.definition.clone().unwrap_or_default();
        table.row([
            definition.name,
            state_name(boundary.state()).to_owned(),
            definition.time_bucket_ms.max(1).to_string(),
            super::output::duration_ms(retention_ms(definition.idempotency_retention_ms)),
            if boundary.failure.is_empty() { definition.description } else { boundary.failure.clone() },
        ]);
    }
    if boundaries.is_empty() {
        return output.line(output.paint(Tone::Warning, "no boundaries: tidemark boundary create NAME"));
    }
    table.print(&output)
}

/// 0 on the wire means a day.
fn retention_ms(on_wire: u64) -> u64 {
    if on_wire == 0 { 86_400_000 } else { on_wire }
}

fn name(boundary: &Boundary) -> &str {
    boundary.definition.as_ref().map_or("", |definition| definition.name.as_str())
}

fn state_name(state: BoundaryState) -> &'static str {
    match state {
        BoundaryState::Unspecified => "unknown",
        BoundaryState::Provisioning => "provisioning",
        BoundaryState::Active => "active",
        BoundaryState::Failed => "failed",
        BoundaryState::Inactive => "inactive",
    }
}

fn as_json(boundary: &Boundary) -> serde_json::Value {
    let definition = boundary.definition.clone().unwrap_or_default();
    json!({
        "name": definition.name,
        "description": definition.description,
        "state": state_name(boundary.state()),
        "time_bucket_ms": definition.time_bucket_ms.max(1),
        "idempotency_retention_ms": retention_ms(definition.idempotency_retention_ms),
        "incarnation": boundary.incarnation,
        "failure": boundary.failure,
    })
}

/// The text is no duration.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("use a whole number with ms, s, m, h or d, for example 12h")]
pub struct DurationError;

fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let split = text.find(|c: char| !c.is_ascii_digit()).ok_or(DurationError)?;
    let (number, unit) = text.split_at(split);
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(DurationError),
    };
    let ms = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_ms));
    ms.filter(|ms| *ms > 0).map(Duration::from_millis).ok_or(DurationError)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration("12h"), Ok(Duration::from_secs(12 * 3600)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        for wrong in ["", "12", "h", "0s", "1w", "-1s", "99999999999999999999d"] {
            assert_eq!(parse_duration(wrong), Err(DurationError), "{wrong:?}");
        }
    }
}
