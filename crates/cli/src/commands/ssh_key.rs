//! `gpuaas ssh-key`: keys that a project keeps, by name.

use std::path::PathBuf;

use clap::Subcommand;
use gpuaas_api::dto::{SshKey, SshKeyCreate};

use super::confirm::ConfirmArgs;
use super::slice_create::{MAX_KEY_FILE, keys};
use super::{age, moment};
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::{Details, Table, View, text};
use crate::{files, tenants};

/// Stored SSH keys of a project. One is named by its name, its id or a unique beginning of it.
#[derive(Debug, Subcommand)]
pub(crate) enum SshKeyCommand {
    /// Store a public key, to be named in `gpuaas alloc create --ssh-key`.
    ///
    /// For example: gpuaas ssh-key add laptop ~/.ssh/id_ed25519.pub
    Add {
        /// What people type: lower-case letters, digits and single dashes.
        name: String,
        /// File with the public key, or `-` for stdin.
        file: PathBuf,
    },
    /// List stored keys.
    #[command(alias = "list")]
    Ls,
    /// Delete a stored key. Allocations that have it keep it. Asks for its name first on a terminal.
    #[command(alias = "rm")]
    Delete {
        /// The key.
        key: String,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
}

pub(super) async fn run(session: &CommandContext, command: SshKeyCommand) -> Result<Exit, CliError> {
    let client = session.client()?;
    let key = match command {
        SshKeyCommand::Add { name, file } => {
            let mut found = keys(&file, &files::read(&file, MAX_KEY_FILE)?)?;
            if found.len() != 1 {
                let message = format!("{} has {} keys in it; one name is for one key", file.display(), found.len());
                return Err(CliError::usage("several_keys", message));
            }
            let project = tenants::project(session).await?.id.to_string();
            client.ssh_key_add(&project, &SshKeyCreate { name, public_key: found.remove(0) }, None).await?
        }
        SshKeyCommand::Ls => {
            let project = tenants::project(session).await?.id.to_string();
            let keys = tenants::ssh_keys(client, &project).await?;
            session.output.print(&keys, |keys: &Vec<SshKey>| table(keys))?;
            if keys.is_empty() {
                session.output.hint("there are no stored keys; `gpuaas ssh-key add laptop ~/.ssh/id_ed25519.pub` stores one");
            }
            return Ok(Exit::Done);
        }
        SshKeyCommand::Delete { key, confirm } => {
            let project = tenants::project(session).await?.id.to_string();
            let key = tenants::ssh_key(client, &project, &key).await?;
            confirm.ask_for_name(&format!("Delete the SSH key {}?", key.name), &key.name)?;
            client.ssh_key_delete(&project, &key.id.to_string()).await?
        }
    };
    session.output.print(&key, |key| {
        View::Details(
            Details::default()
                .field("id", key.id)
                .field("name", &key.name)
                .field("key", &key.public_key)
                .field("added by", &key.created_by)
                .field("added", moment(key.created_at))
                .maybe("deleted", key.deleted_at.map(moment)),
        )
    })?;
    Ok(Exit::Done)
}

fn table(keys: &[SshKey]) -> View {
    if keys.is_empty() {
        return View::Nothing;
    }
    let ids = text::short_ids(&keys.iter().map(|key| key.id.to_string()).collect::<Vec<_>>());
    let mut table = Table::new(["ID", "NAME", "TYPE", "ADDED BY", "AGE"]);
    for (key, id) in keys.iter().zip(ids) {
        let kind = key.public_key.split_whitespace().next().unwrap_or_default().to_owned();
        table.row([id, key.name.clone(), kind, key.created_by.clone(), age(Some(key.created_at))]);
    }
    View::Table(table)
}
