//! Prints a list again when it changes: redrawn in place on a terminal, only the changed rows otherwise.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Format, Output, View, columns, names, unserializable, yaml};
use crate::error::CliError;

/// Clears the screen and moves to the upper left corner.
const CLEAR: &str = "\x1b[H\x1b[2J";
/// Moves to the upper left corner.
const HOME: &str = "\x1b[H";
/// Clears the rest of the line.
const END_OF_LINE: &str = "\x1b[K";
/// Clears everything below.
const BELOW: &str = "\x1b[J";

/// What has been printed of a list so far.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    /// The rows by id. `None` before the first print.
    rows: Option<BTreeMap<String, Value>>,
    /// The widest that each column has been, so that later rows line up with the headers.
    widths: Vec<usize>,
}

impl Output {
    /// Prints a watched list: all of it on a terminal, otherwise only rows that are new or have changed. Rows that are gone are
    /// reported on stderr.
    pub(crate) fn print_watched<T: serde::Serialize>(
        &self,
        watched: &mut Watched,
        value: &T,
        view: impl FnOnce(&T) -> View,
    ) -> Result<(), CliError> {
        let document = serde_json::to_value(value).map_err(unserializable)?;
        let first = watched.rows.is_none();
        if self.is_terminal && self.is_table() && !self.quiet {
            watched.rows.get_or_insert_default();
            let text = self.table(view(value), &document)?.render(self.color, self.table_width());
            return self.raw(screen(&text, first, self.size.map(|(_, height)| height)).as_bytes());
        }
        let (changed, gone) = watched.take(&document);
        for id in gone {
            self.hint(&format!("{id} is no longer in the list"));
        }
        if changed.is_empty() {
            return Ok(());
        }
        let rows: Vec<&Value> = match columns::items(&document) {
            Some(items) => changed.iter().filter_map(|row| items.get(*row)).collect(),
            None => vec![&document],
        };
        if self.quiet {
            return self.raw(rows.into_iter().map(names).collect::<String>().as_bytes());
        }
        match self.format {
            Format::Table | Format::Wide => {
                let view = self.table(view(value), &document)?;
                let is_list = columns::items(&document).is_some();
                let view = if is_list { view.only(&changed) } else { view };
                let text = view.under_headers(&mut watched.widths).render(self.color, self.table_width());
                // The headers were printed the first time.
                let skipped = usize::from(!first && is_list);
                let text: String = text.lines().skip(skipped).map(|line| format!("{line}\n")).collect();
                self.raw(text.as_bytes())
            }
            Format::Json => rows.into_iter().try_for_each(|row| self.json(row.to_string().into_bytes())),
            Format::Yaml => rows.into_iter().try_for_each(|row| self.raw(yaml::emit(&serde_json::json!([row])).as_bytes())),
        }
    }
}

impl Watched {
    /// Stores these rows. Returns the positions of the rows that are new or have changed, and the ids of those that are gone.
    fn take(&mut self, document: &Value) -> (Vec<usize>, Vec<String>) {
        let one = std::slice::from_ref(document);
        let items = columns::items(document).map_or(one, Vec::as_slice);
        let before = self.rows.take().unwrap_or_default();
        let mut now = BTreeMap::new();
        let mut changed = Vec::new();
        for (position, item) in items.iter().enumerate() {
            let id = columns::name_of(item);
            if before.get(&id) != Some(item) {
                changed.push(position);
            }
            now.insert(id, item.clone());
        }
        let gone = before.into_keys().filter(|id| !now.contains_key(id)).collect();
        self.rows = Some(now);
        (changed, gone)
    }
}

/// Returns the escape sequences that replace what the terminal shows with this text, cut to its height.
fn screen(text: &str, first: bool, height: Option<usize>) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    let note;
    if lines.is_empty() {
        lines.push("nothing to show yet; Ctrl-C ends the watch");
    }
    if let Some(room) = height.filter(|height| *height > 2).map(|height| height - 1)
        && lines.len() > room
    {
        note = format!("… {} more", lines.len() - (room - 1));
        lines.truncate(room - 1);
        lines.push(&note);
    }
    let lines: String = lines.into_iter().map(|line| format!("{line}{END_OF_LINE}\n")).collect();
    format!("{}{lines}{BELOW}", if first { CLEAR } else { HOME })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_that_are_new_different_or_gone_are_told_apart() {
        let mut watched = Watched::default();
        let list = |states: &[(&str, &str)]| -> Value {
            states.iter().map(|(id, state)| json!({ "id": id, "state": state })).collect::<Vec<_>>().into()
        };
        assert_eq!(watched.take(&list(&[("a", "placing"), ("b", "active")])), (vec![0, 1], vec![]));
        assert_eq!(watched.take(&list(&[("a", "placing"), ("b", "active")])), (vec![], vec![]));
        assert_eq!(watched.take(&list(&[("c", "placing"), ("a", "active")])), (vec![0, 1], vec!["b".to_owned()]));
        assert_eq!(watched.take(&list(&[])), (vec![], vec!["a".to_owned(), "c".to_owned()]));
    }

    #[test]
    fn a_document_that_is_no_list_is_one_row() {
        let mut watched = Watched::default();
        assert_eq!(watched.take(&json!({ "free": 8 })).0, [0]);
        assert_eq!(watched.take(&json!({ "free": 8 })).0, [0usize; 0]);
        assert_eq!(watched.take(&json!({ "free": 7 })).0, [0]);
    }

    #[test]
    fn a_screen_is_drawn_over_and_never_higher_than_the_terminal() {
        assert_eq!(screen("A\nb\n", true, None), "\x1b[H\x1b[2JA\x1b[K\nb\x1b[K\n\x1b[J");
        assert_eq!(screen("A\nb\nc\nd\n", false, Some(4)), "\x1b[HA\x1b[K\nb\x1b[K\n… 2 more\x1b[K\n\x1b[J");
        assert!(screen("", true, Some(4)).contains("Ctrl-C"));
    }
}
