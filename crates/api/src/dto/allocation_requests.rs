//! Requests about allocations.

use std::collections::BTreeMap;

use gpuaas_contract::slice::{SshPublicKey, UserName, VmName};
use gpuaas_contract::state::AllocationState;

use super::StateFilter;

/// An allocation to create.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AllocationCreate {
    /// Name, which is also the host name of the guest.
    pub name: VmName,
    /// The product, by name or id.
    pub sku: String,
    /// The image of the guest, by name or id; absent for a whole host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// SSH keys of the project that can sign in, by name or id. At least one key is required, here or in `ssh_public_keys`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ssh_keys: Vec<String>,
    /// Additional SSH public keys, as lines of `authorized_keys`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ssh_public_keys: Vec<SshPublicKey>,
    /// Name of the user account; that of the image by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<UserName>,
    /// Tags: at most 32, keys of 1 to 63 letters, digits and `-_./`, values of at most 200 bytes on one line.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// Length of the lease in seconds, at least 60; without it, the lease has no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_seconds: Option<u64>,
    /// How many seconds the allocation may wait for free capacity. By default, it fails immediately if nothing is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_seconds: Option<u64>,
    /// Chooses the host with the most free slots instead of the tightest fit.
    #[serde(default)]
    pub spread: bool,
    /// On a whole host, allows the user to become root, if the policy of the host permits it.
    #[serde(default)]
    pub sudo: bool,
    /// How many seconds the guest has to shut down, clamped to 30 to 900; 120 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graceful_timeout_seconds: Option<u32>,
    /// Shows what would be created, without creating anything: the response is an [`super::AllocationPlan`].
    #[serde(default)]
    pub dry_run: bool,
}

/// Changes to an allocation. Absent fields stay as they are, and the guest keeps its host name.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AllocationChange {
    /// New name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<VmName>,
    /// New tags, which replace all existing ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<BTreeMap<String, String>>,
}

/// A change of the end of a lease. Exactly one field is required.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AllocationExtend {
    /// How many seconds to add to the end of the lease, or to the current time if it has no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_seconds: Option<u64>,
    /// Removes the end of the lease.
    #[serde(default)]
    pub forever: bool,
}

/// Options for a retry.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AllocationRetry {
    /// How many seconds the allocation may wait for free capacity. By default, it fails immediately if nothing is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_seconds: Option<u64>,
}

/// Filter for a list of allocations of a project.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AllocationListQuery {
    /// Only allocations in this state; `open` means every state that is not final.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<StateFilter<AllocationState>>,
    /// Only allocations with all of these tags: `key=value`, separated by commas. A comma or backslash in a value has a
    /// backslash before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<String>,
    /// Only items with this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Sorts newest first instead of oldest first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest_first: Option<bool>,
    /// Returns the items after this one: [`super::Page::next`] of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Maximum number of items, 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// Filter for a list of allocations of all projects.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AllocationSearchQuery {
    /// Only items on this node, by id or unique name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Only allocations of this project, by id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// Only items of this organization, by id or name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organization: Option<String>,
    /// Only allocations in this state; `open` means every state that is not final.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<StateFilter<AllocationState>>,
    /// Only allocations with all of these tags: `key=value`, separated by commas. A comma or backslash in a value has a
    /// backslash before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<String>,
    /// Only items with this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Sorts newest first instead of oldest first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest_first: Option<bool>,
    /// Returns the items after this one: [`super::Page::next`] of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Maximum number of items, 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// When the stream of an allocation ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AllocationWatchQuery {
    /// `over` (the default): when it is released or has failed. `settled`: also when it is active or stopped, or its release is blocked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
}

/// Tags as one text: `key=value` pairs, separated by commas. A comma or a backslash in a value is escaped with a backslash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tags(pub BTreeMap<String, String>);

/// The error for a text that is not a list of tags.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tags are written as `key=value`, with commas between them, each key once; a comma inside a value is written as `\\,`")]
pub struct BadTags;

impl std::fmt::Display for Tags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (number, (key, value)) in self.0.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            write!(f, "{comma}{key}={}", value.replace('\\', r"\\").replace(',', r"\,"))?;
        }
        Ok(())
    }
}

impl std::str::FromStr for Tags {
    type Err = BadTags;

    fn from_str(text: &str) -> Result<Self, BadTags> {
        let mut pairs = vec![String::new()];
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            let c = match c {
                ',' => {
                    pairs.push(String::new());
                    continue;
                }
                '\\' => chars.next().filter(|escaped| matches!(escaped, ',' | '\\')).ok_or(BadTags)?,
                c => c,
            };
            pairs.last_mut().ok_or(BadTags)?.push(c);
        }
        let mut tags = BTreeMap::new();
        for pair in pairs.iter().filter(|_| !text.is_empty()) {
            let (key, value) = pair.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or(BadTags)?;
            if tags.insert(key.to_owned(), value.to_owned()).is_some() {
                return Err(BadTags);
            }
        }
        Ok(Self(tags))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(pairs: &[(&str, &str)]) -> Tags {
        Tags(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn tags_read_back_as_they_were_written() {
        for tags in [tags(&[]), tags(&[("a", "")]), tags(&[("team", "ml"), ("who", r"a,b=c\,")]), tags(&[("a", r"\")])] {
            assert_eq!(tags.to_string().parse(), Ok(tags));
        }
    }

    #[test]
    fn what_is_no_list_of_tags_is_refused() {
        for bad in ["a", "=b", "a=b,", ",a=b", "a=b,a=c", r"a=\n", r"a=\"] {
            assert_eq!(bad.parse::<Tags>(), Err(BadTags), "{bad}");
        }
    }

    #[test]
    fn what_is_not_said_has_its_default_and_what_is_misspelled_is_refused() {
        let create: AllocationCreate = serde_json::from_str(r#"{"name":"a","sku":"h100"}"#).expect("parses");
        assert!(!create.dry_run && !create.sudo && !create.spread && create.ssh_keys.is_empty());
        assert!(serde_json::from_str::<AllocationCreate>(r#"{"name":"a","sku":"h100","lease":60}"#).is_err());
        assert!(serde_json::from_str::<AllocationCreate>(r#"{"name":"../a","sku":"h100"}"#).is_err());
    }
}
