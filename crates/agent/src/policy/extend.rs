//! Adds permissions to the text of a policy, and removes them again, without losing anything else in it.
//!
//! The text is edited, not regenerated, so comments and order stay. The result is then parsed as a policy and used only if it allows
//! exactly what the policy allowed before plus the change: a bug here causes a refusal, never a wider policy.

use std::collections::BTreeSet;

use gpuaas_contract::slice::InterfaceName;
use gpuaas_contract::task::TaskType;
use toml_edit::{Array, DocumentMut, Item, TableLike, Value};

use super::{Rules, parse};

/// The permissions that guests need: kinds of tasks, and the bridge that guests are connected to.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SlicePermissions {
    pub(crate) tasks: BTreeSet<TaskType>,
    /// `None` if the change does not concern the bridge.
    pub(crate) bridge: Option<InterfaceName>,
}

impl SlicePermissions {
    /// All tasks of slices, on this bridge.
    pub(crate) fn all(bridge: InterfaceName) -> Self {
        let tasks = TaskType::ALL.into_iter().filter(|kind| kind.as_str().starts_with("slice."));
        Self { tasks: tasks.collect(), bridge: Some(bridge) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.bridge.is_none()
    }

    /// The union of both.
    pub(crate) fn with(&self, other: &Self) -> Self {
        let tasks = self.tasks.union(&other.tasks).copied().collect();
        Self { tasks, bridge: self.bridge.clone().or_else(|| other.bridge.clone()) }
    }
}

/// Why a policy was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ExtendError {
    /// The text is not a valid policy.
    #[error("it is not a policy: {0}")]
    Malformed(String),
    /// The policy is valid, but written in a form that cannot be edited automatically.
    #[error("its {0} is written in a way that cannot be edited; write it as a plain list of texts")]
    Form(&'static str),
    /// The edit would have changed something other than the permissions.
    #[error("a change of it would change more than it should; edit it by hand")]
    Unsafe,
}

/// The wanted permissions that the policy does not grant.
pub(crate) fn missing(text: &str, wanted: &SlicePermissions) -> Result<SlicePermissions, ExtendError> {
    let rules = parse(text).map_err(ExtendError::Malformed)?;
    let named = |bridge: &&InterfaceName| !rules.slices.bridges.named.contains(bridge);
    Ok(SlicePermissions {
        tasks: wanted.tasks.difference(&rules.allowed_tasks).copied().collect(),
        bridge: wanted.bridge.as_ref().filter(named).cloned(),
    })
}

/// Keys of the section `[slices]` that allow nothing yet, so that no guest can be created. Only the host's owner can decide their values.
pub(crate) fn undecided(text: &str) -> Result<Vec<&'static str>, ExtendError> {
    let rules = parse(text).map_err(ExtendError::Malformed)?.slices;
    let keys = [
        ("pci_addresses", rules.pci_addresses.is_empty() && rules.drives_without_gpu.is_empty()),
        ("nvme_serials", rules.nvme_serials.is_empty()),
        ("image_sources", rules.image_sources.is_empty()),
        ("image_formats", rules.image_formats.is_empty()),
        ("usernames", rules.usernames.is_empty()),
    ];
    Ok(keys.into_iter().filter(|(_, empty)| *empty).map(|(key, _)| key).collect())
}

/// The text of the policy with the missing permissions added.
pub(crate) fn extended(text: &str, added: &SlicePermissions) -> Result<String, ExtendError> {
    let mut expected = parse(text).map_err(ExtendError::Malformed)?;
    let mut document = document(text)?;
    let mut section = String::new();
    for kind in &added.tasks {
        list(document.as_table_mut(), "allowed_tasks")?.push_like_last(kind.as_str());
        expected.allowed_tasks.insert(*kind);
    }
    if let Some(bridge) = &added.bridge {
        match document.get_mut("slices") {
            Some(slices) => {
                let slices = slices.as_table_like_mut().ok_or(ExtendError::Form("slices"))?;
                list(slices, "bridges")?.push_like_last(bridge.as_str());
            }
            // Appended as text, so that it cannot come between a comment and the entry that the comment describes.
            None => section = slices_section(bridge),
        }
        expected.slices.bridges.named.push(bridge.clone());
    }
    let mut edited = document.to_string();
    if !section.is_empty() && !edited.is_empty() && !edited.ends_with('\n') {
        edited.push('\n');
    }
    edited.push_str(&section);
    confirmed(edited, &expected)
}

/// The text of the policy without these permissions. Permissions that are not in it are ignored.
pub(crate) fn retracted(text: &str, taken: &SlicePermissions) -> Result<String, ExtendError> {
    let mut expected = parse(text).map_err(ExtendError::Malformed)?;
    expected.allowed_tasks.retain(|kind| !taken.tasks.contains(kind));
    let mut text = text.to_owned();
    if let Some(bridge) = &taken.bridge {
        expected.slices.bridges.named.retain(|name| name != bridge);
        // A section that is unchanged since it was appended is cut off again.
        let section = slices_section(bridge);
        if let Some(rest) = text.strip_suffix(&section) {
            text = rest.to_owned();
        }
    }
    let mut document = document(&text)?;
    if document.contains_key("allowed_tasks") {
        let tasks = list(document.as_table_mut(), "allowed_tasks")?;
        tasks.retain(|entry| !taken.tasks.iter().any(|kind| entry.as_str() == Some(kind.as_str())));
    }
    if let (Some(bridge), Some(slices)) = (&taken.bridge, document.get_mut("slices")) {
        let slices = slices.as_table_like_mut().ok_or(ExtendError::Form("slices"))?;
        if slices.contains_key("bridges") {
            list(slices, "bridges")?.retain(|entry| entry.as_str() != Some(bridge.as_str()));
        }
    }
    confirmed(document.to_string(), &expected)
}

fn slices_section(bridge: &InterfaceName) -> String {
    format!("\n[slices]\nbridges = [\"{bridge}\"]\n")
}

fn document(text: &str) -> Result<DocumentMut, ExtendError> {
    text.parse().map_err(|error: toml_edit::TomlError| ExtendError::Malformed(error.to_string()))
}

/// The list with this key, created if it is missing.
fn list<'a>(table: &'a mut dyn TableLike, key: &'static str) -> Result<&'a mut Array, ExtendError> {
    if !table.contains_key(key) {
        table.insert(key, Item::Value(Value::Array(Array::new())));
    }
    table.get_mut(key).and_then(Item::as_array_mut).ok_or(ExtendError::Form(key))
}

trait PushLikeLast {
    fn push_like_last(&mut self, text: &str);
}

impl PushLikeLast for Array {
    /// In a list with one entry per line, the new entry gets its own line as well.
    fn push_like_last(&mut self, text: &str) {
        let last = self.iter().last().and_then(|last| last.decor().prefix()?.as_str());
        // Anything before the line break is a comment on the previous entry.
        let own_line = last.and_then(|prefix| prefix.rfind('\n').and_then(|at| prefix.get(at..))).map(str::to_owned);
        match own_line {
            Some(prefix) => self.push_formatted(Value::from(text).decorated(prefix, "")),
            None => self.push(text),
        }
    }
}

fn confirmed(edited: String, expected: &Rules) -> Result<String, ExtendError> {
    let is_right = parse(&edited).is_ok_and(|rules| rules == *expected);
    if is_right { Ok(edited) } else { Err(ExtendError::Unsafe) }
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    fn wanted() -> SlicePermissions {
        SlicePermissions::all("br-slices".parse().expect("a name"))
    }

    fn extend(text: &str) -> Result<String, ExtendError> {
        let missing = missing(text, &wanted())?;
        extended(text, &missing)
    }

    #[test]
    fn a_policy_is_extended_once_and_keeps_everything_else() {
        let text = "# mine\nallowed_tasks = [\n  \"diag.ping\", # always\n  \"package.list\",\n]\n\n[concurrency]\n\"diag.ping\" = 2 # two\n\
                    [slices]\nbridges = [\"br-old\"] # the old one\nusernames = [\"*\"]\n[bare_metal]\nusernames = [\"t-*\"]\n";
        let edited = extend(text).expect("extended");
        for kept in ["# mine\n", "# always", "\"diag.ping\" = 2 # two", "# the old one", "usernames = [\"*\"]", "[bare_metal]"] {
            assert!(edited.contains(kept), "{kept}: {edited}");
        }
        assert!(edited.contains("bridges = [\"br-old\", \"br-slices\"]"), "the host's own choice stays first: {edited}");
        assert!(edited.contains("\n  \"slice.vm_release\""), "a line each: {edited}");
        assert!(missing(&edited, &wanted()).expect("parses").is_empty());
        let rules = parse(&edited).expect("a policy");
        assert_eq!(rules.slices.bridge(None).map(|bridge| bridge.to_string()).as_deref(), Ok("br-old"));
        assert_eq!(rules.concurrency.len(), 1);
    }

    #[test]
    fn what_was_added_can_be_taken_back_to_the_byte() {
        for text in [
            example().as_str(),
            "",
            "allowed_tasks = []\n",
            "allowed_tasks = [\"diag.ping\"]",
            "allowed_tasks = [\"slice.vm_power\", \"diag.ping\"]\n[slices]\nbridges = [\"a\", \"b\"]\nusernames = [\"x\"]\n",
            "allowed_tasks = [\"diag.ping\"] # mine\nslices = { bridges = [\"a\"] }\n",
        ] {
            let added = missing(text, &wanted()).expect("parses");
            let edited = extended(text, &added).expect("extended");
            assert_ne!(edited, text);
            let back = retracted(&edited, &added).expect("taken back");
            // Removal does not restore everything: an added list stays, empty, and so does an added line break at the end.
            let expected = match text {
                "" => "allowed_tasks = []\n".to_owned(),
                text if text.ends_with('\n') => text.to_owned(),
                text => format!("{text}\n"),
            };
            assert_eq!(back, expected);
            assert_eq!(parse(&back), parse(text), "{text}");
        }
    }

    #[test]
    fn what_the_owner_wrote_since_survives_the_removal() {
        let added = missing(&example(), &wanted()).expect("parses");
        let mut edited = extended(&example(), &added).expect("extended");
        edited.push_str("pci_addresses = [\"0000:17:00.0\"]\n");
        let edited = edited.replace("\"slice.vm_power\"", "\"allocation.provision_user\"");
        let back = retracted(&edited, &added).expect("taken back");
        assert!(back.contains("bridges = []\npci_addresses = [\"0000:17:00.0\"]"), "{back}");
        assert!(back.contains("\"allocation.provision_user\"") && back.contains("\"slice.topology_discover\""), "{back}");
        assert!(!parse(&back).expect("a policy").allowed_tasks.contains(&TaskType::SliceVmRelease), "{back}");
        assert_eq!(retracted(&back, &added).as_deref(), Ok(back.as_str()), "twice is once");
    }

    #[test]
    fn what_is_no_policy_is_not_touched() {
        for text in [
            "nonsense",
            "allow_everything = true",
            "allowed_tasks = 1",
            "[slices]\nbridges = [\"a b\"]",
            "[concurrency]\n\"diag.ping\" = 0",
        ] {
            assert!(matches!(extend(text), Err(ExtendError::Malformed(_))), "{text}");
        }
    }

    #[test]
    fn a_bridge_among_all_bridges_is_named_all_the_same() {
        let text = "allowed_tasks = []\n[slices]\nbridges = [\"*\"]\n";
        let edited = extend(text).expect("extended");
        assert!(edited.contains("bridges = [\"*\", \"br-slices\"]"), "{edited}");
    }

    #[test]
    fn only_what_is_the_owners_to_say_is_undecided() {
        let all = ["pci_addresses", "nvme_serials", "image_sources", "image_formats", "usernames"];
        assert_eq!(undecided(&example()).expect("parses"), all);
        let decided = "[slices]\ndrives_without_gpu = [\"/dev/x\"]\nnvme_serials = [\"*\"]\nimage_sources = [\"file\"]\n\
                       image_formats = [\"raw\"]\nusernames = [\"*\"]\n";
        assert_eq!(undecided(decided).expect("parses"), [""; 0]);
    }
}
