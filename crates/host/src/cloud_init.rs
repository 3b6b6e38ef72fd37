//! The instructions for a guest's first boot, and the seed disk with them, created by `cloud-localds`.
//!
//! The documents are JSON, which is also YAML: a serializer writes them, so a text always stays a text. The helpers inside the
//! guest are files in `crates/host/guest`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use gpuaas_contract::guest::{DriverStrategy, GuestSpec};
use gpuaas_contract::id::AllocationId;
use gpuaas_contract::slice::{SshPublicKey, UserName};
use rustix::fs::Mode;
use serde_json::{Value, json};

use crate::HostError;
use crate::exec::{Exec, first_installed};
use crate::guests::InstanceFile;
use crate::instance::{self, on_thread};
use crate::openat2::Access;

/// The file that marks the end of a guest's first boot. It contains the duration of the boot in milliseconds.
pub const MARKER: &str = "/var/lib/gpuaas/slice-ready";
/// The helper that measures the performance.
pub const PROBE: &str = "/usr/local/lib/gpuaas/performance-probe";
const TELEMETRY: &str = "/usr/local/lib/gpuaas/telemetry";
const INSTALL_DRIVER: &str = "/usr/local/lib/gpuaas/install-driver";
const MARK_READY: &str = "/usr/local/lib/gpuaas/mark-ready";
/// Time limit for the driver installation, in seconds. The guest becomes ready in any case.
const DRIVER_SECONDS: &str = "1500";

const CLOUD_LOCALDS: &[&str] = &["/usr/bin/cloud-localds"];
/// `env` sets the variable that tells the program where to put temporary files.
const ENV: &[&str] = &["/usr/bin/env"];
const DEADLINE: Duration = Duration::from_secs(60);
/// The folder for unfinished seeds: they contain the guest's host key, and other users can enter the guest's folder.
const WORKSHOP: &str = ".seed";

/// The vendor of a guest's GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuVendor {
    /// NVIDIA.
    Nvidia,
    /// AMD.
    Amd,
}

/// Where a guest sends its metrics.
#[derive(Clone, PartialEq, Eq)]
pub struct TelemetrySeed {
    /// Address and port of the host's listener.
    pub endpoint: String,
    /// The token that the guest sends.
    pub token: String,
}

/// The content of a guest's seed.
#[derive(Clone, PartialEq, Eq)]
pub struct SeedSpec {
    /// The allocation: cloud-init's instance id.
    pub allocation_id: AllocationId,
    /// What the guest is.
    pub guest: GuestSpec,
    /// The MAC address of its network card, which identifies it among others.
    pub mac_address: String,
    /// The host's key for the guest's user. It is used to check whether the guest is ready, and for terminals.
    pub terminal_public_key: String,
    /// The guest's own host key.
    pub host_private_pem: String,
    /// Its public half.
    pub host_public_line: String,
    /// The vendor of its GPU, if it has one.
    pub gpu_vendor: Option<GpuVendor>,
    /// Where it sends its metrics, if there is a listener.
    pub telemetry: Option<TelemetrySeed>,
}

impl std::fmt::Debug for TelemetrySeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TelemetrySeed").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for SeedSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SeedSpec")
            .field("allocation_id", &self.allocation_id)
            .field("vm_name", &self.guest.vm_name)
            .finish_non_exhaustive()
    }
}

/// Returns the user of the guest with this [`user_data`].
pub fn user_of(user_data: &[u8]) -> Option<UserName> {
    let text = std::str::from_utf8(user_data).ok()?.strip_prefix("#cloud-config\n")?;
    let config: Value = serde_json::from_str(text).ok()?;
    config["users"][0]["name"].as_str()?.parse().ok()
}

/// Returns the user data: what cloud-init does.
pub fn user_data(seed: &SeedSpec) -> String {
    let keys: Vec<&str> =
        seed.guest.ssh_public_keys.iter().map(SshPublicKey::as_str).chain([seed.terminal_public_key.trim()]).collect();
    let mut user = json!({
        "name": seed.guest.default_username.as_str(),
        "shell": "/bin/bash",
        "sudo": ["ALL=(ALL) NOPASSWD:ALL"],
        "lock_passwd": true,
        "ssh_authorized_keys": keys,
    });
    if seed.gpu_vendor == Some(GpuVendor::Amd) {
        // These groups may use the devices of amdgpu.
        user["groups"] = json!(["video", "render"]);
    }
    let config = json!({
        "preserve_hostname": false,
        "hostname": seed.guest.vm_name.as_str(),
        "manage_etc_hosts": true,
        "users": [user],
        "disable_root": true,
        "ssh_pwauth": false,
        // With a given key, cloud-init generates none. `ssh_genkeytypes: []` would repeat that, but its schema refuses it.
        "ssh_deletekeys": true,
        "ssh_keys": {
            "ed25519_private": seed.host_private_pem,
            "ed25519_public": seed.host_public_line.trim(),
        },
        "write_files": write_files(seed),
        "runcmd": run_commands(seed),
    });
    format!("#cloud-config\n{}", document(&config))
}

/// Returns the metadata: the identity of the guest.
pub fn meta_data(seed: &SeedSpec) -> String {
    document(&json!({ "instance-id": seed.allocation_id.to_string(), "local-hostname": seed.guest.vm_name.as_str() }))
}

/// Returns the network configuration. It matches by MAC address, because passed-through devices may include network cards.
pub fn network_config(seed: &SeedSpec) -> String {
    let card = json!({ "match": { "macaddress": seed.mac_address }, "dhcp4": true, "dhcp6": false });
    document(&json!({ "version": 2, "ethernets": { "primary": card } }))
}

fn write_files(seed: &SeedSpec) -> Vec<Value> {
    let file = |path: &str, permissions: &str, content: &str| json!({ "path": path, "owner": "root:root", "permissions": permissions, "content": content });
    let mut files = vec![
        file(PROBE, "0755", include_str!("../guest/performance-probe.sh")),
        file(MARK_READY, "0755", include_str!("../guest/mark-ready.sh")),
    ];
    if driver(seed).is_some() {
        files.push(file(INSTALL_DRIVER, "0755", include_str!("../guest/install-driver.sh")));
    }
    if let Some(TelemetrySeed { endpoint, token }) = &seed.telemetry {
        files.extend([
            file(TELEMETRY, "0755", include_str!("../guest/telemetry.sh")),
            file("/etc/gpuaas/telemetry-header", "0600", &format!("Authorization: Bearer {}\n", one_line(token))),
            file("/etc/gpuaas/telemetry-endpoint", "0644", &format!("{}\n", one_line(endpoint))),
            file("/etc/systemd/system/gpuaas-telemetry.service", "0644", include_str!("../guest/gpuaas-telemetry.service")),
            file("/etc/systemd/system/gpuaas-telemetry.timer", "0644", include_str!("../guest/gpuaas-telemetry.timer")),
        ]);
    }
    files
}

/// Returns the commands of the first boot, as words. A failed command does not stop the next ones.
fn run_commands(seed: &SeedSpec) -> Vec<Value> {
    let mut commands = Vec::new();
    if seed.telemetry.is_some() {
        commands.push(json!(["systemctl", "daemon-reload"]));
        // Not waited for: this runs inside a service that others wait for.
        commands.push(json!(["systemctl", "--no-block", "enable", "--now", "gpuaas-telemetry.timer"]));
    }
    if let Some(vendor) = driver(seed) {
        commands.push(json!(["timeout", DRIVER_SECONDS, INSTALL_DRIVER, vendor]));
    }
    // Must be the last command.
    commands.push(json!([MARK_READY]));
    commands
}

/// Returns the vendor whose driver is installed.
fn driver(seed: &SeedSpec) -> Option<&'static str> {
    match (seed.guest.driver_strategy, seed.gpu_vendor?) {
        (DriverStrategy::CloudInit, GpuVendor::Nvidia) => Some("nvidia"),
        (DriverStrategy::CloudInit, GpuVendor::Amd) => Some("amd"),
        (DriverStrategy::Preinstalled | DriverStrategy::None, _) => None,
    }
}

fn one_line(text: &str) -> String {
    text.trim().chars().filter(|c| !c.is_control()).collect()
}

/// Returns JSON that every YAML parser reads the same way.
fn document(value: &Value) -> String {
    let mut text = String::new();
    for c in format!("{value:#}\n").chars() {
        match c {
            // Valid in JSON as they are, but line breaks or forbidden in YAML. They can only occur inside strings.
            '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => {
                text.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => text.push(c),
        }
    }
    text
}

/// Creates the seed disk from the seed files in the guest's folder.
pub(crate) async fn build_seed(instances: &Path, id: AllocationId) -> Result<(), HostError> {
    let missing = |what: &str| HostError::new("seed_tool_missing", format!("{what} is not installed; install cloud-image-utils"));
    let env = first_installed(ENV).ok_or_else(|| missing("env"))?;
    let program = first_installed(CLOUD_LOCALDS).ok_or_else(|| missing("cloud-localds"))?;
    let folder = prepare(instances.to_owned(), id).await?;
    let workshop = folder.join(WORKSHOP);
    let path = |file: InstanceFile| folder.join(file.name());
    let mut directory = std::ffi::OsString::from("TMPDIR=");
    directory.push(&workshop);
    let exec = Exec::new(env)
        .arg(directory)
        .arg(program)
        .arg("--network-config")
        .arg(path(InstanceFile::NetworkConfig))
        .arg(workshop.join(InstanceFile::Seed.name()))
        .arg(path(InstanceFile::UserData))
        .arg(path(InstanceFile::MetaData))
        .deadline(DEADLINE);
    let made = exec.run().await.map_err(|error| HostError::because("seed_failed", "the seed disk was not created", &error));
    let taken = publish(instances.to_owned(), id, made.is_ok()).await;
    made.and(taken)
}

/// Checks that the inputs are plain files of the guest's folder, and creates the working folder.
async fn prepare(instances: PathBuf, id: AllocationId) -> Result<PathBuf, HostError> {
    on_thread(move || {
        let folder = instance::open(&instances, id)?;
        for file in [InstanceFile::UserData, InstanceFile::MetaData, InstanceFile::NetworkConfig] {
            if folder.file(file.name(), Access::Read).map_err(instance::failed)?.is_none() {
                return Err(HostError::new("instance_missing", format!("{id} has no {}", file.name())));
            }
        }
        folder.remove_tree(WORKSHOP).map_err(instance::failed)?;
        folder.make_inner(WORKSHOP, 0o700).map_err(instance::failed)?;
        Ok(folder.path().to_owned())
    })
    .await
}

/// Moves a finished seed into place, and cleans up in any case.
async fn publish(instances: PathBuf, id: AllocationId, made: bool) -> Result<(), HostError> {
    on_thread(move || {
        let folder = instance::open(&instances, id)?;
        let name = InstanceFile::Seed.name();
        if made {
            let nothing = || HostError::new("seed_failed", "cloud-localds created no seed disk".to_owned());
            let workshop = folder.inner(WORKSHOP).map_err(instance::failed)?.ok_or_else(nothing)?;
            let seed = workshop.file(name, Access::Change).map_err(instance::failed)?.ok_or_else(nothing)?;
            let finished = rustix::fs::fchmod(&seed, Mode::from_raw_mode(0o600))
                .map_err(std::io::Error::from)
                .and_then(|()| seed.sync_all());
            finished.map_err(|error| HostError::because("seed_failed", "the seed disk was not kept", &error))?;
            folder.take_from(&workshop, name, name).map_err(instance::failed)?;
        }
        folder.remove_tree(WORKSHOP).map_err(instance::failed)
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use gpuaas_contract::telemetry::GuestReport;

    use gpuaas_contract::guest::ImageSource;

    use super::*;

    /// Everything with a meaning in YAML or a shell, and invalid characters.
    const EVIL: &str = "'\"`$(id)${x}\\ #: - {}[]&*!|>%@\n\r\t---\n...\u{7f}\u{85}\u{2028}\u{feff}é😀";

    fn seed() -> SeedSpec {
        let key = crate::openssh_key::generate("tenant").expect("made").public_line;
        let host = crate::openssh_key::generate("host").expect("made");
        SeedSpec {
            allocation_id: AllocationId::generate(),
            guest: GuestSpec {
                vm_name: "trainer".parse().expect("a name"),
                image: ImageSource {
                    path: Some("image.qcow2".to_owned()),
                    url: None,
                    sha256: gpuaas_contract::Digest::of(b"image"),
                    format: Default::default(),
                    trusted: false,
                },
                default_username: "ubuntu".parse().expect("a user"),
                ssh_public_keys: vec![key.parse().expect("a key")],
                driver_strategy: DriverStrategy::CloudInit,
                ovs_bridge: None,
                graphics: false,
                graceful_timeout_seconds: None,
            },
            mac_address: "02:00:5e:10:00:01".to_owned(),
            terminal_public_key: crate::openssh_key::generate("terminal").expect("made").public_line,
            host_private_pem: host.private_pem.to_string(),
            host_public_line: host.public_line,
            gpu_vendor: Some(GpuVendor::Nvidia),
            telemetry: Some(TelemetrySeed { endpoint: "10.77.0.1:9464".to_owned(), token: "gpg_secret".to_owned() }),
        }
    }

    fn yaml(text: &str) -> Value {
        serde_yaml_ng::from_str(text).expect("YAML")
    }

    fn content<'a>(config: &'a Value, path: &str) -> &'a Value {
        let files = config["write_files"].as_array().expect("a list");
        &files.iter().find(|file| file["path"] == path).expect("written")["content"]
    }

    #[test]
    fn a_guest_is_told_who_may_come_in_and_nobody_else() {
        let seed = seed();
        let text = user_data(&seed);
        assert!(text.starts_with("#cloud-config\n{"));
        let config = yaml(&text);
        assert_eq!(config["users"].as_array().expect("a list").len(), 1);
        assert_eq!(config["users"][0]["name"], "ubuntu");
        let keys = config["users"][0]["ssh_authorized_keys"].as_array().expect("a list");
        assert_eq!(
            (keys.len(), &keys[0], &keys[1]),
            (2, &json!(seed.guest.ssh_public_keys[0].as_str()), &json!(seed.terminal_public_key))
        );
        assert_eq!(
            (&config["ssh_pwauth"], &config["disable_root"], &config["ssh_deletekeys"]),
            (&json!(false), &json!(true), &json!(true))
        );
        assert_eq!(config["ssh_keys"]["ed25519_private"], json!(seed.host_private_pem));
        assert_eq!(yaml(&meta_data(&seed))["instance-id"], json!(seed.allocation_id.to_string()));
        assert_eq!(yaml(&network_config(&seed))["ethernets"]["primary"]["match"]["macaddress"], json!(seed.mac_address));
        assert_eq!(user_of(text.as_bytes()), Some(seed.guest.default_username.clone()));
        assert_eq!((user_of(b"#cloud-config\n"), user_of(text.replace("ubuntu", "-rf").as_bytes())), (None, None));
        let shown = format!("{seed:?}");
        assert!(!shown.contains("PRIVATE") && !shown.contains("gpg_secret"), "{shown}");
    }

    #[test]
    fn whatever_a_text_contains_stays_a_text() {
        let evil = SeedSpec {
            mac_address: EVIL.to_owned(),
            terminal_public_key: EVIL.to_owned(),
            host_private_pem: EVIL.to_owned(),
            host_public_line: EVIL.to_owned(),
            telemetry: Some(TelemetrySeed { endpoint: EVIL.to_owned(), token: EVIL.to_owned() }),
            ..seed()
        };
        let (config, plain) = (yaml(&user_data(&evil)), yaml(&user_data(&seed())));
        assert_eq!(config["ssh_keys"]["ed25519_private"], json!(EVIL));
        assert_eq!(config["ssh_keys"]["ed25519_public"], json!(EVIL));
        assert_eq!(config["users"][0]["ssh_authorized_keys"][1], json!(EVIL));
        assert_eq!(config["runcmd"], plain["runcmd"], "nothing that is given is ever a command");
        for path in ["/etc/gpuaas/telemetry-header", "/etc/gpuaas/telemetry-endpoint"] {
            let content = content(&config, path).as_str().expect("a text");
            assert_eq!(content.lines().count(), 1, "{content:?}");
            assert!(content.contains("$(id)"), "{content:?}");
        }
        assert_eq!(yaml(&network_config(&evil))["ethernets"]["primary"]["match"]["macaddress"], json!(EVIL));
        let same = |text: String| {
            let body = text.strip_prefix("#cloud-config\n").unwrap_or(&text).to_owned();
            assert_eq!(serde_json::from_str::<Value>(&body).expect("JSON"), yaml(&text));
        };
        same(user_data(&evil));
        same(network_config(&evil));
    }

    #[test]
    fn the_marker_is_the_last_thing_and_drivers_come_only_where_they_are_wanted() {
        let run = |strategy, vendor| {
            let guest = GuestSpec { driver_strategy: strategy, ..seed().guest };
            let config = yaml(&user_data(&SeedSpec { guest, gpu_vendor: vendor, telemetry: None, ..seed() }));
            let commands = config["runcmd"].as_array().expect("a list").clone();
            assert_eq!(commands.last(), Some(&json!([MARK_READY])));
            assert!(!config.to_string().contains("telemetry"));
            commands.iter().find(|command| command[0] == "timeout").map(|command| command[3].clone())
        };
        assert_eq!(run(DriverStrategy::CloudInit, Some(GpuVendor::Nvidia)), Some(json!("nvidia")));
        assert_eq!(run(DriverStrategy::CloudInit, Some(GpuVendor::Amd)), Some(json!("amd")));
        for (strategy, vendor) in [
            (DriverStrategy::CloudInit, None),
            (DriverStrategy::Preinstalled, Some(GpuVendor::Nvidia)),
            (DriverStrategy::None, Some(GpuVendor::Amd)),
        ] {
            assert_eq!(run(strategy, vendor), None);
        }
        assert_eq!(yaml(&user_data(&seed()))["runcmd"].as_array().expect("a list").last(), Some(&json!([MARK_READY])));
    }

    /// Runs the helpers in the shells that guests have.
    #[tokio::test]
    async fn helpers_print_what_their_readers_take() {
        let folder = tempfile::tempdir().expect("folder");
        let (probe, telemetry) = (folder.path().join("probe"), folder.path().join("telemetry"));
        std::fs::write(&probe, include_str!("../guest/performance-probe.sh")).expect("written");
        std::fs::write(&telemetry, include_str!("../guest/telemetry.sh")).expect("written");
        for shell in [&["/bin/sh"][..], &["/bin/dash"], &["/bin/bash", "--posix"], &["/bin/busybox", "sh"]] {
            let Some(program) = first_installed(&shell[..1]) else { continue };
            let call = || shell[1..].iter().fold(Exec::new(&program), Exec::arg);
            let printed = call().arg(&probe).run().await.expect("runs").stdout;
            let text = String::from_utf8(printed).expect("text");
            let value: Value = serde_json::from_str(&text).expect("one line of JSON");
            assert_eq!(text.lines().count(), 1);
            assert!(value["cpus"].as_u64() > Some(0) && value["memory_mib"].as_u64() > Some(0), "{shell:?}: {value}");
            let printed = call().arg(&telemetry).arg("--print").run().await.expect("runs").stdout;
            let report = GuestReport::parse(&printed).expect("a report");
            assert!(report.memory_bytes > report.memory_used_bytes && report.disk_size_bytes > 0, "{shell:?}: {report:?}");
        }
    }

    #[tokio::test]
    async fn the_real_cloud_localds_makes_a_seed_that_only_root_reads() {
        if first_installed(CLOUD_LOCALDS).is_none() || first_installed(&["/usr/bin/genisoimage"]).is_none() {
            return crate::skip::skipped("cloud-localds is not installed (Debian packages cloud-image-utils, genisoimage)");
        }
        let root = tempfile::tempdir().expect("folder");
        let instances = root.path().join("in stances");
        let seed = seed();
        let id = seed.allocation_id;
        assert_eq!(build_seed(&instances, id).await.expect_err("no folder").code, "instance_missing");
        instance::make(&instances, id).expect("made");
        assert_eq!(build_seed(&instances, id).await.expect_err("no files").code, "instance_missing");
        for (file, text) in [
            (InstanceFile::UserData, user_data(&seed)),
            (InstanceFile::MetaData, meta_data(&seed)),
            (InstanceFile::NetworkConfig, network_config(&seed)),
        ] {
            instance::write(&instances, id, file, text.as_bytes()).expect("written");
        }
        for _ in 0..2 {
            build_seed(&instances, id).await.expect("made");
        }
        let made = instance::read(&instances, id, InstanceFile::Seed).expect("read").expect("there");
        let has = |what: &str| made.windows(what.len()).any(|window| window == what.as_bytes());
        // cloud-init finds the disk by this label.
        assert!(has("cidata") && has("#cloud-config") && has(&id.to_string()) && has("macaddress"));
        let folder = instances.join(id.to_string());
        assert_eq!(folder.join("seed.iso").metadata().expect("meta").mode() & 0o7777, 0o600);
        assert!(!folder.join(WORKSHOP).exists());
    }
}
