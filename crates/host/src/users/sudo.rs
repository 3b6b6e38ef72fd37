//! sudo for a user: one file in `sudoers.d`, checked by `visudo` before it takes effect.

use std::path::Path;

use gpuaas_contract::slice::UserName;

use super::account::installed;
use crate::HostError;
use crate::exec::Exec;
use crate::guests::blocking;
use crate::openat2::{BeneathError, Folder};

const VISUDO: &[&str] = &["/usr/sbin/visudo", "/sbin/visudo"];
const FOLDER: &str = "etc/sudoers.d";
const MODE: u32 = 0o440;

/// Returns the name of the file. sudo ignores names with a dot, so a staged file has no effect.
pub(super) fn file_of(name: &UserName) -> String {
    format!("gpuaas-{name}")
}

/// Returns its path, for messages.
pub(super) fn path_of(name: &UserName) -> String {
    format!("/{FOLDER}/{}", file_of(name))
}

/// Grants or revokes sudo.
pub(super) async fn set(root: &Path, name: &UserName, allowed: bool) -> Result<(), HostError> {
    let (path, file) = (root.join(FOLDER), file_of(name));
    if !allowed {
        return blocking(move || match Folder::open(&path).map_err(failed)? {
            Some(folder) => folder.remove_file(&file).map_err(failed),
            None => Ok(()),
        })
        .await;
    }
    let visudo = installed(VISUDO)?;
    // The user has no password, so sudo cannot ask for one.
    let rule = format!("{name} ALL=(ALL:ALL) NOPASSWD: ALL\n");
    let staged = {
        let (path, file) = (path.clone(), file.clone());
        let stage = move || open(&path)?.stage(&file, rule.as_bytes(), MODE).map_err(failed);
        blocking(stage).await?
    };
    let checked = Exec::new(visudo).arg("-c").arg("-q").arg("-f").arg(path.join(&staged)).run().await;
    blocking(move || {
        let folder = open(&path)?;
        match checked {
            Ok(_) => folder.publish(&staged, &file).map_err(failed),
            Err(error) => {
                folder.forget(&staged);
                Err(HostError::because("sudo_rule_refused", "the rule that was written for sudo", &error))
            }
        }
    })
    .await
}

fn open(path: &Path) -> Result<Folder, HostError> {
    let missing =
        || HostError::new("command_missing", "this host has no /etc/sudoers.d; install sudo, or ask for a user without it");
    Folder::open(path).map_err(failed)?.ok_or_else(missing)
}

fn failed(error: BeneathError) -> HostError {
    HostError::because("sudo_rule_io", "the rules of sudo", &error)
}
