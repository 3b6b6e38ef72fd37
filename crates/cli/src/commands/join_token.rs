//! `gpuaas node token`: join tokens.

use std::time::Duration;

use clap::Subcommand;
use gpuaas_api::dto::{JoinToken, JoinTokenCreate, PageQuery};

use super::{age, moment};
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::{Details, Table, View, text};
use crate::pages;
use crate::{duration, resolve};

/// Join tokens: each enrolls one host.
#[derive(Debug, Subcommand)]
pub(crate) enum JoinTokenCommand {
    /// Make a join token and print the command to run on the host. Its secret is shown once.
    Create {
        /// What it is for, such as the host's name.
        #[arg(long, default_value = "")]
        note: String,
        /// How long it is good for, at most 15m [default: 15m].
        #[arg(long, value_name = "TIME", value_parser = duration::parse)]
        life: Option<Duration>,
        /// Let the host take over this node, which has its fingerprint: for a machine that was installed anew.
        #[arg(long, value_name = "NODE")]
        replace_node: Option<String>,
    },
    /// List join tokens.
    #[command(alias = "list")]
    Ls,
    /// Take a join token back.
    Revoke {
        /// The token: its id, a unique beginning of it, or a unique note.
        #[arg(value_name = "TOKEN")]
        id_or_name: String,
    },
}

pub(super) async fn run(session: &CommandContext, command: JoinTokenCommand) -> Result<Exit, CliError> {
    let client = session.client()?;
    match command {
        JoinTokenCommand::Create { note, life, replace_node } => {
            let replace_node = resolve::node_to_replace(client, replace_node.as_deref()).await?;
            let create = JoinTokenCreate { note, life_seconds: life.map(|life| life.as_secs()), replace_node };
            let created = client.join_token_create(&create, None).await?;
            session.output.print(&created, |created| {
                View::Details(
                    details(&created.join_token).field("token", &created.token).field("run on host", &created.enroll_command),
                )
            })?;
            session.output.hint("the token is not shown again; it enrolls one host");
        }
        JoinTokenCommand::Ls => {
            let fetch = async |after, limit| client.join_tokens(&PageQuery { after, limit: Some(limit) }).await;
            let tokens = pages::collect(session.limit(), fetch).await?.items;
            session.output.print(&tokens, |tokens| table(tokens))?;
            if tokens.is_empty() {
                session.output.hint("there are no join tokens; make one with `gpuaas node token create`");
            }
        }
        JoinTokenCommand::Revoke { id_or_name } => {
            let token = resolve::join_token(client, &id_or_name).await?;
            let revoked = client.join_token_revoke(&token).await?;
            session.output.print(&revoked, |token| View::Details(details(token)))?;
        }
    }
    Ok(Exit::Done)
}

fn details(token: &JoinToken) -> Details {
    Details::default()
        .field("id", token.id)
        .field("state", &token.state)
        .field("note", &token.note)
        .field("created", moment(token.created_at))
        .field("expires", moment(token.expires_at))
        .maybe("used", token.used_at.map(moment))
        .maybe("used by", token.used_by)
        .maybe("revoked", token.revoked_at.map(moment))
        .maybe("replaces", token.replace_node)
}

fn table(tokens: &[JoinToken]) -> View {
    if tokens.is_empty() {
        return View::Nothing;
    }
    let ids = text::short_ids(&tokens.iter().map(|token| token.id.to_string()).collect::<Vec<_>>());
    let mut table = Table::new(["ID", "STATE", "NOTE", "AGE", "USED BY"]);
    for (token, id) in tokens.iter().zip(ids) {
        let used_by = token.used_by.map_or(String::new(), |node| node.to_string());
        table.row([id, token.state.to_string(), token.note.clone(), age(Some(token.created_at)), used_by]);
    }
    View::Table(table)
}
