//! What commands print: lines, JSON, tables, colours and progress bars.
//!
//! Results go to standard output, everything else to standard error. Colours and bars appear on terminals only.

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use super::exit::CliError;

/// Whether results are for people or for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Text, with colours on a terminal.
    Human,
    /// JSON, one document or one object per line.
    Json,
}

/// A colour with a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// As it should be.
    Good,
    /// Worth a look.
    Warning,
    /// Wrong.
    Bad,
    /// A heading.
    Strong,
}

/// Standard output in one form.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    form: Form,
    colours: bool,
}

impl Output {
    /// Colours only where a person sees them; `NO_COLOR` (no-color.org) switches them off.
    pub fn new(form: Form) -> Self {
        let colours = form == Form::Human
            && io::stdout().is_terminal()
            && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        Self { form, colours }
    }

    /// The form that was asked for.
    pub fn form(&self) -> Form {
        self.form
    }

    /// One line.
    pub fn line(&self, text: impl AsRef<str>) -> Result<(), CliError> {
        writeln!(io::stdout().lock(), "{}", text.as_ref()).map_err(CliError::Output)
    }

    /// One JSON document on one line.
    pub fn json(&self, value: &impl Serialize) -> Result<(), CliError> {
        let text = serde_json::to_string(value).map_err(|error| CliError::Output(error.into()))?;
        self.line(text)
    }

    /// The text in a colour, where colours are on.
    pub fn paint(&self, tone: Tone, text: &str) -> String {
        if !self.colours {
            return text.to_owned();
        }
        let code = match tone {
            Tone::Good => "32",
            Tone::Warning => "33",
            Tone::Bad => "31",
            Tone::Strong => "1",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// Rows under headings, each column as wide as its widest cell. Numbers are best given right-aligned by the caller's
/// choice of [`Table::numeric`].
#[derive(Debug, Default)]
pub struct Table {
    headings: Vec<&'static str>,
    numeric: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(headings: impl IntoIterator<Item = &'static str>) -> Self {
        let headings: Vec<_> = headings.into_iter().collect();
        Self { numeric: vec![false; headings.len()], headings, rows: Vec::new() }
    }

    /// Aligns these columns to the right.
    #[must_use]
    pub fn numeric(mut self, columns: impl IntoIterator<Item = usize>) -> Self {
        for column in columns {
            self.numeric[column] = true;
        }
        self
    }

    /// Adds a row with one cell per heading.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let row: Vec<_> = cells.into_iter().collect();
        assert_eq!(row.len(), self.headings.len(), "a row has one cell per heading");
        self.rows.push(row);
    }

    /// The lines, the headings first.
    pub fn lines(&self) -> Vec<String> {
        let headings: Vec<String> = self.headings.iter().map(|&heading| heading.to_owned()).collect();
        let all: Vec<&Vec<String>> = std::iter::once(&headings).chain(&self.rows).collect();
        let widths: Vec<usize> = (0..headings.len())
            .map(|column| all.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
            .collect();
        all.iter().map(|row| self.laid_out(row, &widths)).collect()
    }

    fn laid_out(&self, row: &[String], widths: &[usize]) -> String {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let width = widths[column];
            if self.numeric[column] { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    }

    /// Prints the table, headings strong.
    pub fn print(&self, output: &Output) -> Result<(), CliError> {
        let lines = self.lines();
        for (index, line) in lines.iter().enumerate() {
            let text = if index == 0 { output.paint(Tone::Strong, line) } else { line.clone() };
            output.line(text)?;
        }
        Ok(())
    }
}

/// A bar over a known number of things, or a counter when the number is unknown. Drawn on standard error, and only
/// when that is a terminal.
pub fn progress(total: Option<u64>, what: &'static str) -> ProgressBar {
    let target =
        if io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(total, target);
    let template = match total {
        Some(_) => "{msg} {wide_bar} {human_pos}/{human_len} {prefix} {per_sec} {eta}",
        None => "{msg} {human_pos} {prefix} {per_sec} {elapsed}",
    };
    let style = ProgressStyle::with_template(template).expect("the templates above are valid");
    bar.with_style(style).with_prefix(what)
}

/// `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `3.4 MiB`.
pub fn bytes(number: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = number as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{number} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// `1d 2h`, `3h 4m`, `5m 6s`, `7s`: the two largest units.
pub fn duration_ms(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, _, _) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_align_columns_and_leave_no_trailing_blanks() {
        let mut table = Table::new(["id", "role", "lag"]).numeric([2]);
        table.row(["1".to_owned(), "leader".to_owned(), "0".to_owned()]);
        table.row(["22".to_owned(), "f".to_owned(), "1,234".to_owned()]);
        assert_eq!(table.lines(), ["id  role      lag", "1   leader      0", "22  f       1,234"]);
    }

    #[test]
    fn numbers_bytes_and_durations_read_well() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0, 1023, 1024, 3 << 20].map(bytes), ["0 B", "1023 B", "1.0 KiB", "3.0 MiB"]);
        let durations = [999, 61_000, 3_661_000, 90_000_000].map(duration_ms);
        assert_eq!(durations, ["0s", "1m 1s", "1h 1m", "1d 1h"]);
    }

    #[test]
    fn nothing_is_coloured_unless_a_terminal_reads_it() {
        let plain = Output { form: Form::Human, colours: false };
        assert_eq!(plain.paint(Tone::Bad, "x"), "x");
        let coloured = Output { form: Form::Human, colours: true };
        assert_eq!(coloured.paint(Tone::Bad, "x"), "\x1b[31mx\x1b[0m");
    }
}
