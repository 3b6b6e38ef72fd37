//! Writes `authorized_keys` in a home whose owner may create links and replace folders at the same time.

use std::path::Path;

use super::{SystemUser, home_of};
use crate::HostError;
use crate::openat2::{BeneathError, Folder, Owner};

const FOLDER: &str = ".ssh";
const FILE: &str = "authorized_keys";

/// Allows exactly these keys. Creates the home if it does not exist.
pub(super) fn write(root: &Path, user: &SystemUser, keys: &[String]) -> Result<(), HostError> {
    super::check_number(user.uid)?;
    if user.home != home_of(&user.name) {
        let message = format!("the home of {} is {} and not where homes of tenants are", user.name, user.home);
        return Err(HostError::new("user_differs", message));
    }
    let homes = root.join("home");
    let missing = || HostError::new("home_missing", "this host has no folder /home");
    let homes = Folder::open(&homes).map_err(failed)?.ok_or_else(missing)?;
    let owner = Owner { uid: user.uid, gid: user.gid };
    let folder = homes
        .make_inner_of(&user.name, 0o700, owner)
        .and_then(|home| home.make_inner_of(FOLDER, 0o700, owner))
        .map_err(failed)?;
    let text: String = keys.iter().flat_map(|key| [key.as_str(), "\n"]).collect();
    folder.write_of(FILE, text.as_bytes(), 0o600, owner).map_err(failed)
}

fn failed(error: BeneathError) -> HostError {
    let code = match error {
        BeneathError::Escapes { .. } => "path_escapes",
        BeneathError::Io { .. } | BeneathError::TooLarge { .. } => "keys_not_written",
    };
    HostError::because(code, "the keys of a user", &error)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    #[test]
    fn keys_are_replaced_as_a_whole_and_links_lead_nowhere() {
        if !rustix::process::geteuid().is_root() {
            return crate::skip::skipped("only root can give a file to somebody else");
        }
        let root = tempfile::tempdir().expect("folder");
        std::fs::create_dir(root.path().join("home")).expect("made");
        let user = SystemUser {
            name: "tenant-1".to_owned(),
            uid: 20_007,
            gid: 20_008,
            comment: String::new(),
            home: home_of("tenant-1"),
        };
        let keys = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let home = root.path().join("home/tenant-1");
        let file = home.join(".ssh/authorized_keys");
        write(root.path(), &user, &keys(&["one", "two"])).expect("written");
        write(root.path(), &user, &keys(&["three"])).expect("written");
        assert_eq!(std::fs::read_to_string(&file).expect("there"), "three\n");
        for (path, mode) in [(&home, 0o700), (&home.join(".ssh"), 0o700), (&file, 0o600)] {
            let meta = path.symlink_metadata().expect("there");
            assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (20_007, 20_008, mode), "{}", path.display());
        }

        let outside = root.path().join("shadow");
        std::fs::write(&outside, b"canary").expect("written");
        std::fs::remove_file(&file).expect("removed");
        symlink(&outside, &file).expect("link");
        write(root.path(), &user, &keys(&["four"])).expect("takes the place of the link");
        assert_eq!(std::fs::read(&outside).expect("there"), b"canary");
        std::fs::remove_dir_all(home.join(".ssh")).expect("removed");
        std::fs::create_dir(root.path().join("elsewhere")).expect("made");
        symlink(root.path().join("elsewhere"), home.join(".ssh")).expect("link");
        assert_eq!(write(root.path(), &user, &keys(&["five"])).expect_err("a link").code, "path_escapes");
        assert_eq!(std::fs::read_dir(root.path().join("elsewhere")).expect("list").count(), 0);
        let moved = SystemUser { home: "/root".to_owned(), ..user.clone() };
        assert_eq!(write(root.path(), &moved, &[]).expect_err("not a tenant's").code, "user_differs");
        let system = SystemUser { uid: 0, ..user };
        assert_eq!(write(root.path(), &system, &[]).expect_err("the system's").code, "user_not_ours");
    }
}
