//! `gpuaas org`.

use clap::Subcommand;
use gpuaas_api::dto::{Organisation, OrganisationChange, OrganisationCreate, OrganisationListQuery};

use super::quota::LimitArgs;
use super::{age, moment};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Details, Table, View, text};
use crate::pages::{self, MAX_ITEMS};
use crate::session::Session;
use crate::tenants;

/// Organisations, which own projects. One is named by its name, its id or a unique beginning of it.
#[derive(Debug, Subcommand)]
pub(crate) enum OrgCommand {
    /// Make an organisation.
    ///
    /// For example: gpuaas org create acme --owner ada@example.com --slots 64
    Create {
        /// What people type: lower-case letters, digits and single dashes.
        name: String,
        /// In words.
        #[arg(long, default_value = "")]
        description: String,
        /// Address of who owns it; they may sign in later.
        #[arg(long, value_name = "EMAIL")]
        owner: Option<String>,
        #[command(flatten)]
        limits: LimitArgs,
    },
    /// List the organisations you can see.
    Ls,
    /// Show an organisation.
    Show {
        /// The organisation.
        org: String,
    },
    /// Change an organisation.
    Change {
        /// The organisation.
        org: String,
        /// Other words.
        #[arg(long)]
        description: String,
    },
}

pub(super) async fn run(session: &Session, command: OrgCommand) -> Result<Exit, Failure> {
    let client = session.client()?;
    let organisation = match command {
        OrgCommand::Create { name, description, owner, limits } => {
            let create = OrganisationCreate { name, description, limits: limits.limits(), owner_email: owner };
            let made = client.organisation_create(&create, None).await?;
            session.output.hint(&format!("`gpuaas project create {}/NAME` makes a project in it", made.name));
            made
        }
        OrgCommand::Ls => {
            let fetch =
                async |after, limit| client.organisations(&OrganisationListQuery { name: None, after, limit: Some(limit) }).await;
            let organisations = pages::collect(MAX_ITEMS, fetch).await?.items;
            session.output.print(&organisations, |organisations: &Vec<Organisation>| table(organisations))?;
            if organisations.is_empty() {
                session.output.hint("there is no organisation that you can see; operators make one with `gpuaas org create`");
            }
            return Ok(Exit::Done);
        }
        OrgCommand::Show { org } => tenants::organisation(client, &org).await?,
        OrgCommand::Change { org, description } => {
            let seen = tenants::organisation(client, &org).await?;
            let etag = Some(seen.etag.as_str()).filter(|etag| !etag.is_empty());
            let change = OrganisationChange { description: Some(description) };
            client.organisation_change(&seen.id.to_string(), &change, etag).await?
        }
    };
    session.output.print(&organisation, |organisation| {
        View::Details(
            Details::default()
                .field("id", organisation.id)
                .field("name", &organisation.name)
                .field("description", &organisation.description)
                .field("created", moment(organisation.created_at)),
        )
    })?;
    Ok(Exit::Done)
}

fn table(organisations: &[Organisation]) -> View {
    if organisations.is_empty() {
        return View::Nothing;
    }
    let ids = text::short_ids(&organisations.iter().map(|organisation| organisation.id.to_string()).collect::<Vec<_>>());
    let mut table = Table::new(["ID", "NAME", "AGE", "DESCRIPTION"]);
    for (organisation, id) in organisations.iter().zip(ids) {
        let age = age(Some(organisation.created_at));
        table.row([id, organisation.name.clone(), age, organisation.description.clone()]);
    }
    View::Table(table)
}
