//! `gpuaas alloc ssh-config`: the OpenSSH configuration for an allocation.

use std::path::{Path, PathBuf};

use gpuaas_api::dto::Allocation;
use gpuaas_contract::slice::{UserName, VmName};

use super::alloc_create::home;
use super::alloc_view::{address, state};
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::files::{self, NewFile};

/// Largest size of `~/.ssh/gpuaas_config` that is read.
const MAX_CONFIG: u64 = 1024 * 1024;

pub(super) fn run(session: &CommandContext, allocation: &Allocation, write: bool) -> Result<Exit, CliError> {
    let block = block(allocation)?;
    if !write {
        session.output.raw(block.as_bytes())?;
        return Ok(Exit::Done);
    }
    let folder = home().map(|home| home.join(".ssh")).ok_or_else(|| {
        CliError::usage("home_missing", "HOME is not set, so there is no ~/.ssh").hint("print the block without --write")
    })?;
    let path = folder.join("gpuaas_config");
    make_folder(&folder)?;
    let before = match path.try_exists() {
        Ok(true) => String::from_utf8_lossy(&files::read(&path, MAX_CONFIG)?).into_owned(),
        Ok(false) => String::new(),
        Err(error) => return Err(CliError::usage("file_unreadable", format!("cannot read {}: {error}", path.display()))),
    };
    let mut file = NewFile::create(&path)?;
    file.write(put(&before, &allocation.id.to_string(), &block).as_bytes())?;
    file.finish()?;
    session.output.hint(&format!("written to {}; `ssh {}` connects", path.display(), allocation.name));
    if !is_included(&folder) {
        session.output.hint("put this line at the top of ~/.ssh/config: Include gpuaas_config");
    }
    Ok(Exit::Done)
}

fn make_folder(folder: &PathBuf) -> Result<(), CliError> {
    use std::os::unix::fs::DirBuilderExt as _;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| CliError::usage("file_unwritable", format!("cannot make {}: {error}", folder.display())))
}

fn is_included(folder: &Path) -> bool {
    let config = files::read(&folder.join("config"), MAX_CONFIG).unwrap_or_default();
    let text = String::from_utf8_lossy(&config).into_owned();
    text.lines().any(|line| line.trim().to_lowercase().starts_with("include ") && line.contains("gpuaas_config"))
}

/// Returns a `Host` block. Values from the server are validated first: a line of the server's choosing could make OpenSSH run a program.
fn block(allocation: &Allocation) -> Result<String, CliError> {
    let odd = |what: &str| CliError::internal(format!("the server sent a {what} that OpenSSH cannot use"));
    let name: VmName = allocation.name.parse().map_err(|_| odd("name"))?;
    let user: UserName = allocation.username.parse().map_err(|_| odd("user name"))?;
    let Some((host, port)) = address(allocation) else {
        let message = format!("{name} is {}; there is nothing to sign in to", state(allocation));
        return Err(CliError::new(Exit::Refused, "allocation_not_active", message));
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':');
    if host.is_empty() || host.starts_with('-') || !host.chars().all(plain) {
        return Err(odd("address"));
    }
    // Addresses are reused, so the host key is stored under the allocation's id instead.
    Ok(format!(
        "Host {name}\n    HostName {host}\n    Port {port}\n    User {user}\n    HostKeyAlias {}\n    StrictHostKeyChecking accept-new\n",
        allocation.id
    ))
}

/// Returns the file with this block, which replaces the previous block of the same allocation.
fn put(before: &str, id: &str, block: &str) -> String {
    let (begin, end) = (format!("# gpuaas {id} begin"), format!("# gpuaas {id} end"));
    let mut kept = String::new();
    let mut ours = false;
    for line in before.lines() {
        if line.trim() == begin {
            ours = true;
        }
        if !ours {
            kept.push_str(line);
            kept.push('\n');
        }
        if line.trim() == end {
            ours = false;
        }
    }
    format!("{kept}{begin}\n{block}{end}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_takes_the_place_of_its_own_and_of_nothing_else() {
        let one = put("# mine\n", "alloc_1", "Host a\n");
        let two = put(&one, "alloc_2", "Host b\n");
        let again = put(&two, "alloc_1", "Host c\n");
        assert_eq!(
            again,
            "# mine\n# gpuaas alloc_2 begin\nHost b\n# gpuaas alloc_2 end\n# gpuaas alloc_1 begin\nHost c\n# gpuaas alloc_1 end\n"
        );
    }
}
