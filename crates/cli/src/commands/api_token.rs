//! `gpuaas token`: API tokens.

use clap::Subcommand;
use gpuaas_api::dto::{ApiToken, ApiTokenCreate, PageQuery};
use gpuaas_contract::access::PlatformRole;

use super::confirm::ConfirmArgs;
use super::{age, moment};
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::list::{Changes, List, ListArgs, when_empty};
use crate::output::{Details, Table, View, text};
use crate::pages::{self, MAX_ITEMS};
use crate::resolve;

/// API tokens.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Create an API token. It is shown once.
    ///
    /// For example: gpuaas token create dashboards --role support
    Create {
        /// Name of the token.
        name: String,
        /// Role: admin (everything), operator (run the platform), support (read everything, change nothing) or auditor (read the audit
        /// log and the state of the platform).
        #[arg(long, default_value_t = PlatformRole::Support)]
        role: PlatformRole,
        /// How long the token is valid, such as `90d` [default: until it is revoked].
        #[arg(long, value_name = "TIME", value_parser = crate::duration::parse)]
        life: Option<std::time::Duration>,
    },
    /// List API tokens.
    #[command(alias = "list")]
    Ls(ListArgs),
    /// Revoke an API token. Takes effect immediately. Asks for its id first.
    Revoke {
        /// Token: its id, a unique prefix of it, or a unique name.
        #[arg(value_name = "TOKEN")]
        id_or_name: String,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
}

pub(super) async fn run(session: &CommandContext, command: TokenCommand) -> Result<Exit, CliError> {
    let client = session.client()?;
    match command {
        TokenCommand::Create { name, role, life } => {
            let life_seconds = life.map(|life| life.as_secs());
            let create = ApiTokenCreate { name, role, life_seconds };
            let created = client.api_token_create(&create, None).await?;
            session
                .output
                .print(&created, |created| View::Details(details(&created.api_token).field("token", &created.token)))?;
            session.output.hint("store the token now: it is not shown again");
        }
        TokenCommand::Ls(args) => {
            let fetch = async |after, limit| client.api_tokens(&PageQuery { after, limit: Some(limit) }).await;
            let list = List {
                changes: Changes::Platform("api_token,api_key"),
                time: |token: &ApiToken| Some(token.created_at),
                limit: MAX_ITEMS,
                view: table,
                advice: when_empty("no API token matches"),
            };
            return list.run(session, args, async |limit| Ok(pages::collect(limit, &fetch).await?)).await;
        }
        TokenCommand::Revoke { id_or_name, confirm } => {
            let token = resolve::api_token(client, &id_or_name).await?;
            confirm.ask_for_name(&format!("Revoke the API token {token}? Whoever uses it is refused at once."), &token)?;
            let revoked = client.api_token_revoke(&token).await?;
            session.output.print(&revoked, |token| View::Details(details(token)))?;
        }
    }
    Ok(Exit::Done)
}

fn state(token: &ApiToken) -> &'static str {
    let over = token.expires_at.is_some_and(|end| end <= gpuaas_contract::time::Timestamp::now());
    match (token.revoked_at, over) {
        (Some(_), _) => "revoked",
        (None, true) => "expired",
        (None, false) => "active",
    }
}

fn details(token: &ApiToken) -> Details {
    Details::default()
        .field("id", token.id)
        .field("name", &token.name)
        .maybe("role", token.role.as_ref())
        .field("state", state(token))
        .field("created", moment(token.created_at))
        .maybe("expires", token.expires_at.map(moment))
        .maybe("revoked", token.revoked_at.map(moment))
}

fn table(tokens: &[ApiToken]) -> View {
    let ids = text::short_ids(&tokens.iter().map(|token| token.id.to_string()).collect::<Vec<_>>());
    let mut table = Table::new(["ID", "NAME", "ROLE", "STATE", "AGE"]);
    for (token, id) in tokens.iter().zip(ids) {
        table.row([
            id,
            token.name.clone(),
            token.role.as_ref().map_or_else(|| "key".to_owned(), ToString::to_string),
            state(token).to_owned(),
            age(Some(token.created_at)),
        ]);
    }
    View::Table(table)
}
