//! How many agents of which version have a link to this process.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// Most versions that are told apart. An agent names its version itself, and every name is a series in somebody's Prometheus.
const MAX_VERSIONS: usize = 32;
/// What the others are called.
const OTHER: &str = "other";

/// Links by the version of their agents. A version without a link is not in it.
#[derive(Default)]
pub(super) struct AgentVersions {
    gauges: Family<VersionLabel, Gauge>,
    links: Mutex<HashMap<String, u64>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct VersionLabel {
    version: String,
}

impl AgentVersions {
    pub(super) fn gauges(&self) -> Family<VersionLabel, Gauge> {
        self.gauges.clone()
    }

    /// Counts a link. Returns the name under which it was counted.
    pub(super) fn opened(&self, version: &str) -> String {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let known = links.contains_key(version) || (is_version(version) && links.len() < MAX_VERSIONS);
        let name = if known { version } else { OTHER }.to_owned();
        *links.entry(name.clone()).or_default() += 1;
        self.gauges.get_or_create(&VersionLabel { version: name.clone() }).inc();
        name
    }

    /// A link that was counted under this name is gone.
    pub(super) fn closed(&self, name: &str) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let label = VersionLabel { version: name.to_owned() };
        match links.get_mut(name) {
            Some(count) if *count > 1 => {
                *count -= 1;
                self.gauges.get_or_create(&label).dec();
            }
            Some(_) | None => {
                links.remove(name);
                self.gauges.remove(&label);
            }
        }
    }
}

/// Such as `0.1.0` or `1.2.0-rc.1`.
fn is_version(text: &str) -> bool {
    let printable = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'+');
    (1..=32).contains(&text.len()) && text.bytes().all(printable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(counts: &AgentVersions) -> HashMap<String, u64> {
        counts.links.lock().expect("lock").clone()
    }

    #[test]
    fn a_version_is_counted_while_it_has_links() {
        let counts = AgentVersions::default();
        let names = ["0.1.0", "0.1.0", "0.2.0-rc.1"].map(|version| counts.opened(version));
        assert_eq!(versions(&counts), HashMap::from([("0.1.0".to_owned(), 2), ("0.2.0-rc.1".to_owned(), 1)]));
        for name in names {
            counts.closed(&name);
        }
        assert_eq!(versions(&counts), HashMap::new());
    }

    #[test]
    fn agents_cannot_make_up_any_number_of_series() {
        let counts = AgentVersions::default();
        for number in 0..1000 {
            counts.opened(&format!("9.{number}.0"));
        }
        for odd in ["", "a b", "1\n2", &"1".repeat(100)] {
            assert_eq!(counts.opened(odd), OTHER);
        }
        assert_eq!(versions(&counts).len(), MAX_VERSIONS + 1);
    }
}
