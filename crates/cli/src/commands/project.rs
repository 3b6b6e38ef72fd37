//! `gpuaas project`.

use clap::Subcommand;
use gpuaas_api::dto::{Project, ProjectChange, ProjectCreate, ProjectListQuery};

use super::confirm::ConfirmArgs;
use super::quota::LimitArgs;
use super::{age, moment};
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::list::{Changes, List, ListArgs, when_empty};
use crate::output::{Details, Table, View, text};
use crate::pages::{self, MAX_ITEMS};
use crate::tenants::{self, full_name};

/// Projects, which own allocations. A project is named by `organization/name`, its name if it is unique, or its id.
#[derive(Debug, Subcommand)]
pub(crate) enum ProjectCommand {
    /// Create a project.
    ///
    /// For example: gpuaas project create acme/training --slots 16
    Create {
        /// Organization and name: lower-case letters, digits and single dashes.
        #[arg(value_name = "ORG/NAME")]
        new_name: String,
        /// Description.
        #[arg(long, default_value = "")]
        description: String,
        /// E-mail address of the owner, who may sign in later.
        #[arg(long, value_name = "EMAIL")]
        owner: Option<String>,
        #[command(flatten)]
        limits: LimitArgs,
    },
    /// List the projects you can see.
    #[command(alias = "list")]
    Ls {
        /// Only projects of this organization.
        #[arg(long)]
        org: Option<String>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Choose the project for later commands. Writes it to the config file.
    Use {
        /// The project.
        #[arg(value_name = "PROJECT")]
        which: String,
    },
    /// Show a project.
    #[command(alias = "get")]
    Show {
        /// Project [default: the one in use].
        #[arg(value_name = "PROJECT")]
        which: Option<String>,
    },
    /// Change a project.
    Change {
        /// The project.
        #[arg(value_name = "PROJECT")]
        which: String,
        /// New description.
        #[arg(long)]
        description: String,
    },
    /// Delete a project without allocations. Asks for its name first.
    #[command(alias = "rm")]
    Delete {
        /// The project.
        #[arg(value_name = "PROJECT")]
        which: String,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
}

pub(super) async fn run(session: &CommandContext, command: ProjectCommand) -> Result<Exit, CliError> {
    let client = session.client()?;
    let project = match command {
        ProjectCommand::Create { new_name, description, owner, limits } => {
            let Some((organization, name)) = new_name.split_once('/') else {
                let message = format!("`{new_name}` does not name an organization");
                return Err(CliError::usage("organization_needed", message).hint(format!("write ORGANIZATION/{new_name}")));
            };
            let organization = tenants::organization(client, organization).await?.id.to_string();
            let create = ProjectCreate { name: name.to_owned(), description, limits: limits.limits(), owner_email: owner };
            client.project_create(&organization, &create, None).await?
        }
        ProjectCommand::Ls { org, list: args } => return list(session, org, args).await,
        ProjectCommand::Show { which: Some(which) } => tenants::project_named(client, &which).await?,
        ProjectCommand::Show { which: None } => tenants::project(session).await?,
        ProjectCommand::Change { which, description } => {
            let seen = tenants::project_named(client, &which).await?;
            let change = ProjectChange { description: Some(description) };
            client.project_change(&seen.id.to_string(), &change, etag(&seen)).await?
        }
        ProjectCommand::Use { which } => {
            let seen = tenants::project_named(client, &which).await?;
            super::config::set(session, super::config::Key::Project, Some(&full_name(&seen)))?;
            return Ok(Exit::Done);
        }
        ProjectCommand::Delete { which, confirm } => {
            let seen = tenants::project_named(client, &which).await?;
            let name = full_name(&seen);
            confirm.ask_for_name(&format!("Delete project {name}? Its keys, images and webhooks stop working."), &name)?;
            client.project_delete(&seen.id.to_string(), etag(&seen)).await?
        }
    };
    session.output.print(&project, |project| View::Details(details(project)))?;
    Ok(Exit::Done)
}

fn etag(project: &Project) -> Option<&str> {
    Some(project.etag.as_str()).filter(|etag| !etag.is_empty())
}

async fn list(session: &CommandContext, org: Option<String>, args: ListArgs) -> Result<Exit, CliError> {
    let client = session.client()?;
    let organization = match org {
        Some(org) => Some(tenants::organization(client, &org).await?.id.to_string()),
        None => None,
    };
    let fetch = async |after, limit| {
        client.projects(&ProjectListQuery { organization: organization.clone(), name: None, after, limit: Some(limit) }).await
    };
    let list = List {
        changes: Changes::Unannounced,
        time: |project: &Project| Some(project.created_at),
        limit: MAX_ITEMS,
        view: table,
        advice: when_empty("there is no project that you can see; `gpuaas project create ORG/NAME` creates one"),
    };
    list.run(session, args, async |limit| Ok(pages::collect(limit, &fetch).await?)).await
}

fn details(project: &Project) -> Details {
    Details::default()
        .field("id", project.id)
        .field("name", full_name(project))
        .field("description", &project.description)
        .field("state", &project.state)
        .field("created", moment(project.created_at))
        .maybe("deleted", project.deleted_at.map(moment))
}

fn table(projects: &[Project]) -> View {
    if projects.is_empty() {
        return View::Nothing;
    }
    let ids = text::short_ids(&projects.iter().map(|project| project.id.to_string()).collect::<Vec<_>>());
    let mut table = Table::new(["ID", "PROJECT", "AGE", "DESCRIPTION"]);
    for (project, id) in projects.iter().zip(ids) {
        table.row([id, full_name(project), age(Some(project.created_at)), project.description.clone()]);
    }
    View::Table(table)
}
