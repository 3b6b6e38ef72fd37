//! `gpuaas key`: API keys of service accounts.

use std::time::Duration;

use clap::Subcommand;
use gpuaas_api::Client;
use gpuaas_api::dto::{ApiKey, ApiKeyCreate, PageQuery};

use super::confirm::ConfirmArgs;
use super::{age, moment};
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::list::{Changes, List, ListArgs, when_empty};
use crate::output::{Details, Table, View, text};
use crate::pages::{self, Collected, MAX_ITEMS};
use crate::{duration, tenants};

/// API keys of a project's service accounts. The keys that sign tasks are under `gpuaas signing-key`.
#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Create a key for a service account. Its secret is shown once.
    ///
    /// For example: gpuaas key create ci --scope 'allocation.*' --life 90d
    Create {
        /// The service account.
        account: String,
        /// Name of the key [default: the account's name].
        #[arg(long)]
        name: Option<String>,
        /// Scope that the key is limited to, such as `*.read`, `allocation.*` or `allocation.create`; repeatable
        /// [default: everything that the account is allowed to do].
        #[arg(long = "scope", value_name = "SCOPE")]
        scopes: Vec<String>,
        /// How long the key is valid, such as `90d` [default: until it is revoked].
        #[arg(long, value_name = "TIME", value_parser = duration::parse)]
        life: Option<Duration>,
    },
    /// List the keys of a service account, or of all service accounts.
    #[command(alias = "list")]
    Ls {
        /// The service account.
        account: Option<String>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Revoke a key. Takes effect immediately. Asks for its id first.
    Revoke {
        /// The service account.
        account: String,
        /// Key: its id, a unique prefix of it, or its name if only one valid key has it.
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
            session.output.hint("store the secret now: it is not shown again; programs pass it as GPUAAS_TOKEN");
        }
        KeyCommand::Ls { account, list: args } => {
            let list = List {
                changes: Changes::Project(project.clone(), "api_key,service_account"),
                time: |row: &KeyRow| Some(row.key.created_at),
                limit: MAX_ITEMS,
                view: table,
                advice: when_empty(
                    "there are no keys; `gpuaas key create ACCOUNT` creates one, `gpuaas service-account ls` lists accounts",
                ),
            };
            return list.run(session, args, async |_| keys(client, &project, account.as_deref()).await).await;
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

/// A key, with the name of its service account.
#[derive(serde::Serialize)]
struct KeyRow {
    #[serde(flatten)]
    key: ApiKey,
    #[serde(skip)]
    owner: String,
}

/// Returns the keys of one service account, or of all accounts of the project.
async fn keys(client: &Client, project: &str, account: Option<&str>) -> Result<Collected<KeyRow>, CliError> {
    let accounts = match account {
        Some(account) => vec![tenants::service_account(client, project, account).await?],
        None => tenants::service_accounts(client, project, MAX_ITEMS).await?.items,
    };
    let mut items = Vec::new();
    for account in accounts {
        let id = account.id.to_string();
        let fetch = async |after, limit| client.api_keys(project, &id, &PageQuery { after, limit: Some(limit) }).await;
        let found = pages::collect(MAX_ITEMS, fetch).await?.items;
        items.extend(found.into_iter().map(|key| KeyRow { key, owner: account.name.clone() }));
    }
    Ok(Collected { items, more: false })
}

fn scopes(key: &ApiKey) -> String {
    key.scopes.as_ref().map_or_else(|| "all of its account".to_owned(), |scopes| scopes.join(", "))
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

fn table(keys: &[KeyRow]) -> View {
    if keys.is_empty() {
        return View::Nothing;
    }
    let ids = text::short_ids(&keys.iter().map(|row| row.key.id.to_string()).collect::<Vec<_>>());
    let mut table = Table::new(["ID", "NAME", "ACCOUNT", "SCOPES", "STATE", "AGE"]);
    for (KeyRow { key, owner }, id) in keys.iter().zip(ids) {
        table.row([id, key.name.clone(), owner.clone(), scopes(key), key.state.to_string(), age(Some(key.created_at))]);
    }
    View::Table(table)
}
