//! The only module that writes to stdout. A command's result goes there, in one of four formats; everything said to a
//! person on the way goes to stderr.

mod columns;
mod jq;
mod table;
pub(crate) mod text;
mod watched;
mod yaml;

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;

use crate::error::CliError;
use crate::exit::Exit;
use jq::Jq;
pub(crate) use table::{Details, Table, View};
pub(crate) use watched::Watched;

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people, as wide as the terminal.
    #[default]
    Table,
    /// For people, with whole ids and nothing cut off.
    Wide,
    /// The API's own documents.
    Json,
    /// The same as YAML.
    Yaml,
}

/// Prints in the format the user chose.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    format: Format,
    color: bool,
    /// Only these columns, if any are named.
    columns: Vec<String>,
    /// Only ids.
    quiet: bool,
    /// What JSON goes through before it is printed.
    jq: Option<Arc<Jq>>,
    /// Errors are JSON, too: the user asked for it by name.
    json_errors: bool,
    /// Whether stdout is a terminal.
    is_terminal: bool,
    /// How many characters a line has, and how many lines there are, if a person reads it on a terminal.
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

    /// Only these columns of tables, and with `quiet` only ids.
    pub(crate) fn limited_to(self, columns: Vec<String>, quiet: bool) -> Self {
        Self { columns, quiet, ..self }
    }

    /// Filters every document with this expression. The format is JSON then.
    pub(crate) fn filtered_by(self, expression: &str) -> Result<Self, CliError> {
        Ok(Self { jq: Some(Arc::new(Jq::new(expression)?)), format: Format::Json, ..self })
    }

    /// Whether a person reads the result as a table.
    pub(crate) fn is_table(&self) -> bool {
        matches!(self.format, Format::Table | Format::Wide)
    }

    /// How many characters a line has, if a person reads it on a terminal.
    fn width(&self) -> Option<usize> {
        self.size.map(|(width, _)| width)
    }

    /// Prints a result: as the document it is, or as `view` shows it.
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

    /// The view with whole ids or chosen columns, as the user wants it.
    fn table(&self, view: View, document: &serde_json::Value) -> Result<View, CliError> {
        let view = if self.format == Format::Wide { view.wide(document) } else { view };
        view.with_columns(document, &self.columns)
    }

    /// How wide a table may be.
    fn table_width(&self) -> Option<usize> {
        self.width().filter(|_| self.format == Format::Table)
    }

    /// Prints one item of a list that has no known end: a line, a line of JSON, or an item of a YAML sequence.
    pub(crate) fn print_item<T: serde::Serialize>(&self, item: &T, line: impl FnOnce(&T) -> String) -> Result<(), CliError> {
        let text = match self.format {
            Format::Table | Format::Wide => line(item) + "\n",
            Format::Json => return self.json(serde_json::to_vec(item).map_err(unserializable)?),
            Format::Yaml => yaml::emit(&serde_json::json!([item])),
        };
        self.raw(text.as_bytes())
    }

    /// Prints a JSON document that came as it is, or what `--jq` makes of it, and a line end.
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
        // Texts come without the quotes that keep control characters from the terminal.
        let lines = String::from_utf8_lossy(&output);
        let lines: String = lines.lines().map(|line| text::printable(line) + "\n").collect();
        self.raw(lines.as_bytes())
    }

    /// Writes bytes to stdout as they are.
    pub(crate) fn raw(&self, bytes: &[u8]) -> Result<(), CliError> {
        let mut stdout = std::io::stdout().lock();
        match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
            Ok(()) => Ok(()),
            // The reader (`head`, say) has seen enough: end without a word.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Err(CliError::new(Exit::Done, "", "")),
            Err(error) => Err(CliError::internal(format!("cannot write to stdout: {error}"))),
        }
    }

    /// Tells a person what to do next.
    pub(crate) fn hint(&self, text: &str) {
        self.say(&text::printable(text));
    }

    /// Warns a person.
    pub(crate) fn warn(&self, text: &str) {
        self.say(&format!("warning: {}", text::printable(text)));
    }

    /// Says why a command failed.
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
        // Nobody left to tell: nothing to do about it.
        let _ = writeln!(std::io::stderr().lock(), "{line}");
    }
}

/// The id of each item, one per line.
fn names(document: &serde_json::Value) -> String {
    let one = std::slice::from_ref(document);
    let items = columns::items(document).map_or(one, Vec::as_slice);
    items.iter().map(|item| text::printable(&columns::name_of(item)) + "\n").collect()
}

fn unserializable(error: serde_json::Error) -> CliError {
    CliError::internal(format!("cannot write the result as JSON: {error}"))
}
