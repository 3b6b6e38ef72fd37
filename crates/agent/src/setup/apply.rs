//! Applies a plan, one step at a time. Each step is recorded before it runs, and is idempotent.

use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use gpuaas_host::private_file;
use gpuaas_host::{dnsmasq, ip, kernel, nft, ovs, packages, systemd};

use super::files::{ManagedFile, Settings, Unit};
use super::observe::{self, PolicyFound};
use super::record::{Record, RecordItem, sha256};
use super::{Action, Plan, SetupError, Step, StepStatus, io, plan};
use crate::config::Config;
use crate::policy::SlicePermissions;

/// The action of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SetupAction {
    Packages(Vec<&'static str>),
    Modules(Vec<&'static str>),
    Forwarding,
    OpenFolder { path: PathBuf, mode: u32 },
    DhcpFolder,
    WriteFile { path: PathBuf, content: String, replaces: Option<Vec<u8>> },
    Link { path: PathBuf, target: PathBuf },
    Bridge,
    Address,
    Rules,
    Dhcp,
    Units,
    Policy { path: PathBuf, before: Option<String>, content: String, added: SlicePermissions },
}

/// Runs the pending steps, but only those that the user has confirmed: if the host changed in the meantime, nothing unconfirmed
/// happens.
pub(super) async fn apply(
    settings: &Settings,
    record: Option<Record>,
    config: &Config,
    confirmed: &Plan,
    on_step: &mut dyn FnMut(&Step, Option<&SetupError>),
) -> Result<(), SetupError> {
    let mut record = record.unwrap_or_else(|| Record::new(settings));
    record.uplink.clone_from(&settings.uplink);
    let mut work = Work { settings, state_dir: &config.state_dir, record };
    let seen = |step: &Step| {
        let same = |known: &Step| known.status == StepStatus::ToDo && known.name == step.name && known.how == step.how;
        confirmed.steps.iter().any(same)
    };
    // Installed programs change what is found, so they come first.
    for step in confirmed.steps.iter().filter(|step| step.status == StepStatus::ToDo) {
        if let Some(Action::Setup(SetupAction::Packages(names))) = &step.action {
            packages::install(names).await?;
            on_step(step, None);
        }
    }
    let found = observe::observe(settings).await?;
    let current = plan::plan(settings, &found, Some(&work.record))?;
    for step in current.steps.iter().filter(|step| step.status == StepStatus::AtBoot) {
        if let Some(Action::Setup(action)) = &step.action {
            work.note_awaited(action)?;
        }
    }
    for step in current.steps.iter().filter(|step| step.status == StepStatus::ToDo && seen(step)) {
        let Some(Action::Setup(action)) = &step.action else { continue };
        match work.run(action).await {
            Ok(()) => on_step(step, None),
            // Guests with devices need them; nothing else of the setup does.
            Err(error) if matches!(action, SetupAction::Modules(_)) => on_step(step, Some(&error)),
            Err(error) => {
                on_step(step, Some(&error));
                return Err(error);
            }
        }
    }
    Ok(())
}

struct Work<'a> {
    settings: &'a Settings,
    state_dir: &'a Path,
    record: Record,
}

impl Work<'_> {
    async fn run(&mut self, action: &SetupAction) -> Result<(), SetupError> {
        let settings = self.settings;
        let (gateway, prefix) = settings.gateway();
        match action {
            SetupAction::Packages(names) => Ok(packages::install(names).await?),
            SetupAction::Modules(modules) => {
                for module in modules {
                    kernel::load_module(module).await?;
                }
                Ok(())
            }
            SetupAction::Forwarding => {
                self.note(RecordItem::Forwarding)?;
                Ok(kernel::set_ipv4_forwarding(true)?)
            }
            SetupAction::OpenFolder { path, mode } => {
                self.note(RecordItem::Opened { path: path.clone(), mode: *mode })?;
                let open = std::fs::Permissions::from_mode(mode | 0o001);
                std::fs::set_permissions(path, open).map_err(io("chmod", path))
            }
            SetupAction::DhcpFolder => {
                self.make_folders(settings.dhcp_hosts.parent().unwrap_or(Path::new("/")))?;
                self.note(RecordItem::Folder { path: settings.dhcp_hosts.clone() })?;
                Ok(dnsmasq::make_folder(&settings.dhcp_hosts)?)
            }
            SetupAction::WriteFile { path, content, replaces } => {
                self.make_folders(path.parent().unwrap_or(Path::new("/")))?;
                let replaced = replaces.as_deref().map(sha256);
                self.note(RecordItem::File { path: path.clone(), sha256: sha256(content.as_bytes()), replaced })?;
                Ok(private_file::write_with_mode(path, content.as_bytes(), 0o644)?)
            }
            SetupAction::Link { path, target } => {
                self.make_folders(path.parent().unwrap_or(Path::new("/")))?;
                self.note(RecordItem::Link { path: path.clone(), target: target.clone() })?;
                std::os::unix::fs::symlink(target, path).map_err(io("link", path))
            }
            SetupAction::Bridge => {
                self.note(RecordItem::Bridge { awaited_since_boot: None })?;
                Ok(ovs::add_bridge(&settings.bridge, settings.datapath).await?)
            }
            SetupAction::Address => {
                self.note(RecordItem::Address)?;
                ip::add_address(&settings.bridge, gateway, prefix).await?;
                Ok(ip::set_up(&settings.bridge).await?)
            }
            SetupAction::Rules => {
                self.note(RecordItem::Table)?;
                Ok(nft::load(&ManagedFile::Rules.path(settings)).await?)
            }
            SetupAction::Dhcp => self.start_dhcp().await,
            SetupAction::Units => {
                self.note(RecordItem::Units)?;
                systemd::daemon_reload().await?;
                systemd::start(Unit::Network.name()).await?;
                Ok(systemd::start(Unit::Dhcp.name()).await?)
            }
            SetupAction::Policy { path, before, content, added } => self.write_policy(path, before.as_deref(), content, added),
        }
    }

    fn note(&mut self, item: RecordItem) -> Result<(), SetupError> {
        self.record.note(item);
        self.record.save(self.state_dir)
    }

    /// Records what the units will create at boot, before they are written.
    fn note_awaited(&mut self, action: &SetupAction) -> Result<(), SetupError> {
        match action {
            SetupAction::Bridge => {
                // A bridge that was created in an earlier boot stays recorded as created.
                if self.record.made_bridge() {
                    return Ok(());
                }
                let boot = kernel::boot_id(Path::new("/proc"));
                self.note(RecordItem::Bridge { awaited_since_boot: Some(boot) })
            }
            SetupAction::Address => self.note(RecordItem::Address),
            SetupAction::Dhcp => self.note(RecordItem::Dhcp),
            SetupAction::Packages(_)
            | SetupAction::Modules(_)
            | SetupAction::Forwarding
            | SetupAction::OpenFolder { .. }
            | SetupAction::DhcpFolder
            | SetupAction::WriteFile { .. }
            | SetupAction::Link { .. }
            | SetupAction::Rules
            | SetupAction::Units
            | SetupAction::Policy { .. } => Ok(()),
        }
    }

    /// Creates a folder and its parents, accessible for all users, and records them.
    fn make_folders(&mut self, folder: &Path) -> Result<(), SetupError> {
        let missing: Vec<PathBuf> = folder.ancestors().take_while(|folder| !folder.exists()).map(Path::to_owned).collect();
        for path in missing.into_iter().rev() {
            self.note(RecordItem::Folder { path: path.clone() })?;
            std::fs::DirBuilder::new().mode(0o755).create(&path).map_err(io("create folder", &path))?;
        }
        Ok(())
    }

    async fn start_dhcp(&mut self) -> Result<(), SetupError> {
        let settings = self.settings;
        let file = ManagedFile::Dhcp.path(settings);
        self.note(RecordItem::Dhcp)?;
        if settings.is_live() && systemd::is_running() {
            systemd::daemon_reload().await?;
            systemd::restart(Unit::Dhcp.name()).await?;
        } else {
            self.make_folders(settings.dnsmasq_pid.parent().unwrap_or(Path::new("/")))?;
            dnsmasq::stop(&settings.dnsmasq_pid, &file).await?;
            dnsmasq::start(&file).await?;
        }
        Ok(dnsmasq::wait_until_running(&settings.dnsmasq_pid).await?)
    }

    fn write_policy(
        &mut self,
        path: &Path,
        before: Option<&str>,
        content: &str,
        added: &SlicePermissions,
    ) -> Result<(), SetupError> {
        // Changes by the owner since the plan was shown must not be lost.
        let unchanged = match (observe::policy_at(path), before) {
            (PolicyFound::Absent, None) => true,
            (PolicyFound::Text(text), Some(before)) => text == before,
            (PolicyFound::Absent | PolicyFound::Text(_) | PolicyFound::Unusable(_), _) => false,
        };
        if !unchanged {
            return Err(SetupError::Policy { path: path.to_owned(), why: "it was changed meanwhile".to_owned() });
        }
        let (was_created, added) = match self.record.policy(path) {
            Some((created, known)) => (created, known.with(added)),
            None => (false, added.clone()),
        };
        if before.is_none() {
            self.make_folders(path.parent().unwrap_or(Path::new("/")))?;
        }
        let created = before.is_none() || was_created;
        self.note(RecordItem::Policy { path: path.to_owned(), created, sha256: sha256(content.as_bytes()), added })?;
        match before {
            None => Ok(private_file::write_with_mode(path, content.as_bytes(), 0o644)?),
            Some(_) => Ok(private_file::rewrite_trusted(path, content.as_bytes())?),
        }
    }
}
