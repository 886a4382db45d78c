//! `tidemark read`: the events of a boundary.

use std::str::FromStr;

use clap::{Args, ValueEnum};
use serde_json::{json, value::RawValue};
use tidemark_proto::v1::{
    Direction, Event, GetEventsRequest, Linearizable, Local, Position, ReadConsistency, attribute,
    read_consistency,
};

use super::{
    api::Api,
    exit::CliError,
    output::{Form, Output, Table},
    position::{PositionError, PositionText, shown},
};

/// Events asked for at once; a page ends earlier when it is large.
const PAGE: u32 = 1_000;

/// Prints the events of a boundary, oldest first.
#[derive(Args, Debug)]
pub struct ReadArgs {
    /// The boundary.
    #[arg(long, short)]
    boundary: String,
    /// The position to begin at, included [default: the oldest event; the newest with --descending].
    #[arg(long, value_name = "COMMIT/PREPARE")]
    from: Option<PositionText>,
    /// At most so many events.
    #[arg(long, value_name = "EVENTS")]
    limit: Option<u64>,
    /// Newest first.
    #[arg(long)]
    descending: bool,
    /// How fresh: linearizable (everything acknowledged before), local (whatever the node has), or a position that
    /// the node must have.
    #[arg(long, default_value = "linearizable", value_name = "LEVEL")]
    consistency: Consistency,
    /// How events are printed.
    #[arg(long, value_enum, default_value = "ndjson")]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One JSON object per line.
    Ndjson,
    /// For people.
    Table,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Consistency {
    Linearizable,
    Local,
    AtLeast(PositionText),
}

impl FromStr for Consistency {
    type Err = PositionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "linearizable" => Ok(Self::Linearizable),
            "local" => Ok(Self::Local),
            _ => text.parse().map(Self::AtLeast),
        }
    }
}

impl From<Consistency> for ReadConsistency {
    fn from(consistency: Consistency) -> Self {
        let level = match consistency {
            Consistency::Linearizable => read_consistency::Level::Linearizable(Linearizable {}),
            Consistency::Local => read_consistency::Level::Local(Local {}),
            Consistency::AtLeast(position) => read_consistency::Level::AtLeast(position.into()),
        };
        Self { level: Some(level) }
    }
}

/// Runs it.
pub async fn run(api: &dyn Api, args: ReadArgs, output: Output) -> Result<(), CliError> {
    let direction = if args.descending { Direction::Descending } else { Direction::Ascending };
    let mut pages = Pages::new(args.boundary, direction, args.consistency.into());
    pages.from = args.from.map(Position::from);
    let as_table = args.format == Format::Table && output.form() == Form::Human;
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut first = true;
    while left > 0 {
        let count = u32::try_from(left).unwrap_or(u32::MAX).min(PAGE);
        let Some(events) = pages.next(api, count).await? else { break };
        left -= events.len() as u64;
        if as_table {
            print_table(&events, first, output)?;
        } else {
            events.iter().try_for_each(|event| output.line(ndjson(event)?))?;
        }
        first = false;
    }
    Ok(())
}

/// All events of a boundary, page by page.
#[derive(Debug)]
pub struct Pages {
    boundary: String,
    direction: Direction,
    consistency: ReadConsistency,
    from: Option<Position>,
    done: bool,
}

impl Pages {
    /// Begins at the first event in this direction.
    pub fn new(boundary: String, direction: Direction, consistency: ReadConsistency) -> Self {
        Self { boundary, direction, consistency, from: None, done: false }
    }

    /// All events in order, as of everything acknowledged before each page.
    pub fn linearizable(boundary: &str) -> Self {
        Self::new(boundary.to_owned(), Direction::Ascending, Consistency::Linearizable.into())
    }

    /// The next page of at most `count` events; nothing after the last one. A page may be empty in the middle, when
    /// the server's scan budget ended it.
    pub async fn next(&mut self, api: &dyn Api, count: u32) -> Result<Option<Vec<Event>>, CliError> {
        if self.done {
            return Ok(None);
        }
        let request = GetEventsRequest {
            boundary: self.boundary.clone(),
            query: None,
            from_position: self.from,
            count,
            direction: self.direction.into(),
            consistency: Some(self.consistency),
        };
        let page = api.read(request).await?;
        // Without a next position there is nowhere to go on from, whatever `has_more` says.
        self.done = !page.has_more || page.next_position.is_none();
        self.from = page.next_position;
        Ok(Some(page.events))
    }
}

/// The event as one line: what `tidemark append` takes, and what the store set.
fn ndjson(event: &Event) -> Result<String, CliError> {
    let failed = |error: serde_json::Error| CliError::Output(error.into());
    let attributes: serde_json::Map<String, serde_json::Value> = event
        .attributes
        .iter()
        .map(|attribute| {
            let value = match &attribute.value {
                Some(attribute::Value::Text(text)) => json!(text),
                Some(attribute::Value::Integer(number)) => json!(number),
                None => serde_json::Value::Null,
            };
            (attribute.key.clone(), value)
        })
        .collect();
    let text = |value: &str| serde_json::to_string(value).map_err(failed);
    let mut line = format!(
        "{{\"position\":{},\"event_id\":{},\"event_type\":{},\"data\":{}",
        text(&shown(event.position.as_ref()))?,
        text(&event.event_id)?,
        text(&event.event_type)?,
        payload(&event.data)?,
    );
    if !event.metadata.is_empty() {
        line.push_str(&format!(",\"metadata\":{}", payload(&event.metadata)?));
    }
    if !attributes.is_empty() {
        line.push_str(&format!(",\"attributes\":{}", serde_json::Value::Object(attributes)));
    }
    line.push_str(&format!(",\"write_id\":{},\"date\":{}}}", text(&event.write_id)?, text(&date(event))?));
    Ok(line)
}

/// JSON on one line with its numbers as they are stored; payloads of other content types as a text.
fn payload(data: &[u8]) -> Result<String, CliError> {
    match serde_json::from_slice::<&RawValue>(data) {
        // Line breaks in JSON can stand between tokens only, where a blank means the same.
        Ok(raw) => Ok(raw.get().replace(['\n', '\r'], " ")),
        Err(_) => serde_json::to_string(&String::from_utf8_lossy(data))
            .map_err(|error| CliError::Output(error.into())),
    }
}

fn date(event: &Event) -> String {
    event.date_created.as_ref().map_or_else(String::new, timestamp)
}

/// RFC 3339 in UTC with milliseconds.
fn timestamp(at: &prost_types::Timestamp) -> String {
    let days = at.seconds.div_euclid(86_400);
    let second = at.seconds.rem_euclid(86_400);
    let (year, month, day) = civil_date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", at.nanos / 1_000_000)
}

/// Year, month and day of a day counted from 1970-01-01, in the proleptic Gregorian calendar. Counts in eras of 400
/// years that begin on 1 March, so that the leap day is the last day of a year.
fn civil_date(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

fn print_table(events: &[Event], with_headings: bool, output: Output) -> Result<(), CliError> {
    let mut table = Table::new(["position", "date", "type", "event id", "data"]);
    for event in events {
        table.row([
            shown(event.position.as_ref()),
            date(event),
            event.event_type.clone(),
            event.event_id.clone(),
            payload(&event.data)?,
        ]);
    }
    let skipped = usize::from(!with_headings);
    table.lines().iter().skip(skipped).try_for_each(|line| output.line(line))
}

#[cfg(test)]
mod tests {
    use tidemark_proto::v1::Attribute;

    use super::*;

    fn event() -> Event {
        Event {
            position: Some(Position { commit_position: 3, prepare_position: 7 }),
            event_id: "e\"1".to_owned(),
            event_type: "T".to_owned(),
            data: (&b"{\"b\":1.50,\n\"a\":1e3}"[..]).into(),
            attributes: vec![Attribute { key: "n".to_owned(), value: Some(attribute::Value::Integer(-7)) }],
            write_id: "w".to_owned(),
            date_created: Some(prost_types::Timestamp { seconds: 1_356_998_400, nanos: 5_000_000 }),
            ..Event::default()
        }
    }

    #[test]
    fn a_line_has_position_write_id_and_date_and_keeps_numbers() {
        let expected = r#"{"position":"3/7","event_id":"e\"1","event_type":"T","data":{"b":1.50, "a":1e3},"attributes":{"n":-7},"write_id":"w","date":"2013-01-01T00:00:00.005Z"}"#;
        assert_eq!(ndjson(&event()).unwrap(), expected);
    }

    #[test]
    fn opaque_data_is_shown_as_text() {
        let opaque = Event { data: (&b"\xff\x00x"[..]).into(), ..event() };
        assert!(
            ndjson(&opaque).unwrap().contains(r#""data":"\ufffd"#)
                || ndjson(&opaque).unwrap().contains("\u{fffd}")
        );
    }

    #[test]
    fn dates_are_right_around_leap_days_and_before_1970() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
            (-1, "1969-12-31T23:59:59.000Z"),
        ] {
            assert_eq!(timestamp(&prost_types::Timestamp { seconds, nanos: 0 }), expected);
        }
    }

    #[test]
    fn consistency_is_a_level_or_a_position() {
        assert_eq!("local".parse(), Ok(Consistency::Local));
        assert_eq!("linearizable".parse(), Ok(Consistency::Linearizable));
        assert!(matches!("1/2".parse(), Ok(Consistency::AtLeast(_))));
        assert!("fresh".parse::<Consistency>().is_err());
    }
}
