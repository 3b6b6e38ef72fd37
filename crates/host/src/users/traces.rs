//! What is left of a user besides its files.

use std::path::Path;

use super::{Traces, account, home_of, jobs, processes, sudo};
use crate::HostError;
use crate::guests::blocking;
use crate::openat2::Folder;

/// Describes all of it.
pub(super) async fn left(root: &Path, traces: &Traces) -> Result<Vec<String>, HostError> {
    let name = &traces.name;
    let mut left = Vec::new();
    if let Some(user) = account::find(name).await? {
        left.push(format!("the user {name} with number {}", user.uid));
    }
    if let Some(uid) = traces.uid
        && let Some(other) = account::name_of(uid).await?
        && other != name.as_str()
    {
        left.push(format!("the user {other} with the same number {uid}"));
    }
    if account::has_group(name).await? {
        left.push(format!("the group {name}"));
    }
    let (root, traces) = (root.to_owned(), traces.clone());
    left.extend(blocking(move || on_disk(&root, &traces)).await?);
    Ok(left)
}

fn on_disk(root: &Path, traces: &Traces) -> Result<Vec<String>, HostError> {
    let name = &traces.name;
    let failed = |error| HostError::because("user_traces", "what was kept for a user", &error);
    let mut left = Vec::new();
    for (folder, entry, whole) in
        [("home", name.to_string(), home_of(name.as_str())), ("etc/sudoers.d", sudo::file_of(name), sudo::path_of(name))]
    {
        let Some(folder) = Folder::open(&root.join(folder)).map_err(failed)? else { continue };
        if folder.has(&entry).map_err(failed)? {
            left.push(whole);
        }
    }
    left.extend(jobs::left(root, traces)?);
    if let Some(uid) = traces.uid {
        let processes = processes::list(Path::new("/proc"), uid)?;
        left.extend(processes.iter().map(|process| format!("process {} ({})", process.pid, process.name)));
    }
    Ok(left)
}
