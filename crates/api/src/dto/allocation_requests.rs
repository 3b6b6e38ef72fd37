//! What is asked of allocations.

use std::collections::BTreeMap;

use gpuaas_contract::slice::{SshPublicKey, UserName, VmName};
use gpuaas_contract::state::AllocationState;

use super::StateFilter;

/// Something to lease.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AllocationCreate {
    /// What people call it; also the guest's own name.
    pub name: VmName,
    /// The product, by name or id.
    pub sku: String,
    /// What the guest is made from, by name or id; absent for a whole host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Stored keys of the project that may sign in, by name or id. At least one key is needed, here or below.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ssh_keys: Vec<String>,
    /// More keys, as lines of `authorized_keys`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ssh_public_keys: Vec<SshPublicKey>,
    /// The user who is made; that of the image unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<UserName>,
    /// More words: at most 32, keys of 1 to 63 letters, digits and `-_./`, values of at most 200 bytes on one line.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// How long the lease is, 60 or more; until it is released unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_seconds: Option<u64>,
    /// How long it may wait for a place; it fails at once if nothing is free unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_seconds: Option<u64>,
    /// Take the host with the most room instead of the tightest fit.
    #[serde(default)]
    pub spread: bool,
    /// On a whole host, the user may become root, if the host's owner lets them.
    #[serde(default)]
    pub sudo: bool,
    /// How long the guest may take to shut down, brought into 30 to 900 s; 120 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graceful_timeout_seconds: Option<u32>,
    /// Only say what would come of it: the answer is an [`super::AllocationPlan`], and nothing is made.
    #[serde(default)]
    pub dry_run: bool,
}

/// What to change of an allocation; what is absent stays. Its guest keeps the name it gave itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AllocationChange {
    /// Another name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<VmName>,
    /// Other tags, instead of all it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<BTreeMap<String, String>>,
}

/// Another end of the lease: exactly one of the two.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AllocationExtend {
    /// This much later than it ends now, or than now if it has no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_seconds: Option<u64>,
    /// No end: it goes on until it is released.
    #[serde(default)]
    pub forever: bool,
}

/// Something that failed, to try again.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AllocationRetry {
    /// How long it may wait for a place; it fails at once if nothing is free unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_seconds: Option<u64>,
}

/// Which allocations of a project to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AllocationListQuery {
    /// Only those in this state; `open` means every state in which something is held or still to come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<StateFilter<AllocationState>>,
    /// Only those with all of these tags: `key=value`, several with commas between them. A comma or backslash in a value has a
    /// backslash before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<String>,
    /// Only those with this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The newest first instead of the oldest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest_first: Option<bool>,
    /// [`super::Page::next`] of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Most items; 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// Which allocations of the whole platform to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AllocationSearchQuery {
    /// Only those on this node, by id or unique name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Only those of this project, by id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// Only those of this organization, by id or name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organization: Option<String>,
    /// Only those in this state; `open` means every state in which something is held or still to come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<StateFilter<AllocationState>>,
    /// Only those with all of these tags: `key=value`, several with commas between them. A comma or backslash in a value has a
    /// backslash before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<String>,
    /// Only those with this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The newest first instead of the oldest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest_first: Option<bool>,
    /// [`super::Page::next`] of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Most items; 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// How long to watch an allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AllocationWatchQuery {
    /// `over` (the default): until it is released or has failed. `settled`: also end when it is active or its release is blocked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
}

/// Tags as one text: `key=value` pairs with commas between them. A comma or a backslash inside a value has a backslash before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tags(pub BTreeMap<String, String>);

/// A text that is no list of tags.
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
