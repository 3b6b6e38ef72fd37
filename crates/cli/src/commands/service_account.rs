//! `gpuaas service-account`: programs that act for a project.

use clap::Subcommand;
use gpuaas_api::dto::{ServiceAccount, ServiceAccountCreate};
use gpuaas_contract::access::ProjectRole;

use super::confirm::ConfirmArgs;
use super::{age, moment};
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::{Details, Table, View, text};
use crate::tenants;

/// Service accounts of a project. One is named by its name, its id or a unique beginning of it.
#[derive(Debug, Subcommand)]
pub(crate) enum ServiceAccountCommand {
    /// Make a service account.
    ///
    /// For example: gpuaas service-account create ci --role member && gpuaas key create ci
    Create {
        /// What people type: lower-case letters, digits and single dashes.
        name: String,
        /// In words.
        #[arg(long, default_value = "")]
        description: String,
        /// Its role in the project: `owner`, `member`, `viewer`, `billing_admin` or `tenant_auditor`. Without it, it may do nothing until it
        /// is made a member.
        #[arg(long)]
        role: Option<ProjectRole>,
    },
    /// List service accounts.
    #[command(alias = "list")]
    Ls,
    /// Delete a service account. Its keys no longer count, at once. Asks for its name first on a terminal.
    #[command(alias = "rm")]
    Delete {
        /// The service account.
        account: String,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
}

pub(super) async fn run(session: &CommandContext, command: ServiceAccountCommand) -> Result<Exit, CliError> {
    let client = session.client()?;
    let project = tenants::project(session).await?.id.to_string();
    let account = match command {
        ServiceAccountCommand::Create { name, description, role } => {
            let made = client.service_account_create(&project, &ServiceAccountCreate { name, description, role }, None).await?;
            session.output.hint(&format!("`gpuaas key create {}` makes a key for it", made.name));
            made
        }
        ServiceAccountCommand::Ls => {
            let accounts = tenants::service_accounts(client, &project).await?;
            session.output.print(&accounts, |accounts: &Vec<ServiceAccount>| table(accounts))?;
            if accounts.is_empty() {
                session
                    .output
                    .hint("there are no service accounts; `gpuaas service-account create NAME --role member` makes one");
            }
            return Ok(Exit::Done);
        }
        ServiceAccountCommand::Delete { account, confirm } => {
            let account = tenants::service_account(client, &project, &account).await?;
            let question = format!("Delete the service account {}? Its keys no longer count.", account.name);
            confirm.ask_for_name(&question, &account.name)?;
            client.service_account_delete(&project, &account.id.to_string()).await?
        }
    };
    session.output.print(&account, |account| {
        View::Details(
            Details::default()
                .field("id", account.id)
                .field("name", &account.name)
                .field("description", &account.description)
                .field("project", account.project_id)
                .field("created", moment(account.created_at))
                .maybe("deleted", account.deleted_at.map(moment)),
        )
    })?;
    Ok(Exit::Done)
}

fn table(accounts: &[ServiceAccount]) -> View {
    if accounts.is_empty() {
        return View::Nothing;
    }
    let ids = text::short_ids(&accounts.iter().map(|account| account.id.to_string()).collect::<Vec<_>>());
    let mut table = Table::new(["ID", "NAME", "AGE", "DESCRIPTION"]);
    for (account, id) in accounts.iter().zip(ids) {
        table.row([id, account.name.clone(), age(Some(account.created_at)), account.description.clone()]);
    }
    View::Table(table)
}
