//! `gpuaas service-account`: programs that act for a project.

use clap::Subcommand;
use gpuaas_api::dto::{ServiceAccount, ServiceAccountCreate};
use gpuaas_contract::access::ProjectRole;

use super::confirm::ConfirmArgs;
use super::{age, moment};
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::list::{Changes, List, ListArgs, when_empty};
use crate::output::{Details, Table, View, text};
use crate::pages::MAX_ITEMS;
use crate::tenants;

/// Service accounts of a project. A service account is named by its name, its id or a unique prefix of it.
#[derive(Debug, Subcommand)]
pub(crate) enum ServiceAccountCommand {
    /// Create a service account.
    ///
    /// For example: gpuaas service-account create ci --role member && gpuaas key create ci
    Create {
        /// Name: lower-case letters, digits and single dashes.
        name: String,
        /// Description.
        #[arg(long, default_value = "")]
        description: String,
        /// Role in the project: `owner`, `member`, `viewer`, `billing_admin` or `tenant_auditor`. Without a role it has no permissions until
        /// it is added as a member.
        #[arg(long)]
        role: Option<ProjectRole>,
    },
    /// List service accounts.
    #[command(alias = "list")]
    Ls(ListArgs),
    /// Delete a service account and revoke its keys. Takes effect immediately. Asks for its name first.
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
            session.output.hint(&format!("`gpuaas key create {}` creates a key for it", made.name));
            made
        }
        ServiceAccountCommand::Ls(args) => {
            let list = List {
                changes: Changes::Project(project.clone(), "service_account"),
                time: |account: &ServiceAccount| Some(account.created_at),
                limit: MAX_ITEMS,
                view: table,
                advice: when_empty(
                    "there are no service accounts; `gpuaas service-account create NAME --role member` creates one",
                ),
            };
            return list.run(session, args, async |limit| tenants::service_accounts(client, &project, limit).await).await;
        }
        ServiceAccountCommand::Delete { account, confirm } => {
            let account = tenants::service_account(client, &project, &account).await?;
            let question = format!("Delete the service account {}? Its keys stop working.", account.name);
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
