//! What a guest consists of: declared once, and used by the operators' API, the signed task and the agent.

use crate::Digest;
use crate::slice::{InterfaceName, SshPublicKey, UserName, VmName};

/// Maximum number of SSH keys per guest.
pub const MAX_KEYS: usize = 32;
/// Maximum size of all SSH keys together: they must fit into an envelope.
pub const MAX_KEY_BYTES: usize = 12 * 1024;
/// Maximum length of an image URL.
pub const MAX_URL: usize = 2048;
/// Maximum length of an image path.
pub const MAX_PATH: usize = 255;
/// User name in the guest unless the request names one.
pub const DEFAULT_USERNAME: &str = "ubuntu";
/// Seconds a guest has to shut down unless the request sets a time.
pub const DEFAULT_SHUTDOWN_SECONDS: u32 = 120;

/// How the GPU driver is installed in the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DriverStrategy {
    /// Installed by cloud-init at the first boot.
    CloudInit,
    /// Already in the image.
    Preinstalled,
    /// Not installed; the tenant installs it.
    #[default]
    None,
}

/// Declared format of an image. Hosts check it before they use the image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImageFormat {
    /// A qcow2 image.
    #[default]
    Qcow2,
    /// A raw disk image.
    Raw,
}

/// The image that a guest is created from.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageSource {
    /// File in the host's image folder, as a relative path. Tried before `url`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_PATH))]
    pub path: Option<String>,
    /// URL from which the host downloads it if it does not have it: `https://…` or `http://…`. The host's policy must allow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_URL))]
    pub url: Option<String>,
    /// Digest of the file, always checked.
    pub sha256: Digest,
    /// Format of the file.
    #[serde(default)]
    pub format: ImageFormat,
    /// Whether the operator vouches for the image. It is checked in any case.
    #[serde(default)]
    pub trusted: bool,
}

/// Specification of a guest, independent of its slots.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuestSpec {
    /// Host name of the guest.
    pub vm_name: VmName,
    /// The image that it is created from.
    pub image: ImageSource,
    /// Default user of the guest, for whom the SSH keys are valid.
    #[serde(default = "default_username")]
    pub default_username: UserName,
    /// SSH public keys of that user.
    #[serde(default)]
    #[schemars(length(max = MAX_KEYS))]
    pub ssh_public_keys: Vec<SshPublicKey>,
    /// How the GPU driver is installed.
    #[serde(default)]
    pub driver_strategy: DriverStrategy,
    /// Open vSwitch bridge of the guest, which the host's policy must list; the host's own by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ovs_bridge: Option<InterfaceName>,
    /// Whether the guest has a virtual display, which is reachable only through the gateway.
    #[serde(default)]
    pub graphics: bool,
    /// How many seconds the guest has to shut down, clamped to 30 to 900; 120 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graceful_timeout_seconds: Option<u32>,
}

fn default_username() -> UserName {
    DEFAULT_USERNAME.parse().unwrap_or_else(|_| unreachable!("a constant that a test parses"))
}

impl GuestSpec {
    /// Seconds the guest has to shut down.
    pub fn shutdown_seconds(&self) -> u32 {
        self.graceful_timeout_seconds.unwrap_or(DEFAULT_SHUTDOWN_SECONDS)
    }

    /// Checks all limits; the error names the field.
    pub fn check(&self) -> Result<(), String> {
        check_keys(&self.ssh_public_keys)?;
        if matches!(self.default_username.as_str(), "root" | "gpuaas") {
            return Err("default_username: `root` and `gpuaas` are taken; choose another name".to_owned());
        }
        self.image.check()
    }
}

impl ImageSource {
    /// Checks that the image has a location, and that path and URL are safe on every host.
    fn check(&self) -> Result<(), String> {
        if self.path.is_none() && self.url.is_none() {
            return Err("image.path or image.url must say where the image is".to_owned());
        }
        self.path.as_deref().map_or(Ok(()), check_path)?;
        self.url.as_deref().map_or(Ok(()), check_url)
    }
}

/// Checks that these keys fit into a task.
pub(crate) fn check_keys(keys: &[SshPublicKey]) -> Result<(), String> {
    if keys.len() > MAX_KEYS {
        return Err(format!("ssh_public_keys: at most {MAX_KEYS} are allowed"));
    }
    if keys.iter().map(|key| key.as_str().len()).sum::<usize>() > MAX_KEY_BYTES {
        return Err(format!("ssh_public_keys: more than {MAX_KEY_BYTES} bytes together; use fewer or shorter ones (ed25519)"));
    }
    Ok(())
}

/// Accepts only a relative path of plain components, none of which can lead out of the folder.
fn check_path(path: &str) -> Result<(), String> {
    let plain = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && !part.starts_with('-')
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'+'))
    };
    if path.len() <= MAX_PATH && path.split('/').all(plain) {
        return Ok(());
    }
    Err("image.path must be a plain path below the image folder, without `..` and without a leading `/`".to_owned())
}

fn check_url(url: &str) -> Result<(), String> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://")).unwrap_or_default();
    let printable = url.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'\'' | b'<' | b'>' | b'\\' | b'`' | b'#'));
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    if url.len() <= MAX_URL && printable && !authority.is_empty() && !authority.contains('@') {
        return Ok(());
    }
    Err("image.url must be a plain http:// or https:// address without a user".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn guest(change: impl FnOnce(&mut Value)) -> Result<GuestSpec, String> {
        let mut spec = json!({ "vm_name": "a", "image": { "path": "debian/12.qcow2", "sha256": Digest::of(b"image") } });
        change(&mut spec);
        let guest: GuestSpec = serde_json::from_value(spec).map_err(|error| error.to_string())?;
        guest.check().map(|()| guest)
    }

    #[test]
    fn what_is_not_given_has_its_default() {
        let guest = guest(|_| ()).expect("taken");
        assert_eq!((guest.default_username.as_str(), guest.shutdown_seconds()), (DEFAULT_USERNAME, DEFAULT_SHUTDOWN_SECONDS));
        assert_eq!((guest.driver_strategy, guest.image.format), (DriverStrategy::None, ImageFormat::Qcow2));
        assert!(guest.ssh_public_keys.is_empty() && guest.ovs_bridge.is_none() && !guest.graphics && !guest.image.trusted);
    }

    #[test]
    fn what_is_outside_its_limits_is_refused_with_the_name_of_the_field() {
        for (pointer, value, field) in [
            ("/default_username", json!("root"), "default_username"),
            ("/default_username", json!("gpuaas"), "default_username"),
            ("/image/path", json!("../etc/shadow"), "image.path"),
            ("/image/path", json!("/etc/shadow"), "image.path"),
            ("/image/path", json!("a/-rf"), "image.path"),
            ("/image/path", json!("a".repeat(256)), "image.path"),
            ("/image/path", Value::Null, "image.url"),
            ("/image/url", json!("file:///etc/shadow"), "image.url"),
            ("/image/url", json!("https://user@images.example/a"), "image.url"),
            ("/image/url", json!(format!("https://images.example/{}", "a".repeat(2048))), "image.url"),
        ] {
            let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
            let error = guest(|spec| spec.pointer_mut(parent).expect("there")[name] = value.clone()).expect_err(pointer);
            assert!(error.contains(field), "{pointer} {value}: {error}");
        }
    }
}
