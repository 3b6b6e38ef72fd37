//! Images: what guests are made from. Those of the platform are for everybody, those of an organization for all its projects.

use gpuaas_contract::Digest;
use gpuaas_contract::guest::{DriverStrategy, ImageFormat};
use gpuaas_contract::id::{ImageId, OrgId};
use gpuaas_contract::slice::UserName;
use gpuaas_contract::time::{OptionalRfc3339, Rfc3339, Timestamp};

/// What guests are made from.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Image {
    /// Its id.
    pub id: ImageId,
    /// Whose it is; null for the platform's.
    #[serde(default)]
    pub organization_id: Option<OrgId>,
    /// What people type; no other image of the same owner has it.
    pub name: String,
    /// In words.
    pub description: String,
    /// Where hosts fetch it.
    #[serde(default)]
    pub url: Option<String>,
    /// A file in the hosts' image folder; only shown to those who run the platform.
    #[serde(default)]
    pub path: Option<String>,
    /// Digest of the file, checked by every host.
    pub sha256: Digest,
    /// What it is said to be: `qcow2` or `raw`.
    pub format: String,
    /// How the GPU's driver gets into it: `cloud-init`, `preinstalled` or `none`.
    pub driver_strategy: String,
    /// The user it is made for.
    pub default_username: String,
    /// Who made it.
    pub created_by: String,
    /// When.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// When it was deleted. Guests made from it go on.
    #[serde(default, with = "OptionalRfc3339")]
    pub deleted_at: Option<Timestamp>,
}

impl Image {
    /// What [`Image::format`] says for a format.
    pub const fn format_name(format: ImageFormat) -> &'static str {
        match format {
            ImageFormat::Qcow2 => "qcow2",
            ImageFormat::Raw => "raw",
        }
    }

    /// What [`Image::driver_strategy`] says for a strategy.
    pub const fn driver_strategy_name(strategy: DriverStrategy) -> &'static str {
        match strategy {
            DriverStrategy::CloudInit => "cloud-init",
            DriverStrategy::Preinstalled => "preinstalled",
            DriverStrategy::None => "none",
        }
    }
}

/// Which images to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageListQuery {
    /// Only those with this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// [`super::Page::next`] of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Most items; 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// An image to make.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageCreate {
    /// What people type: 1 to 40 lower-case letters, digits and single dashes.
    pub name: String,
    /// In words; may be empty.
    #[serde(default)]
    pub description: String,
    /// Where hosts fetch it: `http://` or `https://`, without a user name or password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// A file in the hosts' image folder, as a path below it; only of the platform's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Digest of the file.
    pub sha256: Digest,
    /// What it is said to be.
    #[serde(default)]
    pub format: ImageFormat,
    /// How the GPU's driver gets into it.
    #[serde(default)]
    pub driver_strategy: DriverStrategy,
    /// The user it is made for; `ubuntu` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_username: Option<UserName>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_and_requests_use_the_same_names() {
        for format in [ImageFormat::Qcow2, ImageFormat::Raw] {
            assert_eq!(serde_json::to_value(format).expect("json"), Image::format_name(format));
        }
        for strategy in [DriverStrategy::CloudInit, DriverStrategy::Preinstalled, DriverStrategy::None] {
            assert_eq!(serde_json::to_value(strategy).expect("json"), Image::driver_strategy_name(strategy));
        }
    }
}
