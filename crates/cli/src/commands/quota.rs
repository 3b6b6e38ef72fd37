//! `gpuaas quota`.

use clap::Subcommand;
use gpuaas_api::ClientError;
use gpuaas_api::dto::{Limits, Quota};

use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::{Details, Table, View};
use crate::tenants;

/// Quotas: how much a project or an organization can have at once.
#[derive(Debug, Subcommand)]
pub(crate) enum QuotaCommand {
    /// Show the limits and the usage of a project, or with --org of an organization.
    #[command(alias = "get")]
    Show {
        /// Use this organization instead of the project.
        #[arg(long)]
        org: Option<String>,
    },
    /// Set limits of a project, or with --org of an organization. Limits that are not given do not change.
    ///
    /// For example: gpuaas quota set --project acme/training --slots 16 --machines none
    Set {
        /// Use this organization instead of the project.
        #[arg(long)]
        org: Option<String>,
        #[command(flatten)]
        change: LimitChange,
    },
}

/// Changes to a quota.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
pub(crate) struct LimitChange {
    /// Maximum number of allocations, or `none` for no limit.
    #[arg(long, value_name = "COUNT|none")]
    allocations: Option<NewLimit>,
    /// Maximum number of slots, or `none` for no limit.
    #[arg(long, value_name = "COUNT|none")]
    slots: Option<NewLimit>,
    /// Maximum number of whole machines, or `none` for no limit.
    #[arg(long, value_name = "COUNT|none")]
    machines: Option<NewLimit>,
}

/// A limit as it is typed: a number, or `none`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewLimit(Option<u32>);

impl std::str::FromStr for NewLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "none" => Ok(Self(None)),
            count => {
                count.parse().map(|count| Self(Some(count))).map_err(|_| "expected a number, or `none` for no limit".to_owned())
            }
        }
    }
}

impl LimitChange {
    fn of(&self, now: &Quota) -> Limits {
        let new = |change: Option<NewLimit>, now: Option<u32>| change.map_or(now, |change| change.0);
        Limits {
            allocations: new(self.allocations, now.limits.allocations),
            slots: new(self.slots, now.limits.slots),
            machines: new(self.machines, now.limits.machines),
        }
    }
}

/// How often a change is retried because the quota has changed meanwhile, which happens with every new allocation.
const MAX_ATTEMPTS: u32 = 10;

/// Limits of a quota.
#[derive(Debug, clap::Args)]
pub(crate) struct LimitArgs {
    /// Maximum number of allocations; no limit unless given.
    #[arg(long, value_name = "COUNT")]
    allocations: Option<u32>,
    /// Maximum number of slots; no limit unless given.
    #[arg(long, value_name = "COUNT")]
    slots: Option<u32>,
    /// Maximum number of whole machines; no limit unless given.
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
        QuotaCommand::Set { org: Some(org), change } => {
            let id = tenants::organization(client, &org).await?.id.to_string();
            let set = async |limits: Limits, etag: String| client.organization_quota_set(&id, &limits, Some(&etag)).await;
            changed(&change, async || client.organization_quota(&id).await, set).await?
        }
        QuotaCommand::Set { org: None, change } => {
            let id = tenants::project(session).await?.id.to_string();
            let set = async |limits: Limits, etag: String| client.project_quota_set(&id, &limits, Some(&etag)).await;
            changed(&change, async || client.project_quota(&id).await, set).await?
        }
    };
    session.output.print(&quota, view)?;
    Ok(Exit::Done)
}

/// Reads the quota, applies the change and writes it back, until no other writer was faster.
async fn changed(
    change: &LimitChange,
    read: impl AsyncFn() -> Result<Quota, ClientError>,
    write: impl AsyncFn(Limits, String) -> Result<Quota, ClientError>,
) -> Result<Quota, CliError> {
    let mut attempt = 1;
    loop {
        let now = read().await?;
        match write(change.of(&now), now.etag.clone()).await {
            Err(error) if error.problem().is_some_and(|problem| problem.status == 412) && attempt < MAX_ATTEMPTS => attempt += 1,
            written => return Ok(written?),
        }
    }
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
