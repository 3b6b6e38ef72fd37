//! `gpuaas node token`: join tokens.

use std::time::Duration;

use clap::Subcommand;
use gpuaas_api::dto::{JoinToken, JoinTokenCreate, PageQuery};

use super::confirm::ConfirmArgs;
use super::{age, moment};
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::list::{Changes, List, ListArgs, when_empty};
use crate::output::{Details, Table, View, text};
use crate::pages::{self, MAX_ITEMS};
use crate::{duration, resolve};

/// Join tokens: each enrolls one host, or as many as it was created for.
#[derive(Debug, Subcommand)]
pub(crate) enum JoinTokenCommand {
    /// Create a join token and print the command to run on the host. It is shown once.
    Create {
        /// Note, such as the host's name.
        #[arg(long, default_value = "")]
        note: String,
        /// How long the token is valid, at most 15m [default: 15m].
        #[arg(long, value_name = "TIME", value_parser = duration::parse)]
        life: Option<Duration>,
        /// Number of hosts that the token enrolls, 1 to 1000.
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
        uses: u32,
        /// Existing node with the same fingerprint that the host replaces, for a reinstalled machine.
        #[arg(long, value_name = "NODE", conflicts_with = "uses")]
        replace_node: Option<String>,
    },
    /// List join tokens.
    #[command(alias = "list")]
    Ls(ListArgs),
    /// Revoke a join token, which then enrolls no more hosts. Nodes that joined with it stay. Asks for its id first.
    Revoke {
        /// Token: its id, a unique prefix of it, or a unique note.
        #[arg(value_name = "TOKEN")]
        id_or_name: String,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
}

pub(super) async fn run(session: &CommandContext, command: JoinTokenCommand) -> Result<Exit, CliError> {
    let client = session.client()?;
    match command {
        JoinTokenCommand::Create { note, life, uses, replace_node } => {
            let replace_node = resolve::node_to_replace(client, replace_node.as_deref()).await?;
            let life_seconds = life.map(|life| life.as_secs());
            let create = JoinTokenCreate { note, life_seconds, uses: (uses > 1).then_some(uses), replace_node };
            let created = client.join_token_create(&create, None).await?;
            session.output.print(&created, |created| {
                View::Details(
                    details(&created.join_token).field("token", &created.token).field("run on host", &created.enroll_command),
                )
            })?;
            let hosts = if uses == 1 { "one host".to_owned() } else { format!("{uses} hosts") };
            session.output.hint(&format!("the token is not shown again; it enrolls {hosts}"));
        }
        JoinTokenCommand::Ls(args) => {
            let fetch = async |after, limit| client.join_tokens(&PageQuery { after, limit: Some(limit) }).await;
            let list = List {
                changes: Changes::Platform("join_token,node"),
                time: |token: &JoinToken| Some(token.created_at),
                limit: MAX_ITEMS,
                view: table,
                advice: when_empty("there are no join tokens; `gpuaas node token create` creates one"),
            };
            return list.run(session, args, async |limit| Ok(pages::collect(limit, &fetch).await?)).await;
        }
        JoinTokenCommand::Revoke { id_or_name, confirm } => {
            let token = resolve::join_token(client, &id_or_name).await?;
            confirm.ask_for_name(&format!("Revoke the join token {token}? Hosts that use it are refused."), &token)?;
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
        .field("used", used(token))
        .maybe("last used", token.used_at.map(moment))
        .maybe("nodes", nodes(token))
        .maybe("revoked", token.revoked_at.map(moment))
        .maybe("replaces", token.replace_node)
}

fn table(tokens: &[JoinToken]) -> View {
    if tokens.is_empty() {
        return View::Nothing;
    }
    let ids = text::short_ids(&tokens.iter().map(|token| token.id.to_string()).collect::<Vec<_>>());
    let mut table = Table::new(["ID", "STATE", "USED", "NOTE", "AGE", "NODES"]);
    for (token, id) in tokens.iter().zip(ids) {
        let nodes = nodes(token).unwrap_or_default();
        table.row([id, token.state.to_string(), used(token), token.note.clone(), age(Some(token.created_at)), nodes]);
    }
    View::Table(table)
}

/// Returns how many uses are spent, of how many.
fn used(token: &JoinToken) -> String {
    format!("{}/{}", token.uses.saturating_sub(token.left), token.uses)
}

/// Returns the nodes that joined with the token; only the last ones if there are many. `-o json` has all of them.
fn nodes(token: &JoinToken) -> Option<String> {
    const SHOWN: usize = 3;
    let more = token.joined.len().saturating_sub(SHOWN);
    let mut shown: Vec<String> = token.joined.iter().skip(more).map(|joined| joined.node_id.to_string()).collect();
    if more > 0 {
        shown.push(format!("and {more} more"));
    }
    (!shown.is_empty()).then(|| shown.join(", "))
}
