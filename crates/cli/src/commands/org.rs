//! `gpuaas org`.

use clap::Subcommand;
use gpuaas_api::dto::{Organization, OrganizationChange, OrganizationCreate, OrganizationListQuery};

use super::confirm::ConfirmArgs;
use super::quota::LimitArgs;
use super::{age, moment};
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::list::{Changes, List, ListArgs, when_empty};
use crate::output::{Details, Table, View, text};
use crate::pages::{self, MAX_ITEMS};
use crate::tenants;

/// Organizations, which own projects. An organization is named by its name, its id or a unique prefix of it.
#[derive(Debug, Subcommand)]
pub(crate) enum OrgCommand {
    /// Create an organization.
    ///
    /// For example: gpuaas org create acme --owner ada@example.com --slots 64
    Create {
        /// Name: lower-case letters, digits and single dashes.
        name: String,
        /// Description.
        #[arg(long, default_value = "")]
        description: String,
        /// E-mail address of the owner, who may sign in later.
        #[arg(long, value_name = "EMAIL")]
        owner: Option<String>,
        #[command(flatten)]
        limits: LimitArgs,
    },
    /// List the organizations you can see.
    #[command(alias = "list")]
    Ls(ListArgs),
    /// Show an organization.
    #[command(alias = "get")]
    Show {
        /// The organization.
        org: String,
    },
    /// Delete an organization without projects. Asks for its name first.
    #[command(alias = "rm")]
    Delete {
        /// The organization.
        org: String,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
    /// Change an organization.
    Change {
        /// The organization.
        org: String,
        /// New description.
        #[arg(long)]
        description: String,
    },
}

pub(super) async fn run(session: &CommandContext, command: OrgCommand) -> Result<Exit, CliError> {
    let client = session.client()?;
    let organization = match command {
        OrgCommand::Create { name, description, owner, limits } => {
            let create = OrganizationCreate { name, description, limits: limits.limits(), owner_email: owner };
            let made = client.organization_create(&create, None).await?;
            session.output.hint(&format!("`gpuaas project create {}/NAME` creates a project in it", made.name));
            made
        }
        OrgCommand::Ls(args) => {
            let fetch =
                async |after, limit| client.organizations(&OrganizationListQuery { name: None, after, limit: Some(limit) }).await;
            let list = List {
                changes: Changes::Unannounced,
                time: |organization: &Organization| Some(organization.created_at),
                limit: MAX_ITEMS,
                view: table,
                advice: when_empty("there is no organization that you can see; operators create one with `gpuaas org create`"),
            };
            return list.run(session, args, async |limit| Ok(pages::collect(limit, &fetch).await?)).await;
        }
        OrgCommand::Show { org } => tenants::organization(client, &org).await?,
        OrgCommand::Delete { org, confirm } => {
            let seen = tenants::organization(client, &org).await?;
            confirm
                .ask_for_name(&format!("Delete organization {}? Its members lose their roles in it.", seen.name), &seen.name)?;
            let etag = Some(seen.etag.as_str()).filter(|etag| !etag.is_empty());
            client.organization_delete(&seen.id.to_string(), etag).await?
        }
        OrgCommand::Change { org, description } => {
            let seen = tenants::organization(client, &org).await?;
            let etag = Some(seen.etag.as_str()).filter(|etag| !etag.is_empty());
            let change = OrganizationChange { description: Some(description) };
            client.organization_change(&seen.id.to_string(), &change, etag).await?
        }
    };
    session.output.print(&organization, |organization| {
        View::Details(
            Details::default()
                .field("id", organization.id)
                .field("name", &organization.name)
                .field("description", &organization.description)
                .field("created", moment(organization.created_at)),
        )
    })?;
    Ok(Exit::Done)
}

fn table(organizations: &[Organization]) -> View {
    if organizations.is_empty() {
        return View::Nothing;
    }
    let ids = text::short_ids(&organizations.iter().map(|organization| organization.id.to_string()).collect::<Vec<_>>());
    let mut table = Table::new(["ID", "NAME", "AGE", "DESCRIPTION"]);
    for (organization, id) in organizations.iter().zip(ids) {
        let age = age(Some(organization.created_at));
        table.row([id, organization.name.clone(), age, organization.description.clone()]);
    }
    View::Table(table)
}
