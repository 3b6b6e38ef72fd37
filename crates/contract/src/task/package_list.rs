//! `package.list`: reads the list of installed packages.

use super::{Examples, Parameters};

/// Maximum number of packages in an answer, which keeps the receipt below its size limit.
pub const MAX_LIMIT: u32 = 5_000;
/// Maximum length of the name filter.
pub const MAX_FILTER: usize = 64;

/// Which packages to list.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Params {
    /// Only packages whose name contains this text.
    #[schemars(length(max = MAX_FILTER))]
    pub name_contains: String,
    /// Maximum number of packages.
    #[schemars(range(min = 1, max = MAX_LIMIT))]
    pub limit: u32,
}

impl Default for Params {
    fn default() -> Self {
        Self { name_contains: String::new(), limit: MAX_LIMIT }
    }
}

/// The installed packages.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// The package manager that listed them: `dpkg`, `rpm` or `simulated`.
    pub manager: String,
    /// Installed packages, sorted by name.
    pub packages: Vec<Package>,
    /// Number of matching packages, before the limit was applied.
    pub matched: u32,
    /// Whether packages were left out because of the limit.
    pub truncated: bool,
}

/// One installed package.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Package {
    /// Name of the package.
    pub name: String,
    /// Version with revision.
    pub version: String,
    /// Architecture.
    pub architecture: String,
}

impl Parameters for Params {
    fn check(&self) -> Result<(), String> {
        if !(1..=MAX_LIMIT).contains(&self.limit) {
            return Err(format!("limit is {}; choose 1 to {MAX_LIMIT}", self.limit));
        }
        if self.name_contains.len() > MAX_FILTER {
            return Err(format!("name_contains has {} bytes; at most {MAX_FILTER} are allowed", self.name_contains.len()));
        }
        Ok(())
    }
}

pub(super) const EXAMPLES: Examples = Examples {
    params: &["{}", r#"{"name_contains":"nvidia-driver","limit":5000}"#, r#"{"name_contains":"lib","limit":2}"#],
    refused_params: &[
        r#"{"limit":0}"#,
        r#"{"limit":5001}"#,
        r#"{"limit":"1"}"#,
        r#"{"name_contains":"0123456789012345678901234567890123456789012345678901234567890123456"}"#,
    ],
    outputs: &[
        r#"{"manager":"dpkg","packages":[{"name":"bash","version":"5.2-1","architecture":"amd64"}],"matched":2,"truncated":true}"#,
    ],
    refused_outputs: &[r#"{"manager":"rpm","packages":[],"matched":-1,"truncated":false}"#],
};
