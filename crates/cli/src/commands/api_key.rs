//! `gpuaas key`: API keys of service accounts.

use std::time::Duration;

use clap::Subcommand;
use gpuaas_api::dto::{ApiKey, ApiKeyCreate, PageQuery};

use super::confirm::ConfirmArgs;
use super::{age, moment};
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::{Details, Table, View, text};
use crate::pages::{self, MAX_ITEMS};
use crate::{duration, tenants};

/// API keys of a project's service accounts. The keys that sign tasks are under `gpuaas signing-key`.
#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a key for a service account. Its secret is shown once.
    ///
    /// For example: gpuaas key create ci --scope 'allocation.*' --life 90d
    Create {
        /// The service account.
        account: String,
        /// What to call the key; the account's name unless given.
        #[arg(long)]
        name: Option<String>,
        /// What it is limited to, such as `*.read`, `allocation.*` or `allocation.create`; may be given several times. Without it,
        /// the key may what its account may.
        #[arg(long = "scope", value_name = "SCOPE")]
        scopes: Vec<String>,
        /// How long it counts, such as `90d`; until it is revoked unless given.
        #[arg(long, value_name = "TIME", value_parser = duration::parse)]
        life: Option<Duration>,
    },
    /// List the keys of a service account, or of all of them.
    #[command(alias = "list")]
    Ls {
        /// The service account.
        account: Option<String>,
    },
    /// Revoke a key, at once. Asks for its id first on a terminal.
    Revoke {
        /// The service account.
        account: String,
        /// The key: its id, a unique beginning of it, or its name if it is the only one that counts.
        key: String,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
}

pub(super) async fn run(session: &CommandContext, command: KeyCommand) -> Result<Exit, CliError> {
    let client = session.client()?;
    let project = tenants::project(session).await?.id.to_string();
    match command {
        KeyCommand::Create { account, name, scopes, life } => {
            let account = tenants::service_account(client, &project, &account).await?;
            let create = ApiKeyCreate {
                name: name.unwrap_or_else(|| account.name.clone()),
                scopes: (!scopes.is_empty()).then_some(scopes),
                life_seconds: life.map(|life| life.as_secs()),
            };
            let created = client.api_key_create(&project, &account.id.to_string(), &create, None).await?;
            session.output.print(&created, |created| View::Details(details(&created.key).field("secret", &created.secret)))?;
            session.output.hint("keep the secret now: it is not shown again; programs give it as GPUAAS_TOKEN");
        }
        KeyCommand::Ls { account } => {
            let accounts = match account {
                Some(account) => vec![tenants::service_account(client, &project, &account).await?],
                None => tenants::service_accounts(client, &project).await?,
            };
            let (mut keys, mut owners) = (Vec::new(), Vec::new());
            for account in accounts {
                let id = account.id.to_string();
                let fetch = async |after, limit| client.api_keys(&project, &id, &PageQuery { after, limit: Some(limit) }).await;
                let found = pages::collect(MAX_ITEMS, fetch).await?.items;
                owners.resize(owners.len() + found.len(), account.name);
                keys.extend(found);
            }
            session.output.print(&keys, |keys: &Vec<ApiKey>| table(keys, &owners))?;
            if keys.is_empty() {
                session
                    .output
                    .hint("there are no keys; `gpuaas key create ACCOUNT` makes one, `gpuaas service-account ls` lists accounts");
            }
        }
        KeyCommand::Revoke { account, key, confirm } => {
            let account = tenants::service_account(client, &project, &account).await?.id.to_string();
            let key = tenants::api_key(client, &project, &account, &key).await?;
            confirm.ask_for_name(&format!("Revoke the key {key}? Whoever uses it is refused at once."), &key)?;
            let revoked = client.api_key_revoke(&project, &account, &key).await?;
            session.output.print(&revoked, |key| View::Details(details(key)))?;
        }
    }
    Ok(Exit::Done)
}

fn scopes(key: &ApiKey) -> String {
    key.scopes.as_ref().map_or_else(|| "all its account may".to_owned(), |scopes| scopes.join(", "))
}

fn details(key: &ApiKey) -> Details {
    Details::default()
        .field("id", key.id)
        .field("name", &key.name)
        .field("account", key.service_account_id)
        .field("scopes", scopes(key))
        .field("state", &key.state)
        .field("created", moment(key.created_at))
        .maybe("expires", key.expires_at.map(moment))
        .maybe("revoked", key.revoked_at.map(moment))
}

fn table(keys: &[ApiKey], owners: &[String]) -> View {
    if keys.is_empty() {
        return View::Nothing;
    }
    let ids = text::short_ids(&keys.iter().map(|key| key.id.to_string()).collect::<Vec<_>>());
    let mut table = Table::new(["ID", "NAME", "ACCOUNT", "SCOPES", "STATE", "AGE"]);
    for ((key, id), owner) in keys.iter().zip(ids).zip(owners) {
        table.row([id, key.name.clone(), owner.clone(), scopes(key), key.state.to_string(), age(Some(key.created_at))]);
    }
    View::Table(table)
}
