//! `gpuaas ssh-key`: the SSH keys that a project stores by name.

use std::path::PathBuf;

use clap::Subcommand;
use gpuaas_api::dto::{SshKey, SshKeyCreate};

use super::confirm::ConfirmArgs;
use super::slice_create::{MAX_KEY_FILE, keys};
use super::{age, moment};
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::list::{Changes, List, ListArgs, when_empty};
use crate::output::{Details, Table, View, text};
use crate::pages::MAX_ITEMS;
use crate::{files, tenants};

/// SSH keys of a project. A key is named by its name, its id or a unique prefix of it.
#[derive(Debug, Subcommand)]
pub(crate) enum SshKeyCommand {
    /// Add a public key, for use with `gpuaas alloc create --ssh-key`.
    ///
    /// For example: gpuaas ssh-key add laptop ~/.ssh/id_ed25519.pub
    Add {
        /// Name: lower-case letters, digits and single dashes.
        name: String,
        /// File with the public key, or `-` for stdin.
        file: PathBuf,
    },
    /// List SSH keys.
    #[command(alias = "list")]
    Ls(ListArgs),
    /// Delete a key. Existing allocations keep it. Asks for its name first.
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
                let message = format!("{} contains {} keys; a name is for one key", file.display(), found.len());
                return Err(CliError::usage("several_keys", message));
            }
            let project = tenants::project(session).await?.id.to_string();
            client.ssh_key_add(&project, &SshKeyCreate { name, public_key: found.remove(0) }, None).await?
        }
        SshKeyCommand::Ls(args) => {
            let project = tenants::project(session).await?.id.to_string();
            let list = List {
                changes: Changes::Project(project.clone(), "ssh_key"),
                time: |key: &SshKey| Some(key.created_at),
                limit: MAX_ITEMS,
                view: table,
                advice: when_empty("there are no SSH keys; `gpuaas ssh-key add laptop ~/.ssh/id_ed25519.pub` adds one"),
            };
            return list.run(session, args, async |limit| tenants::ssh_keys(client, &project, limit).await).await;
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
