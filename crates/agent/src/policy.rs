//! The host policy: what the owner of the host allows. No task can edit it, and what it does not allow is denied.
//!
//! The file must belong to root (or, for development, to the user the agent runs as), must not be a link and must not be
//! writable by anybody else; the folders above it neither. It is read at start, checked again before every task, read
//! again when it changed, and while it is unsafe or broken everything is denied.

mod bare_metal;
mod destroys;
mod extend;
mod parameters;
mod pattern;
mod slices;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use gpuaas_contract::task::{Destroys, Leased, Task, TaskType};
use gpuaas_contract::time::Timestamp;
use gpuaas_host::private_file::{self, PrivateFileError, Stamp};

use bare_metal::BareMetalRules;
use destroys::DestroyBudget;
pub use destroys::DestroysError;
pub(crate) use extend::{SlicePermissions, extended, missing, retracted, undecided};
pub(crate) use slices::{Emulation, SliceRules};

/// Most bytes of a policy file.
const MAX_FILE: u64 = 256 * 1024;

/// What the owner allows.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    /// Kinds of tasks that may run.
    #[serde(default)]
    allowed_tasks: BTreeSet<TaskType>,
    /// Most tasks of a kind at the same time; the agent's own limit holds for the others.
    #[serde(default)]
    concurrency: BTreeMap<TaskType, u32>,
    /// What guests may have.
    #[serde(default)]
    slices: SliceRules,
    /// Whom tenants of the whole host may be. Without it they are nobody.
    #[serde(default)]
    bare_metal: Option<BareMetalRules>,
}

/// Tasks per hour that end a guest unless the owner says otherwise: every guest of a large host once, and again.
const GUESTS_PER_HOUR: u32 = 32;
/// Tasks per hour that end a tenant of the whole host unless the owner says otherwise.
const TENANTS_PER_HOUR: u32 = 8;

impl Rules {
    /// Most tasks per hour that destroy such a thing.
    fn destroys_per_hour(&self, what: Destroys) -> u32 {
        match what {
            Destroys::Guest => self.slices.destroys_per_hour.unwrap_or(GUESTS_PER_HOUR),
            Destroys::Tenant => self.bare_metal.as_ref().and_then(|rules| rules.destroys_per_hour).unwrap_or(TENANTS_PER_HOUR),
        }
    }
}

/// The policy file and what it said last.
#[derive(Debug)]
pub struct Policy {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    stamp: Stamp,
    rules: Rules,
    /// Why everything is denied, if it is.
    unsafe_because: Option<String>,
    /// What was destroyed within the last hour.
    destroys: DestroyBudget,
}

/// The policy cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// Missing, or others could change it.
    #[error("the host policy cannot be trusted")]
    File(#[from] PrivateFileError),
    /// Not a policy.
    #[error("{path} is not a policy: {detail}", path = .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        detail: String,
    },
}

/// The host's owner says no.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Denied(pub String);

impl Policy {
    /// Reads the file. The agent does not start without one that can be trusted.
    pub fn load(path: &Path) -> Result<Self, PolicyError> {
        let (stamp, rules) = read(path)?;
        Ok(Self {
            path: path.to_owned(),
            state: Mutex::new(State { stamp, rules, unsafe_because: None, destroys: DestroyBudget::default() }),
        })
    }

    /// The same policy, with what it counts per hour kept in this folder: a restart gives nothing back.
    pub fn counting_in(self, folder: &Path) -> Result<Self, DestroysError> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner).destroys = DestroyBudget::open(folder)?;
        Ok(self)
    }

    /// Whether a task of this kind may run now.
    pub fn check(&self, kind: TaskType) -> Result<(), Denied> {
        let mut state = self.current();
        let state = &mut *state;
        if let Some(reason) = &state.unsafe_because {
            return Err(Denied(format!("the host policy cannot be trusted any more, so everything is denied: {reason}")));
        }
        if state.rules.allowed_tasks.contains(&kind) {
            return Ok(());
        }
        Err(Denied(format!(
            "the host policy {} does not allow {kind}; only the host's owner can change that",
            self.path.display()
        )))
    }

    /// Whether this task may run now with what it names. One that destroys something counts against the owner's limit per hour, which
    /// may write a file.
    pub fn check_task(&self, task: &Task) -> Result<(), Denied> {
        let kind = task.task_type();
        self.check(kind)?;
        let mut state = self.current();
        let state = &mut *state;
        let denied = |why: String| {
            Denied(format!("the host policy {}: {why}; only the host's owner can change that", self.path.display()))
        };
        parameters::check(&state.rules, task).map_err(denied)?;
        if let Some(what) = kind.destroys() {
            let limit = state.rules.destroys_per_hour(what);
            state.destroys.take(what, limit, Timestamp::now()).map_err(denied)?;
        }
        Ok(())
    }

    /// Whether what was begun may go on: the kind of task is still allowed, and so is everything that it names.
    pub(crate) fn still_allows(&self, task: &Task) -> bool {
        self.check(task.task_type()).is_ok() && parameters::check(&self.current().rules, task).is_ok()
    }

    /// What guests may have.
    pub(crate) fn slices(&self) -> SliceRules {
        self.current().rules.slices.clone()
    }

    /// Most tasks of this kind at the same time, if the owner set a limit.
    pub fn concurrency(&self, kind: TaskType) -> Option<u32> {
        self.current().rules.concurrency.get(&kind).copied()
    }

    /// What is allowed now.
    pub fn allowed(&self) -> Vec<TaskType> {
        let state = self.current();
        if state.unsafe_because.is_some() { Vec::new() } else { state.rules.allowed_tasks.iter().copied().collect() }
    }

    fn current(&self) -> std::sync::MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match private_file::stamp_trusted(&self.path) {
            Ok(stamp) if stamp == state.stamp && state.unsafe_because.is_none() => {}
            Ok(_) => match read(&self.path) {
                Ok((stamp, rules)) => {
                    tracing::info!(path = %self.path.display(), "host policy was changed; using the new one");
                    (state.stamp, state.rules, state.unsafe_because) = (stamp, rules, None);
                }
                Err(error) => distrust(&mut state, &error),
            },
            Err(error) => distrust(&mut state, &PolicyError::File(error)),
        }
        state
    }
}

fn distrust(state: &mut State, error: &PolicyError) {
    let reason = crate::error_chain::chain(error);
    if state.unsafe_because.as_ref() != Some(&reason) {
        tracing::error!(reason, "host policy cannot be trusted; every task is denied until it is put right");
    }
    state.unsafe_because = Some(reason);
}

fn read(path: &Path) -> Result<(Stamp, Rules), PolicyError> {
    let (text, stamp) = read_text(path)?;
    let rules = parse(&text).map_err(|detail| PolicyError::Malformed { path: path.to_owned(), detail })?;
    Ok((stamp, rules))
}

/// The text of a policy that can be trusted.
pub(crate) fn read_text(path: &Path) -> Result<(String, Stamp), PolicyError> {
    let (bytes, stamp) = private_file::read_trusted(path, MAX_FILE)?;
    let malformed = |_| PolicyError::Malformed { path: path.to_owned(), detail: "it is not UTF-8 text".to_owned() };
    Ok((String::from_utf8(bytes).map_err(malformed)?, stamp))
}

fn parse(text: &str) -> Result<Rules, String> {
    let rules: Rules = toml::from_str(text).map_err(|error| error.to_string())?;
    if let Some((kind, _)) = rules.concurrency.iter().find(|(_, limit)| **limit == 0) {
        return Err(format!("concurrency of {kind} is 0; take it out of allowed_tasks instead"));
    }
    Ok(rules)
}

/// Which key of the policy decides about which parameter of which task, a line each.
pub fn parameter_lines() -> Vec<String> {
    parameters::lines()
}

/// The policy that `install` writes where there is none: every task that acts on nothing that is leased.
pub fn example() -> String {
    let kinds = |lease: Option<Leased>| TaskType::ALL.into_iter().filter(move |kind| kind.facts().lease == lease);
    let quoted = |lease| TaskType::list(kinds(Some(lease))).trim_matches(['[', ']']).to_owned();
    let (harmless, on_slots, on_hosts) = (TaskType::list(kinds(None)), quoted(Leased::Slots), quoted(Leased::Host));
    format!(
        "\
# What this host's owner allows the control plane to run here. Everything else is denied.
# This file must belong to root and be writable by nobody else; the agent reads changes by itself.
allowed_tasks = {harmless}

# Most tasks of one kind at the same time (optional).
# [concurrency]
# \"package.list\" = 1

# Guests. Add {on_slots}
# to allowed_tasks, and say what they may use. An empty list allows nothing; \"*\" in a list allows everything.
# [slices]
# pci_addresses = [\"0000:17:00.0\"]                     # GPUs, their other functions and fabric functions
# nvme_serials = [\"S64HNE0R123456\"]                    # drives that may be written and wiped
# bridges = [\"br-slices\"]                              # Open vSwitch bridges of guests; the first one unless an operator names another
# image_sources = [\"https://images.example.com/\"]      # \"file\" allows images in the host's own folders
# image_private_networks = [\"10.20.0.0/16\"]            # networks of image servers that are not on the public internet
# image_formats = [\"qcow2\", \"raw\"]                   # what images may be
# usernames = [\"*\"]                                    # users inside guests; `*` stands for any letters
# driver_strategies = [\"cloud-init\", \"preinstalled\"] # how a GPU's driver may get into a guest
# allow_graphics = false                               # guests may have a virtual screen
# max_shutdown_seconds = 120                           # longest time that a guest gets to shut down, 30 to 900
# emulation = \"never\"                                  # or \"fallback\", \"always\": guests without KVM, for labs
# install_packages = false                             # let the agent install what guests need
# destroys_per_hour = 32                               # most guests that may be ended per hour
# drives_without_gpu = [\"/dev/disk/by-id/nvme-X\"]      # drives that become slots without a GPU

# Tenants of the whole host. Add {on_hosts}
# to allowed_tasks, and say who they may be. Without this section there are none.
# [bare_metal]
# usernames = [\"tenant-*\"]                             # `*` stands for any letters
# allow_sudo = false                                   # a tenant who may become root can leave anything behind
# destroys_per_hour = 8                                # most tenants that may be ended per hour
"
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn write(path: &Path, text: &str) {
        private_file::write_with_mode(path, text.as_bytes(), 0o644).expect("written");
    }

    fn policy(text: &str) -> (tempfile::TempDir, PathBuf, Result<Policy, PolicyError>) {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("policy.toml");
        write(&path, text);
        let loaded = Policy::load(&path);
        (folder, path, loaded)
    }

    #[test]
    fn what_is_not_listed_is_denied() {
        let (_folder, _, policy) = policy("allowed_tasks = [\"diag.ping\"]");
        let policy = policy.expect("loads");
        assert!(policy.check(TaskType::DiagPing).is_ok());
        assert!(policy.check(TaskType::PackageList).is_err());
        let (_folder, _, empty) = self::policy("");
        assert!(empty.expect("loads").check(TaskType::DiagPing).is_err());
    }

    #[test]
    fn unknown_tasks_and_keys_are_errors() {
        for text in [
            "allowed_tasks = [\"shell.exec\"]",
            "allow_everything = true",
            "allowed_tasks = 1",
            "[concurrency]\n\"diag.ping\" = 0",
        ] {
            let (_folder, _, policy) = policy(text);
            assert!(matches!(policy, Err(PolicyError::Malformed { .. })), "{text}");
        }
    }

    #[test]
    fn the_example_allows_exactly_the_harmless_catalog() {
        let (_folder, _, policy) = policy(&example());
        let harmless: Vec<TaskType> = TaskType::ALL.into_iter().filter(|kind| !kind.needs_lease()).collect();
        assert_eq!(policy.expect("loads").allowed(), harmless);
    }

    #[test]
    fn a_file_that_others_can_write_is_refused_with_the_command_to_run() {
        for mode in [0o664, 0o646, 0o777] {
            let (_folder, path, _) = policy(&example());
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("chmod");
            let error = crate::error_chain::chain(&Policy::load(&path).expect_err("refused"));
            assert!(error.contains("chmod go-w"), "{error}");
        }
    }

    #[test]
    fn a_change_is_taken_and_an_unsafe_change_denies_everything_until_it_is_put_right() {
        let (_folder, path, policy) = policy("allowed_tasks = []");
        let policy = policy.expect("loads");
        assert!(policy.check(TaskType::DiagPing).is_err());
        write(&path, "allowed_tasks = [\"diag.ping\"]");
        assert!(policy.check(TaskType::DiagPing).is_ok());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).expect("chmod");
        assert!(policy.check(TaskType::DiagPing).expect_err("denied").0.contains("chmod"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("chmod");
        assert!(policy.check(TaskType::DiagPing).is_ok());
        write(&path, "nonsense");
        assert!(policy.check(TaskType::DiagPing).is_err());
        std::fs::remove_file(&path).expect("removed");
        assert!(policy.check(TaskType::DiagPing).is_err());
        write(&path, "allowed_tasks = [\"diag.ping\"]\n[concurrency]\n\"diag.ping\" = 2");
        assert!(policy.check(TaskType::DiagPing).is_ok());
        assert_eq!(policy.concurrency(TaskType::DiagPing), Some(2));
    }
}
