//! Users of the simulated host: those of the system, tenants, and the effects of tenants. A tenant logs in as soon as it has
//! keys, and leaves files and processes in many places.

use std::collections::{BTreeMap, BTreeSet};

use gpuaas_contract::slice::UserName;

use super::machine::Machine;
use super::{Operation, SimHost};
use crate::HostError;
use crate::users::{Ended, FIRST_PERSON, NewUser, Removed, SystemUser, TENANT_UIDS, Traces, comment_of, differs, home_of};

/// The users and their effects.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Users {
    known: BTreeMap<String, SimUser>,
    /// Users with sudo.
    sudoers: BTreeSet<String>,
    /// Users with cron jobs.
    crontabs: BTreeSet<String>,
    /// Sessions, by number.
    sessions: Vec<u32>,
    /// Processes: user number and name.
    processes: Vec<(u32, String)>,
    /// Files: user number and path.
    files: Vec<(u32, String)>,
    /// User numbers whose processes do not end.
    undying: BTreeSet<u32>,
}

/// One user.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimUser {
    /// Its entry in the user database.
    pub user: SystemUser,
    /// Its keys.
    pub keys: Vec<String>,
    /// Whether it has sudo.
    pub sudo: bool,
    /// Whether it is locked out.
    pub closed: bool,
}

impl Default for Users {
    /// Returns a fresh installation.
    fn default() -> Self {
        let system = [
            ("root", 0, "/root".to_owned()),
            ("daemon", 1, "/usr/sbin".to_owned()),
            ("sshd", 105, "/run/sshd".to_owned()),
            ("debian", 1000, home_of("debian")),
        ];
        let known = system.map(|(name, uid, home)| {
            let user = SystemUser { name: name.to_owned(), uid, gid: uid, comment: name.to_owned(), home };
            (name.to_owned(), SimUser { user, keys: Vec::new(), sudo: false, closed: false })
        });
        Self {
            known: known.into(),
            sudoers: BTreeSet::new(),
            crontabs: BTreeSet::new(),
            sessions: Vec::new(),
            processes: vec![(0, "systemd".to_owned()), (105, "sshd".to_owned())],
            files: vec![(0, "/etc/passwd".to_owned()), (1000, format!("{}/.profile", home_of("debian")))],
            undying: BTreeSet::new(),
        }
    }
}

impl Users {
    /// Applies a reboot: processes end, and files in memory are gone.
    pub(super) fn reboot(&mut self) {
        self.sessions.clear();
        self.undying.clear();
        self.processes.retain(|(uid, _)| *uid < FIRST_PERSON);
        self.files.retain(|(_, path)| !path.starts_with("/dev/shm/"));
    }

    /// Describes every difference from a fresh installation.
    pub(super) fn tenants(&self) -> Vec<String> {
        let fresh = Self::default();
        let users = self.known.keys().filter(|name| !fresh.known.contains_key(*name)).map(|name| format!("user {name}"));
        let sudoers = self.sudoers.iter().map(|name| format!("sudo rule of {name}"));
        let crontabs = self.crontabs.iter().map(|name| format!("crontab of {name}"));
        let theirs = |uid: &u32| *uid >= FIRST_PERSON && *uid != 1000;
        let sessions = self.sessions.iter().filter(|uid| theirs(uid)).map(|uid| format!("session of {uid}"));
        let processes =
            self.processes.iter().filter(|(uid, _)| theirs(uid)).map(|(uid, name)| format!("process {name} of {uid}"));
        let files = self.files.iter().filter(|(uid, _)| theirs(uid)).map(|(uid, path)| format!("{path} of {uid}"));
        users.chain(sudoers).chain(crontabs).chain(sessions).chain(processes).chain(files).collect()
    }

    fn traces_of_number(&self, uid: u32) -> Vec<String> {
        let processes = self.processes.iter().filter(|(of, _)| *of == uid).map(|(_, name)| format!("process ({name})"));
        let files = self.files.iter().filter(|(of, _)| *of == uid).map(|(_, path)| path.clone());
        processes.chain(files).collect()
    }

    fn in_home(path: &str, name: &str) -> bool {
        path.strip_prefix(&home_of(name)).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Simulates a login of the tenant and its work.
    fn log_in(&mut self, user: &SystemUser) {
        let (uid, home) = (user.uid, &user.home);
        self.sessions.push(uid);
        self.processes.extend(["sshd: session", "bash", "python3 train.py"].map(|name| (uid, name.to_owned())));
        let paths = [
            format!("{home}/.bash_history"),
            format!("{home}/model.bin"),
            format!("/var/tmp/cache-{uid}"),
            format!("/dev/shm/torch-{uid}"),
        ];
        self.files.extend(paths.map(|path| (uid, path)));
        self.crontabs.insert(user.name.clone());
    }
}

impl SimHost {
    pub(crate) async fn user_find(&self, name: &UserName) -> Result<Option<SystemUser>, HostError> {
        let effect = |machine: &mut Machine| Ok(machine.users.known.get(name.as_str()).map(|known| known.user.clone()));
        self.operate(Operation::UserFind, name.to_string(), effect).await
    }

    pub(crate) async fn user_of_number(&self, uid: u32) -> Result<Option<String>, HostError> {
        let effect = |machine: &mut Machine| {
            let mut known = machine.users.known.values();
            Ok(known.find(|known| known.user.uid == uid).map(|known| known.user.name.clone()))
        };
        self.operate(Operation::UserOfNumber, uid.to_string(), effect).await
    }

    pub(crate) async fn user_number(&self, after: Option<u32>) -> Result<u32, HostError> {
        let effect = |machine: &mut Machine| {
            let users = &machine.users;
            let free =
                |uid: &u32| users.known.values().all(|known| known.user.uid != *uid) && users.traces_of_number(*uid).is_empty();
            let first = after.filter(|uid| TENANT_UIDS.contains(uid)).map_or(*TENANT_UIDS.start(), |uid| uid + 1);
            let found = (first..=*TENANT_UIDS.end()).chain(*TENANT_UIDS.start()..first).find(free);
            found.ok_or_else(|| HostError::new("uids_taken", "every number of tenants is taken"))
        };
        self.operate(Operation::UserNumber, String::new(), effect).await
    }

    pub(crate) async fn user_create(&self, new: &NewUser) -> Result<SystemUser, HostError> {
        let name = new.name.to_string();
        let effect = |machine: &mut Machine| {
            if let Some(known) = machine.users.known.get(&name) {
                return new.check(known.user.clone());
            }
            let left = machine.users.traces_of_number(new.uid);
            if !left.is_empty() {
                machine.violation(format!("{name} was created with number {} while there was {}", new.uid, left.join(", ")));
            }
            let user = SystemUser {
                name: name.clone(),
                uid: new.uid,
                gid: new.uid,
                comment: comment_of(new.allocation_id),
                home: home_of(&name),
            };
            machine.users.files.extend([".bashrc", ".profile"].map(|file| (new.uid, format!("{}/{file}", user.home))));
            let known = SimUser { user: user.clone(), keys: Vec::new(), sudo: false, closed: false };
            machine.users.known.insert(name.clone(), known);
            Ok(user)
        };
        self.operate(Operation::UserCreate, new.name.to_string(), effect).await
    }

    pub(crate) async fn user_keys(&self, user: &SystemUser, keys: Vec<String>) -> Result<(), HostError> {
        let effect = |machine: &mut Machine| {
            let missing = || HostError::new("keys_not_written", format!("there is no user {}", user.name));
            let known = machine.users.known.get_mut(&user.name).ok_or_else(missing)?;
            let first = known.keys.is_empty();
            known.keys = keys;
            if first {
                machine.users.log_in(user);
            }
            Ok(())
        };
        self.operate(Operation::UserKeys, user.name.clone(), effect).await
    }

    pub(crate) async fn user_sudo(&self, name: &UserName, allowed: bool) -> Result<(), HostError> {
        let effect = |machine: &mut Machine| {
            match allowed {
                true => drop(machine.users.sudoers.insert(name.to_string())),
                false => drop(machine.users.sudoers.remove(name.as_str())),
            }
            Ok(())
        };
        self.operate(Operation::UserSudo, name.to_string(), effect).await
    }

    pub(crate) async fn user_close(&self, name: &UserName) -> Result<(), HostError> {
        let effect = |machine: &mut Machine| {
            if let Some(known) = machine.users.known.get_mut(name.as_str()) {
                known.closed = true;
            }
            Ok(())
        };
        self.operate(Operation::UserClose, name.to_string(), effect).await
    }

    pub(crate) async fn user_jobs_end(&self, traces: &Traces) -> Result<(), HostError> {
        let effect = |machine: &mut Machine| {
            machine.users.crontabs.remove(traces.name.as_str());
            Ok(())
        };
        self.operate(Operation::UserJobsEnd, traces.name.to_string(), effect).await
    }

    pub(crate) async fn user_processes_end(&self, uid: u32) -> Result<Ended, HostError> {
        let effect = |machine: &mut Machine| {
            if machine.users.known.values().any(|known| known.user.uid == uid && !known.closed) {
                machine.violation(format!("{uid} could log in again while its processes were ended"));
            }
            let users = &mut machine.users;
            let (sessions, processes) = (users.sessions.len(), users.processes.len());
            users.sessions.retain(|of| *of != uid);
            if !users.undying.contains(&uid) {
                users.processes.retain(|(of, _)| *of != uid);
            }
            let count = |before: usize, now: usize| u32::try_from(before - now).unwrap_or(u32::MAX);
            let processes = count(processes, users.processes.len());
            Ok(Ended { sessions: count(sessions, users.sessions.len()), processes })
        };
        self.operate(Operation::UserProcessesEnd, uid.to_string(), effect).await
    }

    pub(crate) async fn user_files_remove(&self, traces: &Traces) -> Result<Removed, HostError> {
        let effect = |machine: &mut Machine| {
            let somebody = machine.users.known.values().find(|known| Some(known.user.uid) == traces.uid);
            if let Some(other) = somebody.map(|known| known.user.name.clone()).filter(|other| other != traces.name.as_str()) {
                machine.violation(format!("files of {other} were removed for {}", traces.name));
            }
            let users = &mut machine.users;
            let before = users.files.len();
            let home = users.files.iter().any(|(_, path)| Users::in_home(path, traces.name.as_str()));
            users.files.retain(|(uid, path)| Some(*uid) != traces.uid && !Users::in_home(path, traces.name.as_str()));
            Ok(Removed { files: (before - users.files.len()) as u64, home })
        };
        self.operate(Operation::UserFilesRemove, traces.name.to_string(), effect).await
    }

    pub(crate) async fn user_remove(&self, traces: &Traces) -> Result<(), HostError> {
        let effect = |machine: &mut Machine| {
            let users = &mut machine.users;
            let Some(known) = users.known.get(traces.name.as_str()) else { return Ok(()) };
            let found = known.user.uid;
            if traces.uid != Some(found) {
                return Err(differs(&traces.name, traces.uid.unwrap_or_default(), found));
            }
            if users.processes.iter().any(|(of, _)| *of == found) {
                return Err(HostError::new("user_not_changed", format!("userdel: user {} is used by a process", traces.name)));
            }
            if known.user.allocation().is_none() {
                let what = format!("{}, which is not a tenant's user, was removed", traces.name);
                machine.violation(what);
            }
            machine.users.known.remove(traces.name.as_str());
            Ok(())
        };
        self.operate(Operation::UserRemove, traces.name.to_string(), effect).await
    }

    pub(crate) async fn user_leftovers(&self, traces: &Traces) -> Result<Vec<String>, HostError> {
        let effect = |machine: &mut Machine| {
            let (users, name) = (&machine.users, traces.name.as_str());
            let mut left = Vec::new();
            left.extend(users.known.get(name).map(|known| format!("the user {name} with number {}", known.user.uid)));
            left.extend(users.sudoers.get(name).map(|name| format!("/etc/sudoers.d/gpuaas-{name}")));
            left.extend(users.crontabs.get(name).map(|name| format!("/var/spool/cron/crontabs/{name}")));
            let home = users.files.iter().any(|(_, path)| Users::in_home(path, name));
            left.extend(home.then(|| home_of(name)));
            left.extend(traces.uid.map(|uid| users.traces_of_number(uid)).unwrap_or_default());
            Ok(left)
        };
        self.operate(Operation::UserLeftovers, traces.name.to_string(), effect).await
    }

    /// Returns a user of the simulated host.
    pub fn user(&self, name: &str) -> Option<SimUser> {
        self.operations().look(|machine| {
            let known = machine.users.known.get(name).cloned()?;
            Some(SimUser { sudo: machine.users.sudoers.contains(name), ..known })
        })
    }

    /// Creates a user, like an external program.
    pub fn add_user(&self, user: SystemUser) -> Result<(), HostError> {
        self.operations().change(|machine| {
            let known = SimUser { user: user.clone(), keys: Vec::new(), sudo: false, closed: false };
            machine.users.known.insert(user.name, known);
            Ok(())
        })
    }

    /// Creates a file, like an external program.
    pub fn add_file(&self, uid: u32, path: &str) -> Result<(), HostError> {
        self.operations().change(|machine| {
            machine.users.files.push((uid, path.to_owned()));
            Ok(())
        })
    }

    /// Sets whether the processes of a user number survive signals.
    pub fn undying(&self, uid: u32, yes: bool) -> Result<(), HostError> {
        self.operations().change(|machine| {
            match yes {
                true => drop(machine.users.undying.insert(uid)),
                false => drop(machine.users.undying.remove(&uid)),
            }
            Ok(())
        })
    }
}
