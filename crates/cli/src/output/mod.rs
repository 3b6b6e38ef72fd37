//! The only module that writes to stdout. A command's result goes there, in one of three formats; everything said to a
//! person on the way goes to stderr.

mod columns;
mod table;
pub(crate) mod text;
mod yaml;

use std::io::{IsTerminal as _, Write as _};

use crate::error::CliError;
use crate::exit::Exit;
pub(crate) use table::{Details, Table, View};

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
    /// How many characters a line has, if a person reads it on a terminal.
    width: Option<usize>,
}

impl Output {
    pub(crate) fn new(format: Format, no_color: bool) -> Self {
        let unwanted = no_color || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_terminal = std::io::stdout().is_terminal();
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok().filter(|_| is_terminal);
        let width = size.map(|size| usize::from(size.ws_col)).filter(|width| *width > 0);
        Self { format, color: !unwanted && is_terminal, columns: Vec::new(), quiet: false, width }
    }

    /// Only these columns of tables, and with `quiet` only ids.
    pub(crate) fn limited_to(self, columns: Vec<String>, quiet: bool) -> Self {
        Self { columns, quiet, ..self }
    }

    /// Whether a person reads the result as a table.
    pub(crate) fn is_table(&self) -> bool {
        matches!(self.format, Format::Table | Format::Wide)
    }

    /// Prints a result: as the document it is, or as `view` shows it.
    pub(crate) fn print<T: serde::Serialize>(&self, value: &T, view: impl FnOnce(&T) -> View) -> Result<(), CliError> {
        let document = || serde_json::to_value(value).map_err(unserializable);
        if self.quiet {
            return self.raw(names(&document()?).as_bytes());
        }
        let text = match self.format {
            Format::Table if self.columns.is_empty() => view(value).render(self.color, self.width),
            Format::Table => view(value).with_columns(&document()?, &self.columns)?.render(self.color, self.width),
            Format::Wide => view(value).wide(&document()?).with_columns(&document()?, &self.columns)?.render(self.color, None),
            Format::Json => serde_json::to_string_pretty(value).map_err(unserializable)? + "\n",
            Format::Yaml => yaml::emit(&document()?),
        };
        self.raw(text.as_bytes())
    }

    /// Prints one item of a list that has no known end: a line, a line of JSON, or an item of a YAML sequence.
    pub(crate) fn print_item<T: serde::Serialize>(&self, item: &T, line: impl FnOnce(&T) -> String) -> Result<(), CliError> {
        let text = match self.format {
            Format::Table | Format::Wide => line(item) + "\n",
            Format::Json => serde_json::to_string(item).map_err(unserializable)? + "\n",
            Format::Yaml => yaml::emit(&serde_json::json!([item])),
        };
        self.raw(text.as_bytes())
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
        if self.format == Format::Json {
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
