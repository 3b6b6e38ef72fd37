//! The result of a round: how often each operation responded with which status.

use std::collections::BTreeMap;
use std::path::Path;

/// Number of responses, by operation and status.
pub(super) struct Figures(BTreeMap<String, BTreeMap<u16, u64>>);

impl Figures {
    /// Reads the file that the hooks wrote.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        serde_json::from_str(&text).map(Self).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Returns the number of operations that were called.
    pub(super) fn operations(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of requests that got a response.
    pub(super) fn requests(&self) -> u64 {
        self.statuses().map(|(_, count)| count).sum()
    }

    /// Returns the number of operations that succeeded at least once.
    pub(super) fn successes(&self) -> usize {
        self.0.values().filter(|statuses| statuses.keys().any(|status| (200..300).contains(status))).count()
    }

    /// Returns the first operation that ever responded with a status other than `status`.
    pub(super) fn other_than(&self, status: u16) -> Option<&str> {
        let other = self.0.iter().find(|(_, statuses)| statuses.keys().any(|found| *found != status));
        other.map(|(operation, _)| operation.as_str())
    }

    /// Returns the number of responses per status, as text.
    pub(super) fn by_status(&self) -> String {
        let mut all: BTreeMap<u16, u64> = BTreeMap::new();
        for (status, count) in self.statuses() {
            *all.entry(status).or_default() += count;
        }
        all.iter().map(|(status, count)| format!("{count} × {status}")).collect::<Vec<_>>().join(", ")
    }

    fn statuses(&self) -> impl Iterator<Item = (u16, u64)> {
        self.0.values().flatten().map(|(status, count)| (*status, *count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_count_what_succeeded_and_name_what_should_not_have() {
        let text = r#"{ "nodes": { "200": 3, "400": 2 }, "node": { "404": 1 }, "node_retire": { "401": 4 } }"#;
        let figures = Figures(serde_json::from_str(text).expect("JSON"));
        assert_eq!((figures.operations(), figures.requests(), figures.successes()), (3, 10, 1));
        assert_eq!(figures.other_than(401), Some("node"));
        assert_eq!(figures.by_status(), "3 × 200, 2 × 400, 4 × 401, 1 × 404");
        let closed = Figures(serde_json::from_str(r#"{ "node": { "401": 4 } }"#).expect("JSON"));
        assert_eq!(closed.other_than(401), None);
    }
}
