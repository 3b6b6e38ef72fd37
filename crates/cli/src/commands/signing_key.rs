//! `gpuaas signing-key`: the keys that sign tasks.

use clap::Subcommand;
use gpuaas_api::dto::{Page, Reason, SigningKey};

use super::confirm::ConfirmArgs;
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::list::{self, Changes, WatchArgs};
use crate::output::{Table, View};
use crate::resolve;

/// The keys that sign tasks.
#[derive(Debug, Subcommand)]
pub(crate) enum SigningKeyCommand {
    /// List the keys and their states.
    #[command(alias = "list")]
    Ls(WatchArgs),
    /// Publish the next key, so that every node knows it before it is used to sign.
    Stage,
    /// Start signing with the staged key, or a new one. Nodes still accept what the old key has signed.
    Rotate,
    /// Revoke a key. Nodes refuse tasks that it signed and that have not started. Asks for its id first.
    Revoke {
        /// Key: its id, or a unique prefix of it.
        key: String,
        /// Reason, recorded in the audit log.
        #[arg(long, default_value = "")]
        reason: String,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
}

pub(super) async fn run(session: &CommandContext, command: SigningKeyCommand) -> Result<Exit, CliError> {
    let client = session.client()?;
    let keys = match command {
        SigningKeyCommand::Ls(args) => {
            let fetch = async || Ok(client.signing_keys().await?.items);
            let changes = Changes::Platform("signing_key");
            return list::document(session, args, changes, fetch, |keys: &Vec<SigningKey>| table(keys), |_| {}).await;
        }
        SigningKeyCommand::Stage => client.signing_keys_stage().await?,
        SigningKeyCommand::Rotate => client.signing_keys_rotate().await?,
        SigningKeyCommand::Revoke { key, reason, confirm } => {
            let key = resolve::signing_key(client, &key).await?;
            let question = format!("Revoke the signing key {key}? Nodes refuse tasks that it signed and that have not started.");
            confirm.ask_for_name(&question, &key)?;
            client.signing_key_revoke(&key, &Reason { reason }).await?
        }
    };
    print(session, keys)?;
    Ok(Exit::Done)
}

fn print(session: &CommandContext, keys: Page<SigningKey>) -> Result<(), CliError> {
    session.output.print(&keys.items, |keys| table(keys))
}

fn table(keys: &[SigningKey]) -> View {
    let mut table = Table::new(["KEY", "STATE"]);
    for key in keys {
        table.row([key.key_id.to_string(), key.state.to_string()]);
    }
    View::Table(table)
}
