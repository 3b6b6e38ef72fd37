//! `getent`, `useradd`, `usermod`, `userdel` and `groupdel`: the host's own tools, so that the result is what the system uses.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpuaas_contract::slice::UserName;

use super::{NewUser, SystemUser, TENANT_UIDS, Traces, comment_of, differs, home_of};
use crate::HostError;
use crate::exec::{Exec, Finished, first_installed, printable};

const GETENT: &[&str] = &["/usr/bin/getent", "/bin/getent"];
const USERADD: &[&str] = &["/usr/sbin/useradd", "/sbin/useradd"];
const USERMOD: &[&str] = &["/usr/sbin/usermod", "/sbin/usermod"];
const USERDEL: &[&str] = &["/usr/sbin/userdel", "/sbin/userdel"];
const GROUPDEL: &[&str] = &["/usr/sbin/groupdel", "/sbin/groupdel"];
/// Killing one of these leaves a half-created user behind, so the limit is long.
const DEADLINE: Duration = Duration::from_secs(120);
/// Maximum number of attempts while another program has the user database locked.
const TRIES: u32 = 20;
const BETWEEN_TRIES: Duration = Duration::from_millis(500);
/// Exit codes of these programs if they cannot lock or write the user database.
const BUSY: [i32; 2] = [1, 10];
/// Exit code if there is no such user or group.
const NO_SUCH: i32 = 6;
/// Exit code of `getent` if it found nothing.
const NOT_FOUND: i32 = 2;
/// Number of candidates for a new tenant's user number.
const CANDIDATES: usize = 64;
/// Size limit of the list of all users.
const LIST_CAP: usize = 64 * 1024 * 1024;

/// Returns the user with this name.
pub(super) async fn find(name: &UserName) -> Result<Option<SystemUser>, HostError> {
    let Some(printed) = ask("passwd", name.as_str()).await? else { return Ok(None) };
    let user = parse_user(printed.split(|byte| *byte == b'\n').next().unwrap_or_default())?;
    if user.name == name.as_str() {
        return Ok(Some(user));
    }
    // For example, a directory that ignores case.
    Err(HostError::new("user_exists", format!("the system treats {name} as its user {}", printable(user.name.as_bytes()))))
}

/// Returns the name of the user with this number.
pub(super) async fn name_of(uid: u32) -> Result<Option<String>, HostError> {
    let Some(printed) = ask("passwd", &uid.to_string()).await? else { return Ok(None) };
    parse_user(printed.split(|byte| *byte == b'\n').next().unwrap_or_default()).map(|user| Some(user.name))
}

/// Returns whether there is a group with this name.
pub(super) async fn has_group(name: &UserName) -> Result<bool, HostError> {
    ask("group", name.as_str()).await.map(|printed| printed.is_some())
}

async fn ask(database: &str, key: &str) -> Result<Option<Vec<u8>>, HostError> {
    let exec = Exec::new(installed(GETENT)?).arg(database).arg(key);
    let (code, printed) =
        exec.run_with_code().await.map_err(|error| HostError::because("user_database", "the user database", &error))?;
    match code {
        Some(0) => Ok(Some(printed.stdout)),
        Some(NOT_FOUND) => Ok(None),
        other => Err(HostError::new("user_database", format!("getent ended with {other:?}: {}", printable(&printed.stderr)))),
    }
}

/// Parses one line of the user database.
pub(super) fn parse_user(line: &[u8]) -> Result<SystemUser, HostError> {
    let bad = || HostError::new("user_database", format!("getent printed a line that is no user: {}", printable(line)));
    let text = std::str::from_utf8(line).map_err(|_| bad())?;
    let fields: Vec<&str> = text.split(':').collect();
    let [name, _, uid, gid, comment, home, _] = fields.as_slice() else { return Err(bad()) };
    if name.is_empty() {
        return Err(bad());
    }
    Ok(SystemUser {
        name: (*name).to_owned(),
        uid: uid.parse().map_err(|_| bad())?,
        gid: gid.parse().map_err(|_| bad())?,
        comment: (*comment).to_owned(),
        home: (*home).to_owned(),
    })
}

/// Returns free user numbers, starting after this one: a number is not reused at once.
pub(super) async fn free_numbers(after: Option<u32>) -> Result<Vec<u32>, HostError> {
    let mut taken = BTreeSet::new();
    for (database, field) in [("passwd", 2), ("group", 2)] {
        let exec = Exec::new(installed(GETENT)?).arg(database).stdout_cap(LIST_CAP);
        let printed = exec.run().await.map_err(|error| HostError::because("user_database", "the user database", &error))?;
        taken.extend(numbers(&printed.stdout, field));
    }
    let numbers = choose(after, &taken);
    if numbers.is_empty() {
        return Err(HostError::new("uids_taken", format!("every number from {TENANT_UIDS:?} has a user or group")));
    }
    Ok(numbers)
}

fn numbers(printed: &[u8], field: usize) -> impl Iterator<Item = u32> {
    printed
        .split(|byte| *byte == b'\n')
        .filter_map(move |line| std::str::from_utf8(line).ok()?.split(':').nth(field)?.parse().ok())
}

fn choose(after: Option<u32>, taken: &BTreeSet<u32>) -> Vec<u32> {
    let first = after.filter(|uid| TENANT_UIDS.contains(uid)).map_or(*TENANT_UIDS.start(), |uid| uid + 1);
    let in_turn = (first..=*TENANT_UIDS.end()).chain(*TENANT_UIDS.start()..first);
    in_turn.filter(|uid| !taken.contains(uid) && Some(*uid) != after).take(CANDIDATES).collect()
}

/// Creates the user, or finds it already created.
pub(super) async fn create(root: &Path, user: &NewUser) -> Result<SystemUser, HostError> {
    let NewUser { name, allocation_id, uid } = user;
    super::check_number(*uid)?;
    let mut refusal = None;
    for _ in 0..TRIES {
        if let Some(present) = find(name).await? {
            let present = user.check(present)?;
            forget_subordinates(root, name).await?;
            return Ok(present);
        }
        if let Some(error) = refusal.take() {
            return Err(error);
        }
        // An interrupted `useradd` may have created the group and not the user; `groupdel` keeps a group with members.
        remove_group(name).await?;
        let (number, home) = (uid.to_string(), home_of(name.as_str()));
        let options = ["--create-home", "--user-group", "--shell", "/bin/bash", "--uid", &number, "--home-dir", &home];
        let exec = options.into_iter().fold(Exec::new(installed(USERADD)?), |exec, option| exec.arg(option));
        // No password has this hash. A locked one (`!`) would also block keys where sshd runs without PAM.
        let exec = exec.arg("--password").arg("*").arg("--comment").arg(comment_of(*allocation_id)).arg("--").arg(name.as_str());
        match run(exec).await? {
            (Some(0), _) => {}
            (Some(code), _) if BUSY.contains(&code) => tokio::time::sleep(BETWEEN_TRIES).await,
            // An earlier call of ours may still be running, so the database decides.
            (code, printed) => refusal = Some(refused("user_not_created", "useradd", code, &printed)),
        }
    }
    Err(HostError::new("user_database_busy", format!("the user database stays locked, so {name} could not be created")))
}

/// Removes the subordinate ids that `useradd` may have assigned: all files of a tenant must have the tenant's own number.
async fn forget_subordinates(root: &Path, name: &UserName) -> Result<(), HostError> {
    for (file, option) in [("etc/subuid", "--del-subuids"), ("etc/subgid", "--del-subgids")] {
        let path = root.join(file);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(HostError::because("user_database", &path.display().to_string(), &error)),
        };
        for range in subordinates(&text, name) {
            patiently(USERMOD, &[option, &range, "--", name.as_str()]).await?;
        }
    }
    Ok(())
}

/// Returns the ranges of a user, as `usermod` needs them.
fn subordinates(text: &str, name: &UserName) -> Vec<String> {
    let range = |line: &str| {
        let mut fields = line.strip_prefix(name.as_str())?.strip_prefix(':')?.split(':');
        let (first, count): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.trim().parse().ok()?);
        (count > 0).then(|| format!("{first}-{}", first + count - 1))
    };
    text.lines().filter_map(range).collect()
}

/// Locks the user out: an expired account cannot log in, with any key.
pub(super) async fn close(name: &UserName) -> Result<(), HostError> {
    patiently(USERMOD, &["--expiredate", "1", "--", name.as_str()]).await
}

/// Removes the user and its group.
pub(super) async fn remove(traces: &Traces) -> Result<(), HostError> {
    let Traces { name, uid } = traces;
    if let Some(present) = find(name).await? {
        super::check_number(present.uid)?;
        match uid {
            Some(uid) if present.uid == *uid && present.allocation().is_some() => {}
            uid => return Err(differs(name, uid.unwrap_or_default(), present.uid)),
        }
        patiently(USERDEL, &["--", name.as_str()]).await?;
    }
    // Some systems keep the group of a removed user.
    remove_group(name).await
}

async fn remove_group(name: &UserName) -> Result<(), HostError> {
    if has_group(name).await? { patiently(GROUPDEL, &["--", name.as_str()]).await } else { Ok(()) }
}

/// Runs one of these programs, and retries while the user database is locked. A missing user is not an error.
async fn patiently(candidates: &[&str], arguments: &[&str]) -> Result<(), HostError> {
    let path = installed(candidates)?;
    let program = path.display().to_string();
    for _ in 0..TRIES {
        let exec = arguments.iter().fold(Exec::new(&path), |exec, argument| exec.arg(argument));
        match run(exec).await? {
            (Some(0 | NO_SUCH), _) => return Ok(()),
            (Some(code), _) if BUSY.contains(&code) => tokio::time::sleep(BETWEEN_TRIES).await,
            (code, printed) => return Err(refused("user_not_changed", &program, code, &printed)),
        }
    }
    Err(HostError::new("user_database_busy", format!("the user database stays locked, so {program} could not run")))
}

async fn run(exec: Exec) -> Result<(Option<i32>, Finished), HostError> {
    let ended = exec.deadline(DEADLINE).run_with_code().await;
    ended.map_err(|error| HostError::because("user_database", "the user database", &error))
}

fn refused(code: &'static str, program: &str, ended: Option<i32>, printed: &Finished) -> HostError {
    HostError::new(code, format!("{program} ended with {ended:?}: {}", printable(&printed.stderr)))
}

pub(super) fn installed(candidates: &[&str]) -> Result<PathBuf, HostError> {
    let missing = || HostError::new("command_missing", format!("{} is not installed on this host", candidates.join(" or ")));
    first_installed(candidates).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_user_database_is_read_and_garbage_is_refused() {
        let line = format!("tenant-1:x:20000:20001:gpuaas alloc_x,,,:{}:/bin/bash", home_of("tenant-1"));
        let user = parse_user(line.as_bytes()).expect("a user");
        let wanted = SystemUser {
            name: "tenant-1".to_owned(),
            uid: 20_000,
            gid: 20_001,
            comment: "gpuaas alloc_x,,,".to_owned(),
            home: home_of("tenant-1"),
        };
        assert_eq!(user, wanted);
        assert_eq!(parse_user(b"root:x:0:0:root:/root:/bin/bash").expect("a user").uid, 0);
        for bad in [
            b"".as_slice(),
            b"root",
            b":x:0:0:root:/root:/bin/bash",
            b"a:x:-1:0::/:/bin/sh",
            b"a:x:4294967296:0::/:/bin/sh",
            b"a:x::0::/:/bin/sh",
            b"a:x:1:0:one:two:three:/bin/sh",
            b"a:x:1:0:\xff:/:/bin/sh",
        ] {
            assert_eq!(parse_user(bad).expect_err("no user").code, "user_database", "{bad:?}");
        }
    }

    #[test]
    fn a_number_is_not_given_again_at_once_and_never_one_that_somebody_has() {
        let (first, last) = (*TENANT_UIDS.start(), *TENANT_UIDS.end());
        let taken = BTreeSet::from([first, first + 2]);
        assert_eq!(choose(None, &taken)[..2], [first + 1, first + 3]);
        assert_eq!(choose(Some(first + 1), &taken)[..2], [first + 3, first + 4]);
        assert_eq!(choose(Some(last), &taken)[..2], [first + 1, first + 3], "from the beginning again");
        assert_eq!(choose(Some(0), &taken)[0], first + 1);
        assert!(choose(Some(first + 1), &TENANT_UIDS.filter(|uid| *uid != first + 1).collect()).is_empty());
        assert_eq!(numbers(b"root:x:0:\nwheel:x:10:a,b\nbad\n::x:\n", 2).collect::<Vec<_>>(), [0, 10]);
    }

    #[test]
    fn subordinate_numbers_are_those_of_the_user_and_of_nobody_with_a_longer_name() {
        let name: UserName = "ten".parse().expect("a name");
        let text = "tenant:100000:65536\nten:165536:65536\nten:300000:1\nten:x:1\nten:5:0\nten:5\n";
        assert_eq!(subordinates(text, &name), ["165536-231071", "300000-300000"]);
    }
}
