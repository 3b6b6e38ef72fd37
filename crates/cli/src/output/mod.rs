//! The only module that writes to stdout. The result of a command goes there, in one of four formats. Everything else that is
//! meant for a person goes to stderr.

mod columns;
mod jq;
mod table;
pub(crate) mod text;
mod watched;
#[allow(clippy::wildcard_enum_match_arm, reason = "the values of JSON: whatever is not a filled list or object is a scalar")]
mod yaml;

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;

use crate::error::CliError;
use crate::exit::Exit;
use jq::Jq;
pub(crate) use table::{Details, Table, View};
pub(crate) use watched::Watched;

/// Output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Table for people, as wide as the terminal.
    #[default]
    Table,
    /// Table for people, with full ids and nothing cut off.
    Wide,
    /// The documents of the API, as JSON.
    Json,
    /// The documents of the API, as YAML.
    Yaml,
}

/// Prints in the format that the user chose.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    format: Format,
    color: bool,
    /// Columns to show; all if empty.
    columns: Vec<String>,
    /// Print ids only.
    quiet: bool,
    /// Filter that JSON passes through before it is printed.
    jq: Option<Arc<Jq>>,
    /// Errors are printed as JSON too, because the user asked for JSON explicitly.
    json_errors: bool,
    is_terminal: bool,
    /// Columns and lines of the terminal. `None` if stdout is not a terminal.
    size: Option<(usize, usize)>,
}

impl Output {
    pub(crate) fn new(format: Format, no_color: bool) -> Self {
        let unwanted = no_color || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_terminal = std::io::stdout().is_terminal();
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok().filter(|_| is_terminal);
        let size = size.map(|size| (usize::from(size.ws_col), usize::from(size.ws_row))).filter(|(width, _)| *width > 0);
        Self {
            format,
            color: !unwanted && is_terminal,
            columns: Vec::new(),
            quiet: false,
            jq: None,
            json_errors: format == Format::Json,
            is_terminal,
            size,
        }
    }

    /// Limits tables to these columns and, with `quiet`, to ids.
    pub(crate) fn limited_to(self, columns: Vec<String>, quiet: bool) -> Self {
        Self { columns, quiet, ..self }
    }

    /// Filters every document with this expression. This sets the format to JSON.
    pub(crate) fn filtered_by(self, expression: &str) -> Result<Self, CliError> {
        Ok(Self { jq: Some(Arc::new(Jq::new(expression)?)), format: Format::Json, ..self })
    }

    /// Returns whether results are printed as tables.
    pub(crate) fn is_table(&self) -> bool {
        matches!(self.format, Format::Table | Format::Wide)
    }

    /// Returns the width of the terminal in characters. `None` if stdout is not a terminal.
    fn width(&self) -> Option<usize> {
        self.size.map(|(width, _)| width)
    }

    /// Prints a result: as a document, or as `view` shows it.
    pub(crate) fn print<T: serde::Serialize>(&self, value: &T, view: impl FnOnce(&T) -> View) -> Result<(), CliError> {
        let document = || serde_json::to_value(value).map_err(unserializable);
        if self.quiet {
            return self.raw(names(&document()?).as_bytes());
        }
        let text = match self.format {
            Format::Table | Format::Wide => self.table(view(value), &document()?)?.render(self.color, self.table_width()),
            Format::Json if self.jq.is_some() => return self.json(serde_json::to_vec(value).map_err(unserializable)?),
            Format::Json => serde_json::to_string_pretty(value).map_err(unserializable)? + "\n",
            Format::Yaml => yaml::emit(&document()?),
        };
        self.raw(text.as_bytes())
    }

    /// Returns the view with whole ids or with the chosen columns.
    fn table(&self, view: View, document: &serde_json::Value) -> Result<View, CliError> {
        let view = if self.format == Format::Wide { view.wide(document) } else { view };
        view.with_columns(document, &self.columns)
    }

    /// Returns the width that tables are fitted to, if any.
    fn table_width(&self) -> Option<usize> {
        self.width().filter(|_| self.format == Format::Table)
    }

    /// Prints one item of a list without a known end: as a line of text, a line of JSON, or an item of a YAML sequence.
    pub(crate) fn print_item<T: serde::Serialize>(&self, item: &T, line: impl FnOnce(&T) -> String) -> Result<(), CliError> {
        let text = match self.format {
            Format::Table | Format::Wide => line(item) + "\n",
            Format::Json => return self.json(serde_json::to_vec(item).map_err(unserializable)?),
            Format::Yaml => yaml::emit(&serde_json::json!([item])),
        };
        self.raw(text.as_bytes())
    }

    /// Prints a JSON document as it is, or what `--jq` makes of it, followed by a line break.
    pub(crate) fn json(&self, mut document: Vec<u8>) -> Result<(), CliError> {
        let Some(jq) = &self.jq else {
            if !document.ends_with(b"\n") {
                document.push(b'\n');
            }
            return self.raw(&document);
        };
        let output = jq.apply(document)?;
        if !self.is_terminal {
            return self.raw(&output);
        }
        // With `--jq`, strings lack the JSON escapes that keep control characters away from the terminal.
        let lines = String::from_utf8_lossy(&output);
        let lines: String = lines.lines().map(|line| text::printable(line) + "\n").collect();
        self.raw(lines.as_bytes())
    }

    /// Writes bytes to stdout unchanged.
    pub(crate) fn raw(&self, bytes: &[u8]) -> Result<(), CliError> {
        let mut stdout = std::io::stdout().lock();
        match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
            Ok(()) => Ok(()),
            // The reader (such as `head`) has closed the pipe. The program ends quietly and successfully.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Err(CliError::new(Exit::Done, "", "")),
            Err(error) => Err(CliError::internal(format!("cannot write to stdout: {error}"))),
        }
    }

    /// Prints a hint on what to do next.
    pub(crate) fn hint(&self, text: &str) {
        self.say(&text::printable(text));
    }

    /// Prints a warning.
    pub(crate) fn warn(&self, text: &str) {
        self.say(&format!("warning: {}", text::printable(text)));
    }

    /// Prints why a command failed.
    pub(crate) fn failure(&self, failure: &CliError) {
        if failure.exit == Exit::Done {
            return;
        }
        if self.json_errors {
            return self.say(&failure.document().to_string());
        }
        self.say(&format!("error: {}", text::printable(&failure.message)));
        if let Some(cause) = &failure.cause {
            self.say(&format!("  cause: {}", text::printable(cause)));
        }
        if let Some(hint) = &failure.hint {
            self.say(&format!("  hint: {}", text::printable(hint)));
        }
        if let Some(id) = &failure.correlation_id {
            self.say(&format!("  correlation id: {}", text::printable(id)));
        }
    }

    fn say(&self, line: &str) {
        // If stderr is gone, there is nowhere left to report to.
        let _ = writeln!(std::io::stderr().lock(), "{line}");
    }
}

/// Returns the id of each item, one per line.
fn names(document: &serde_json::Value) -> String {
    let one = std::slice::from_ref(document);
    let items = columns::items(document).map_or(one, Vec::as_slice);
    items.iter().map(|item| text::printable(&columns::name_of(item)) + "\n").collect()
}

fn unserializable(error: serde_json::Error) -> CliError {
    CliError::internal(format!("cannot write the result as JSON: {error}"))
}
