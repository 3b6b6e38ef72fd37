//! `gpuaas cluster`.

use clap::Subcommand;
use gpuaas_api::dto::{Budget, BudgetLift, CaInfo, CaState, ListenerInfo};

use super::moment;
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::{Details, Table, View};

/// The cluster itself.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Show the cluster's id, root key, CA and the address for agents.
    Info,
    /// Show and lift the budget of destructive commands: releases, cleanups and retirements of nodes per hour.
    #[command(subcommand)]
    Budget(BudgetCommand),
}

/// The budget of destructive commands.
#[derive(Debug, Subcommand)]
pub(crate) enum BudgetCommand {
    /// Show the hourly limit and how much of it is used.
    #[command(alias = "get")]
    Show,
    /// Allow more destructive commands for an hour. Requires a sign-in or the server's local socket; API tokens cannot do it.
    ///
    /// For example: gpuaas cluster budget lift --count 200 --reason "rack 7 moves out"
    Lift {
        /// Number of additional destructive commands.
        #[arg(long)]
        count: u32,
        /// Reason, recorded in the audit log.
        #[arg(long)]
        reason: String,
    },
}

/// Describes the CA in one line: which one it is, its state, and until when the control plane's enrollment certificate is valid.
fn ca(info: &CaInfo) -> String {
    let mut text = info.kind.clone();
    match info.state {
        CaState::Available => {}
        CaState::Unavailable => text.push_str(", unavailable"),
        CaState::Unknown => text.push_str(", not asked yet"),
    }
    if let Some(detail) = &info.detail {
        text.push_str(&format!(" ({detail})"));
    }
    match (info.kind.as_str(), info.credential_expires_at) {
        (_, Some(until)) => text.push_str(&format!(", enrollment certificate until {}", moment(until))),
        ("step-ca", None) => text.push_str(", enrollment certificate not usable"),
        (_, None) => {}
    }
    text
}

/// Describes the certificate of a listener in one line.
fn listener(info: &ListenerInfo) -> String {
    let mut text = format!("{}: until {}", info.listener, moment(info.certificate_expires_at));
    match info.certificate_renews_at {
        Some(at) => text.push_str(&format!(", replaced {}", moment(at))),
        None => text.push_str(", from a file"),
    }
    if let Some(error) = &info.renewal_error {
        text.push_str(&format!(", renewal fails: {error}"));
    }
    text
}

pub(super) async fn run(session: &CommandContext, command: ClusterCommand) -> Result<Exit, CliError> {
    match command {
        ClusterCommand::Info => {
            let info = session.client()?.cluster().await?;
            session.output.print(&info, |info| {
                let listeners = info.listeners.iter().map(listener).collect::<Vec<_>>().join("\n");
                View::Details(
                    Details::default()
                        .field("cluster", info.cluster_id)
                        .field("version", &info.version)
                        .field("store", &info.store)
                        .field("agents connect to", &info.link_address)
                        .field("certificates", listeners)
                        .field("CA", ca(&info.ca))
                        .field("CA sha256", &info.ca_sha256)
                        .field("root key", info.root_key.id())
                        .field("server time", moment(info.server_time)),
                )
            })?;
            Ok(Exit::Done)
        }
        ClusterCommand::Budget(command) => {
            let client = session.client()?;
            let budget = match command {
                BudgetCommand::Show => client.budget().await?,
                BudgetCommand::Lift { count, reason } => client.budget_lift(&BudgetLift { count, reason }).await?,
            };
            session.output.print(&budget, budget_view)?;
            Ok(Exit::Done)
        }
    }
}

fn budget_view(budget: &Budget) -> View {
    let mut table = Table::new(["WHO", "USED", "LIMIT"]);
    let all = u64::from(budget.per_hour) + u64::from(budget.lifted);
    table.row(["all".to_owned(), budget.used.to_string(), all.to_string()]);
    for scope in &budget.scopes {
        table.row([scope.scope.clone(), scope.used.to_string(), scope.share.to_string()]);
    }
    View::Table(table)
}
