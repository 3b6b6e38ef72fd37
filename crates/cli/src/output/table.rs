//! Results for people: tables without borders, and lists of fields.

use comfy_table::{Cell, Color, ContentArrangement, presets};

use super::text::printable;

/// Headers of columns whose words have colors.
const COLORED: [&str; 5] = ["STATE", "SERVICE", "LINK", "RESULT", "ROLE"];

/// A result as a person sees it.
pub(crate) enum View {
    /// Many things.
    Table(Table),
    /// One thing.
    Details(Details),
    /// One thing and its parts.
    DetailsAndTable(Details, Table),
    /// Nothing to see; a hint on stderr says what to do.
    Nothing,
}

impl View {
    pub(super) fn render(self, color: bool) -> String {
        match self {
            Self::Table(table) => table.render(color),
            Self::Details(details) => details.render(),
            Self::DetailsAndTable(details, table) => format!("{}\n{}", details.render(), table.render(color)),
            Self::Nothing => String::new(),
        }
    }
}

/// Many things, one per line.
pub(crate) struct Table {
    headers: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<const N: usize>(headers: [&'static str; N]) -> Self {
        Self { headers: headers.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    fn render(self, color: bool) -> String {
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
                match color_of(&text).filter(|_| COLORED.contains(header)) {
                    Some(color) => Cell::new(text).fg(color),
                    None => Cell::new(text),
                }
            }));
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
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

/// One thing, one field per line.
#[derive(Default)]
pub(crate) struct Details {
    fields: Vec<(&'static str, String)>,
}

impl Details {
    /// Adds a field; an empty one is left out.
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
            // Values of several lines (JSON) stay under each other.
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
            View::Table(table).render(false),
            "ID       STATE       NOTE\nnode_1   in_service  -\nnode_22  draining    x\n"
        );
    }

    #[test]
    fn color_is_only_there_when_asked_for() {
        let mut table = Table::new(["STATE"]);
        table.row(["failed".to_owned()]);
        assert!(View::Table(table).render(true).contains('\u{1b}'));
    }

    #[test]
    fn a_host_cannot_send_control_characters_to_the_terminal() {
        let mut table = Table::new(["NAME"]);
        table.row(["a\u{1b}[2Jb\r\nc".to_owned()]);
        let text = View::Table(table).render(false);
        assert!(!text.contains('\u{1b}') && !text.contains('\r'), "{text:?}");
        let text = View::Details(Details::default().field("name", "a\u{1b}]0;x\u{7}")).render(false);
        assert!(!text.contains('\u{1b}') && !text.contains('\u{7}'), "{text:?}");
    }

    #[test]
    fn details_leave_empty_fields_out_and_keep_lines_together() {
        let details = Details::default().field("id", "x").field("why", "").field("output", "{\n  1\n}").maybe("none", None::<u8>);
        assert_eq!(View::Details(details).render(false), "id      x\noutput  {\n          1\n        }\n");
    }
}
