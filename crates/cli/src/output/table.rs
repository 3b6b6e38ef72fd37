//! Results for people: tables without borders, and lists of fields.

use comfy_table::{Cell, Color, ContentArrangement, presets};
use serde_json::Value;

use super::columns;
use super::text::printable;
use crate::error::CliError;

/// Headers of columns whose values are colored.
const COLORED: [&str; 5] = ["STATE", "SERVICE", "LINK", "RESULT", "ROLE"];

/// How a result is shown to a person.
pub(crate) enum View {
    /// Several items, one per row.
    Table(Table),
    /// One item, one field per line.
    Details(Details),
    /// One item and its parts.
    DetailsAndTable(Details, Table),
    /// Nothing on stdout; a hint on stderr says what to do.
    Nothing,
}

impl View {
    pub(super) fn render(self, color: bool, width: Option<usize>) -> String {
        match self {
            Self::Table(table) => table.render(color, width),
            Self::Details(details) => details.render(),
            Self::DetailsAndTable(details, table) => format!("{}\n{}", details.render(), table.render(color, width)),
            Self::Nothing => String::new(),
        }
    }

    /// Returns the view with only these rows of its table.
    pub(super) fn only(self, rows: &[usize]) -> Self {
        match self {
            Self::Table(table) => Self::Table(table.only(rows)),
            other @ (Self::Details(_) | Self::DetailsAndTable(..) | Self::Nothing) => other,
        }
    }

    /// Returns the view with columns at least as wide as before, so that rows printed later line up with the headers.
    pub(super) fn under_headers(self, widths: &mut Vec<usize>) -> Self {
        match self {
            Self::Table(table) => Self::Table(table.under_headers(widths)),
            other @ (Self::Details(_) | Self::DetailsAndTable(..) | Self::Nothing) => other,
        }
    }

    /// Returns the view with whole ids in its table.
    pub(super) fn wide(self, document: &Value) -> Self {
        match (self, columns::items(document)) {
            (Self::Table(table), Some(items)) => Self::Table(table.with_whole_ids(items)),
            (other, _) => other,
        }
    }

    /// Returns the view with only these columns, by header or by field of the document.
    pub(super) fn with_columns(self, document: &Value, names: &[String]) -> Result<Self, CliError> {
        if names.is_empty() {
            return Ok(self);
        }
        match (self, columns::items(document)) {
            (Self::Table(table), Some(items)) => Ok(Self::Table(table.with_columns(items, names))),
            (Self::Nothing, _) => Ok(Self::Nothing),
            (Self::Table(_) | Self::Details(_) | Self::DetailsAndTable(..), _) => {
                let message = "this command prints one thing, not a list; `--columns` is for lists";
                Err(CliError::usage("columns_without_list", message).hint("`-o json` prints all of its fields"))
            }
        }
    }
}

/// Several items, one per row.
pub(crate) struct Table {
    headers: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<const N: usize>(headers: [&'static str; N]) -> Self {
        Self { headers: headers.map(str::to_owned).to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    fn only(mut self, rows: &[usize]) -> Self {
        self.rows = rows.iter().filter_map(|row| self.rows.get(*row).cloned()).collect();
        self
    }

    fn under_headers(mut self, widths: &mut Vec<usize>) -> Self {
        let now = self.widths();
        widths.resize(now.len(), 0);
        for ((header, before), now) in self.headers.iter_mut().zip(widths).zip(now) {
            *before = now.max(*before);
            *header = format!("{header:width$}", width = *before);
        }
        self
    }

    /// Returns the width of each column.
    fn widths(&self) -> Vec<usize> {
        let length = |text: &String| printable(text).chars().count();
        let mut widths: Vec<usize> = self.headers.iter().map(length).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = length(cell).max(*width);
            }
        }
        widths
    }

    /// Replaces shortened ids with whole ones.
    fn with_whole_ids(mut self, items: &[Value]) -> Self {
        let first = self.headers.first().is_some_and(|header| header == "ID");
        if first && items.len() == self.rows.len() {
            for (row, item) in self.rows.iter_mut().zip(items) {
                if let (Some(cell), Some(id)) = (row.first_mut(), item.get("id").and_then(Value::as_str)) {
                    id.clone_into(cell);
                }
            }
        }
        self
    }

    fn with_columns(self, items: &[Value], names: &[String]) -> Self {
        let known = |name: &String| self.headers.iter().position(|header| header.eq_ignore_ascii_case(name));
        let row = |(row, item): (&Vec<String>, &Value)| -> Vec<String> {
            let of = |name: &String| match known(name) {
                Some(column) => row.get(column).cloned().unwrap_or_default(),
                None => columns::cell(columns::field(item, name)),
            };
            names.iter().map(of).collect()
        };
        let rows = self.rows.iter().zip(items).map(row).collect();
        Self { headers: names.iter().map(|name| name.to_uppercase()).collect(), rows }
    }

    /// Shortens cells so that the table fits the terminal.
    fn fit(&mut self, width: usize) {
        let widths = columns::fitting(self.widths(), width);
        for row in &mut self.rows {
            for (width, cell) in widths.iter().zip(row) {
                *cell = columns::cut(cell, *width);
            }
        }
    }

    fn render(mut self, color: bool, width: Option<usize>) -> String {
        if let Some(width) = width {
            self.fit(width);
        }
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        if color {
            table.enforce_styling();
        } else {
            table.force_no_tty();
        }
        table.set_header(&self.headers);
        for row in self.rows {
            table.add_row(row.iter().zip(&self.headers).map(|(text, header)| {
                let text = if text.is_empty() { "-".to_owned() } else { printable(text) };
                match color_of(&text).filter(|_| COLORED.contains(&header.trim_end())) {
                    Some(color) => Cell::new(text).fg(color),
                    None => Cell::new(text),
                }
            }));
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, u16::try_from(columns::GAP).unwrap_or(2)));
        }
        let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned() + "\n").collect();
        lines.concat()
    }
}

fn color_of(word: &str) -> Option<Color> {
    match word {
        "succeeded" | "available" | "in_service" | "stream" | "poll" | "active" | "passed" | "approved" | "enrolled" | "open" => {
            Some(Color::Green)
        }
        "failed" | "refused" | "interrupted" | "lost" | "expired" | "locked" | "revoked" | "rejected" | "offline" | "blocked" => {
            Some(Color::Red)
        }
        "draining" | "quarantined" | "cancelled" | "grace" | "pending" | "note" | "started" => Some(Color::Yellow),
        _ => None,
    }
}

/// One item, one field per line.
#[derive(Default)]
pub(crate) struct Details {
    fields: Vec<(&'static str, String)>,
}

impl Details {
    /// Adds a field. An empty value is skipped.
    pub(crate) fn field(mut self, name: &'static str, value: impl std::fmt::Display) -> Self {
        let value = value.to_string();
        if !value.is_empty() {
            self.fields.push((name, value));
        }
        self
    }

    /// Adds a field if there is a value.
    pub(crate) fn maybe(self, name: &'static str, value: Option<impl std::fmt::Display>) -> Self {
        match value {
            Some(value) => self.field(name, value),
            None => self,
        }
    }

    fn render(self) -> String {
        let width = self.fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let mut text = String::new();
        for (name, value) in self.fields {
            // The lines of a multi-line value (JSON) are aligned with each other.
            let mut label = name;
            for line in value.lines() {
                let line = format!("{label:width$}  {}", printable(line));
                text.push_str(line.trim_end());
                text.push('\n');
                label = "";
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_aligned_columns_and_nothing_around_them() {
        let mut table = Table::new(["ID", "STATE", "NOTE"]);
        table.row(["node_1".to_owned(), "in_service".to_owned(), String::new()]);
        table.row(["node_22".to_owned(), "draining".to_owned(), "x".to_owned()]);
        assert_eq!(
            View::Table(table).render(false, None),
            "ID       STATE       NOTE\nnode_1   in_service  -\nnode_22  draining    x\n"
        );
    }

    #[test]
    fn columns_are_chosen_by_header_or_by_field_and_ids_are_whole_when_wide() {
        let items = serde_json::json!([{ "id": "node_0123456789", "name": "a", "facts": { "cpus": 8 } }]);
        let table = || {
            let mut table = Table::new(["ID", "NAME"]);
            table.row(["node_0".to_owned(), "a".to_owned()]);
            View::Table(table)
        };
        let chosen = table().with_columns(&items, &["name".to_owned(), "facts.cpus".to_owned()]).map_err(|error| error.message);
        assert_eq!(chosen.map(|view| view.render(false, None)), Ok("NAME  FACTS.CPUS\na     8\n".to_owned()));
        assert_eq!(table().wide(&items).render(false, None), "ID               NAME\nnode_0123456789  a\n");
        assert!(View::Details(Details::default()).with_columns(&items, &["name".to_owned()]).is_err());
    }

    #[test]
    fn a_table_is_as_wide_as_the_terminal() {
        let mut table = Table::new(["ID", "NOTE"]);
        table.row(["node_1".to_owned(), "a very long note".to_owned()]);
        assert_eq!(View::Table(table).render(false, Some(20)), "ID      NOTE\nnode_1  a very long…\n");
    }

    #[test]
    fn rows_that_come_later_stand_under_the_same_headers() {
        let row = |name: &str, state: &str| {
            let mut table = Table::new(["NAME", "STATE"]);
            table.row([name.to_owned(), state.to_owned()]);
            View::Table(table)
        };
        let mut widths = Vec::new();
        let first = row("a-long-name", "placing").under_headers(&mut widths).render(false, None);
        let later = row("b", "active").under_headers(&mut widths).render(false, None);
        assert_eq!(first, "NAME         STATE\na-long-name  placing\n");
        assert_eq!(later, "NAME         STATE\nb            active\n");
    }

    #[test]
    fn color_is_only_there_when_asked_for() {
        let mut table = Table::new(["STATE"]);
        table.row(["failed".to_owned()]);
        assert!(View::Table(table).render(true, None).contains('\u{1b}'));
    }

    #[test]
    fn a_host_cannot_send_control_characters_to_the_terminal() {
        let mut table = Table::new(["NAME"]);
        table.row(["a\u{1b}[2Jb\r\nc".to_owned()]);
        let text = View::Table(table).render(false, None);
        assert!(!text.contains('\u{1b}') && !text.contains('\r'), "{text:?}");
        let text = View::Details(Details::default().field("name", "a\u{1b}]0;x\u{7}")).render(false, None);
        assert!(!text.contains('\u{1b}') && !text.contains('\u{7}'), "{text:?}");
    }

    #[test]
    fn details_leave_empty_fields_out_and_keep_lines_together() {
        let details = Details::default().field("id", "x").field("why", "").field("output", "{\n  1\n}").maybe("none", None::<u8>);
        assert_eq!(View::Details(details).render(false, None), "id      x\noutput  {\n          1\n        }\n");
    }
}
