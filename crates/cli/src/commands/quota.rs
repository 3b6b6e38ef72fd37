//! `gpuaas quota`.

use clap::Subcommand;
use gpuaas_api::dto::{Limits, Quota};

use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::{Details, Table, View};
use crate::tenants;

/// Quotas: how much may be had at once.
#[derive(Debug, Subcommand)]
pub(crate) enum QuotaCommand {
    /// Show how much a project (or with --org an organization) may have and has.
    Show {
        /// That of an organization instead of the project.
        #[arg(long)]
        org: Option<String>,
    },
    /// Set how much a project (or with --org an organization) may have. What is not given has no limit afterwards.
    ///
    /// For example: gpuaas quota set --project acme/training --slots 16 --machines 0
    Set {
        /// That of an organization instead of the project.
        #[arg(long)]
        org: Option<String>,
        #[command(flatten)]
        limits: LimitArgs,
    },
}

/// How much may be had at once.
#[derive(Debug, clap::Args)]
pub(crate) struct LimitArgs {
    /// Most allocations at once; no limit unless given.
    #[arg(long, value_name = "COUNT")]
    allocations: Option<u32>,
    /// Most slots at once; no limit unless given.
    #[arg(long, value_name = "COUNT")]
    slots: Option<u32>,
    /// Most whole machines at once; no limit unless given.
    #[arg(long, value_name = "COUNT")]
    machines: Option<u32>,
}

impl LimitArgs {
    pub(super) fn limits(&self) -> Limits {
        Limits { allocations: self.allocations, slots: self.slots, machines: self.machines }
    }
}

pub(super) async fn run(session: &CommandContext, command: QuotaCommand) -> Result<Exit, CliError> {
    let client = session.client()?;
    let quota = match command {
        QuotaCommand::Show { org: Some(org) } => {
            client.organization_quota(&tenants::organization(client, &org).await?.id.to_string()).await?
        }
        QuotaCommand::Show { org: None } => client.project_quota(&tenants::project(session).await?.id.to_string()).await?,
        QuotaCommand::Set { org: Some(org), limits } => {
            let organization = tenants::organization(client, &org).await?.id.to_string();
            client.organization_quota_set(&organization, &limits.limits(), None).await?
        }
        QuotaCommand::Set { org: None, limits } => {
            let project = tenants::project(session).await?.id.to_string();
            client.project_quota_set(&project, &limits.limits(), None).await?
        }
    };
    session.output.print(&quota, view)?;
    Ok(Exit::Done)
}

fn view(quota: &Quota) -> View {
    let limit = |limit: Option<u32>| limit.map_or_else(|| "no limit".to_owned(), |limit| limit.to_string());
    let details = match quota.project_id {
        Some(project) => Details::default().field("project", project),
        None => Details::default().field("organization", quota.organization_id),
    };
    let mut table = Table::new(["WHAT", "USED", "LIMIT"]);
    for (what, used, most) in [
        ("allocations", quota.used.allocations, quota.limits.allocations),
        ("slots", quota.used.slots, quota.limits.slots),
        ("whole machines", quota.used.machines, quota.limits.machines),
    ] {
        table.row([what.to_owned(), used.to_string(), limit(most)]);
    }
    View::DetailsAndTable(details, table)
}
