//! Images, from which guests are created. Images of the platform are for everybody, those of an organization for all its projects.

use gpuaas_contract::Digest;
use gpuaas_contract::guest::{DriverStrategy, ImageFormat};
use gpuaas_contract::id::{ImageId, OrgId};
use gpuaas_contract::slice::UserName;
use gpuaas_contract::time::{OptionalRfc3339, Rfc3339, Timestamp};

/// An image of a guest.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Image {
    /// Id of the image.
    pub id: ImageId,
    /// The organization that owns it; null for an image of the platform.
    #[serde(default)]
    pub organization_id: Option<OrgId>,
    /// Name, unique among the images of its owner.
    pub name: String,
    /// Description.
    pub description: String,
    /// URL from which hosts download it.
    #[serde(default)]
    pub url: Option<String>,
    /// File in the image folder of the hosts. Only shown to platform operators.
    #[serde(default)]
    pub path: Option<String>,
    /// Digest of the file, checked by every host.
    pub sha256: Digest,
    /// Format: `qcow2` or `raw`.
    pub format: String,
    /// How the GPU driver is installed in the guest: `cloud-init`, `preinstalled` or `none`.
    pub driver_strategy: String,
    /// Default user of the image.
    pub default_username: String,
    /// Who created it.
    pub created_by: String,
    /// When it was created.
    #[serde(with = "Rfc3339")]
    pub created_at: Timestamp,
    /// When it was deleted. Guests that were created from it keep running.
    #[serde(default, with = "OptionalRfc3339")]
    pub deleted_at: Option<Timestamp>,
}

impl Image {
    /// The value of [`Image::format`] for a format.
    pub const fn format_name(format: ImageFormat) -> &'static str {
        match format {
            ImageFormat::Qcow2 => "qcow2",
            ImageFormat::Raw => "raw",
        }
    }

    /// The value of [`Image::driver_strategy`] for a strategy.
    pub const fn driver_strategy_name(strategy: DriverStrategy) -> &'static str {
        match strategy {
            DriverStrategy::CloudInit => "cloud-init",
            DriverStrategy::Preinstalled => "preinstalled",
            DriverStrategy::None => "none",
        }
    }
}

/// Filter for a list of images.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageListQuery {
    /// Only items with this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Returns the items after this one: [`super::Page::next`] of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Maximum number of items, 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// An image to create.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageCreate {
    /// Name: 1 to 40 lower-case letters, digits and single dashes.
    pub name: String,
    /// Description; may be empty.
    #[serde(default)]
    pub description: String,
    /// URL from which hosts download it: `http://` or `https://`, without a user name or password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// File in the image folder of the hosts, as a relative path. Only for images of the platform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Digest of the file.
    pub sha256: Digest,
    /// Format of the file.
    #[serde(default)]
    pub format: ImageFormat,
    /// How the GPU driver is installed in the guest.
    #[serde(default)]
    pub driver_strategy: DriverStrategy,
    /// Default user of the image; `ubuntu` by default.
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
