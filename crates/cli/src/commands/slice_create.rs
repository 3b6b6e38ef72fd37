//! `gpuaas slice create`.

use std::path::{Path, PathBuf};

use gpuaas_api::dto::{SliceCreate, SlotName};
use gpuaas_contract::Digest;
use gpuaas_contract::guest::{DEFAULT_USERNAME, DriverStrategy, GuestSpec, ImageFormat, ImageSource};
use gpuaas_contract::slice::{InterfaceName, SshPublicKey, UserName, VmName};

use super::slice::{self, WaitArgs};
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::{files, resolve};

/// Largest file of SSH keys, in bytes.
pub(super) const MAX_KEY_FILE: u64 = 256 * 1024;

/// The guest to create, and its slots.
#[derive(Debug, clap::Args)]
pub(crate) struct CreateArgs {
    /// Node: its id, a unique prefix of it, or its name.
    node: String,
    /// Index of a free slot; repeatable.
    #[arg(long = "slot", value_name = "INDEX", required = true)]
    slots: Vec<u32>,
    /// Host name of the guest: lower-case letters, digits and dashes.
    #[arg(long)]
    name: VmName,
    /// URL of the image, if the host does not have it; the host's policy must allow it.
    #[arg(long, value_name = "URL", required_unless_present = "image_path")]
    image_url: Option<String>,
    /// Path of an image in the host's image folder.
    #[arg(long, value_name = "PATH")]
    image_path: Option<String>,
    /// SHA-256 of the image. The host always checks it.
    #[arg(long, value_name = "HEX", value_parser = digest)]
    image_sha256: Digest,
    /// Format of the image.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Qcow2)]
    image_format: Format,
    /// File with public SSH keys of the user, one per line; repeatable.
    #[arg(long = "ssh-key", value_name = "FILE")]
    ssh_keys: Vec<PathBuf>,
    /// User name inside the guest.
    #[arg(long, default_value = DEFAULT_USERNAME)]
    user: UserName,
    /// How the GPU driver is installed in the guest.
    #[arg(long, value_enum, default_value_t = Driver::None)]
    driver: Driver,
    /// Open vSwitch bridge of the guest, which the host's policy must list [default: the host's].
    #[arg(long)]
    bridge: Option<InterfaceName>,
    /// Add a virtual display to the guest.
    #[arg(long)]
    graphics: bool,
    #[command(flatten)]
    wait: WaitArgs,
}

/// Format of an image.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum Format {
    /// qcow2 image.
    Qcow2,
    /// Raw disk image.
    Raw,
}

/// How the GPU driver is installed in a guest.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum Driver {
    /// Installed at first boot.
    CloudInit,
    /// Already in the image.
    Preinstalled,
    /// Not installed; the tenant installs it.
    None,
}

impl From<Format> for ImageFormat {
    fn from(format: Format) -> Self {
        match format {
            Format::Qcow2 => Self::Qcow2,
            Format::Raw => Self::Raw,
        }
    }
}

impl From<Driver> for DriverStrategy {
    fn from(driver: Driver) -> Self {
        match driver {
            Driver::CloudInit => Self::CloudInit,
            Driver::Preinstalled => Self::Preinstalled,
            Driver::None => Self::None,
        }
    }
}

pub(super) fn digest(text: &str) -> Result<Digest, String> {
    let hex = text.strip_prefix("sha256:").unwrap_or(text).to_lowercase();
    format!("sha256:{hex}").try_into().map_err(|_| "expected the 64 hex digits that `sha256sum` prints".to_owned())
}

pub(super) async fn run(session: &CommandContext, args: CreateArgs) -> Result<Exit, CliError> {
    let mut ssh_public_keys = Vec::new();
    for file in &args.ssh_keys {
        ssh_public_keys.extend(keys(file, &files::read(file, MAX_KEY_FILE)?)?);
    }
    let client = session.client()?;
    let create = SliceCreate {
        node: resolve::node(client, &args.node).await?,
        slots: args.slots.into_iter().map(SlotName::Index).collect(),
        guest: GuestSpec {
            vm_name: args.name,
            image: ImageSource {
                path: args.image_path,
                url: args.image_url,
                sha256: args.image_sha256,
                format: args.image_format.into(),
                trusted: false,
            },
            default_username: args.user,
            ssh_public_keys,
            driver_strategy: args.driver.into(),
            ovs_bridge: args.bridge,
            graphics: args.graphics,
            graceful_timeout_seconds: None,
        },
    };
    if create.guest.ssh_public_keys.is_empty() {
        session.output.warn("no --ssh-key is given: nobody can sign in to the guest by SSH");
    }
    let order = client.slice_create(&create, args.wait.idempotency_key.as_deref()).await?;
    slice::finish(session, order, args.wait.no_wait).await
}

/// Parses a file with one public key per line. Comment lines are skipped.
pub(super) fn keys(path: &Path, bytes: &[u8]) -> Result<Vec<SshPublicKey>, CliError> {
    let name = path.display();
    let text = String::from_utf8_lossy(bytes);
    if text.contains("PRIVATE KEY-----") {
        let message = format!("{name} is a private key, which must not be sent");
        return Err(CliError::usage("private_key_given", message).hint(format!("give the public one: {name}.pub")));
    }
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let keys: Vec<SshPublicKey> = lines
        .map(|line| line.parse().map_err(|error| CliError::usage("ssh_key_invalid", format!("{name}: {error}"))))
        .collect::<Result<_, _>>()?;
    if keys.is_empty() {
        return Err(CliError::usage("ssh_key_missing", format!("{name} contains no key")));
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJwBQ0Rk5yyC9bmCK1Kf9gvvNQWYF3rPzqeQFZ0sWsWq";

    #[test]
    fn keys_are_read_line_by_line_and_private_ones_are_left_alone() {
        let file = format!("# mine\n\n{KEY} me@here\n  {KEY}\n");
        let read = keys(Path::new("k"), file.as_bytes()).expect("keys");
        assert_eq!(read.iter().map(SshPublicKey::as_str).collect::<Vec<_>>(), [KEY, KEY], "without comments");
        let refused = |text: &str| keys(Path::new("k"), text.as_bytes()).expect_err("no key").code;
        assert_eq!(refused("-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl\n"), "private_key_given");
        assert_eq!(refused("# nothing\n"), "ssh_key_missing");
        assert_eq!(refused("ssh-dss AAAA"), "ssh_key_invalid");
    }

    #[test]
    fn a_digest_may_be_written_as_sha256sum_does() {
        let hex = "AB".repeat(32);
        assert_eq!(digest(&hex).expect("a digest"), digest(&format!("sha256:{}", hex.to_lowercase())).expect("a digest"));
        assert!(digest("abc").is_err());
    }
}
