//! `gpuaas member`: who has which role in a project, an organization or on the platform.

use clap::Subcommand;
use gpuaas_api::dto::{Member, MemberAdd, MemberChange, PageQuery};
use gpuaas_contract::access::MemberRole;
use gpuaas_contract::state::MemberState;

use super::confirm::ConfirmArgs;
use super::{age, moment};
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::list::{Changes, List, ListArgs, when_empty};
use crate::output::{Details, Table, View, text};
use crate::pages::{self, Collected, MAX_ITEMS};
use crate::tenants;

/// Members of the project (`--project`), of an organization or of the platform. A member is named by e-mail address, name or id.
#[derive(Debug, Subcommand)]
pub(crate) enum MemberCommand {
    /// Add a member with a role. Unknown users are invited and get the role with their first sign-in.
    ///
    /// For example: gpuaas member add ada@example.com --role owner --org acme
    Add {
        /// E-mail address of a person, or with --service-account the name of a service account.
        who: String,
        /// Role: `owner`, `member`, `viewer`, `billing_admin` or `tenant_auditor`; on the platform `admin`, `operator`, `support` or
        /// `auditor`.
        #[arg(long)]
        role: MemberRole,
        /// Treat WHO as the name of a service account of the project.
        #[arg(long)]
        service_account: bool,
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// List members.
    #[command(alias = "list")]
    Ls {
        #[command(flatten)]
        place: PlaceArgs,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Change the role of a member.
    Role {
        /// The member.
        member: String,
        /// Role: `owner`, `member`, `viewer`, `billing_admin` or `tenant_auditor`; on the platform `admin`, `operator`, `support` or
        /// `auditor`.
        role: MemberRole,
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// Remove a member. Asks for their name first.
    #[command(alias = "rm")]
    Remove {
        /// The member.
        member: String,
        #[command(flatten)]
        place: PlaceArgs,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
}

/// Where, if it is not the project.
#[derive(Debug, clap::Args)]
pub(crate) struct PlaceArgs {
    /// Use this organization instead of the project.
    #[arg(long, value_name = "ORG")]
    org: Option<String>,
    /// Use the platform instead of a project.
    #[arg(long, conflicts_with = "org")]
    platform: bool,
}

/// The scope in which a member has a role.
enum Place {
    Platform,
    Organization(String),
    Project(String),
}

impl PlaceArgs {
    async fn place(&self, session: &CommandContext) -> Result<Place, CliError> {
        Ok(match (&self.org, self.platform) {
            (Some(org), _) => Place::Organization(tenants::organization(session.client()?, org).await?.id.to_string()),
            (None, true) => Place::Platform,
            (None, false) => Place::Project(tenants::project(session).await?.id.to_string()),
        })
    }
}

pub(super) async fn run(session: &CommandContext, command: MemberCommand) -> Result<Exit, CliError> {
    let client = session.client()?;
    let member = match command {
        MemberCommand::Add { who, role, service_account, place } => {
            let place = place.place(session).await?;
            let add = if service_account {
                let project = tenants::project(session).await?.id.to_string();
                let account = tenants::service_account(client, &project, &who).await?.id;
                MemberAdd { email: None, service_account_id: Some(account), role }
            } else {
                MemberAdd { email: Some(who), service_account_id: None, role }
            };
            match &place {
                Place::Platform => client.platform_member_add(&add, None).await?,
                Place::Organization(organization) => client.organization_member_add(organization, &add, None).await?,
                Place::Project(project) => client.project_member_add(project, &add, None).await?,
            }
        }
        MemberCommand::Ls { place, list: args } => {
            let place = place.place(session).await?;
            let list = List {
                changes: match &place {
                    Place::Platform => Changes::Platform("member"),
                    Place::Organization(_) => Changes::Unannounced,
                    Place::Project(project) => Changes::Project(project.clone(), "member"),
                },
                time: |member: &Member| Some(member.created_at),
                limit: MAX_ITEMS,
                view: table,
                advice: when_empty("nobody has a role here; `gpuaas member add EMAIL --role ROLE` adds somebody"),
            };
            return list.run(session, args, async |limit| members(session, &place, limit).await).await;
        }
        MemberCommand::Role { member, role, place } => {
            let place = place.place(session).await?;
            let seen = tenants::member(members(session, &place, MAX_ITEMS).await?.items, &member)?;
            let (id, change) = (seen.id.to_string(), MemberChange { role });
            match &place {
                Place::Platform => client.platform_member_change(&id, &change, etag(&seen)).await?,
                Place::Organization(organization) => {
                    client.organization_member_change(organization, &id, &change, etag(&seen)).await?
                }
                Place::Project(project) => client.project_member_change(project, &id, &change, etag(&seen)).await?,
            }
        }
        MemberCommand::Remove { member, place, confirm } => {
            let place = place.place(session).await?;
            let seen = tenants::member(members(session, &place, MAX_ITEMS).await?.items, &member)?;
            let id = seen.id.to_string();
            confirm.ask_for_name(&format!("Take the role {} away from {member}?", seen.role), &member)?;
            match &place {
                Place::Platform => client.platform_member_remove(&id, etag(&seen)).await?,
                Place::Organization(organization) => client.organization_member_remove(organization, &id, etag(&seen)).await?,
                Place::Project(project) => client.project_member_remove(project, &id, etag(&seen)).await?,
            }
        }
    };
    session.output.print(&member, |member| View::Details(details(member)))?;
    if member.state == MemberState::Invited {
        session.output.hint("they get the role with their first sign-in");
    }
    Ok(Exit::Done)
}

fn etag(member: &Member) -> Option<&str> {
    Some(member.etag.as_str()).filter(|etag| !etag.is_empty())
}

async fn members(session: &CommandContext, place: &Place, limit: usize) -> Result<Collected<Member>, CliError> {
    let client = session.client()?;
    let fetch = async |after, limit| {
        let query = PageQuery { after, limit: Some(limit) };
        match place {
            Place::Platform => client.platform_members(&query).await,
            Place::Organization(organization) => client.organization_members(organization, &query).await,
            Place::Project(project) => client.project_members(project, &query).await,
        }
    };
    Ok(pages::collect(limit, fetch).await?)
}

fn details(member: &Member) -> Details {
    Details::default()
        .field("id", member.id)
        .field("kind", &member.kind)
        .field("name", &member.name)
        .maybe("address", member.email.as_deref())
        .maybe("service account", member.service_account_id)
        .field("at", &member.at)
        .field("role", &member.role)
        .field("state", &member.state)
        .field("added by", &member.invited_by)
        .field("since", moment(member.created_at))
        .maybe("removed", member.removed_at.map(moment))
}

fn table(members: &[Member]) -> View {
    if members.is_empty() {
        return View::Nothing;
    }
    let ids = text::short_ids(&members.iter().map(|member| member.id.to_string()).collect::<Vec<_>>());
    let mut table = Table::new(["ID", "WHO", "KIND", "ROLE", "STATE", "AGE"]);
    for (member, id) in members.iter().zip(ids) {
        let who = member.email.clone().filter(|email| !email.is_empty()).unwrap_or_else(|| member.name.clone());
        let age = age(Some(member.created_at));
        table.row([id, who, member.kind.to_string(), member.role.to_string(), member.state.to_string(), age]);
    }
    View::Table(table)
}
