//! `gpuaas alloc ls`, once or with `--watch`.

use std::collections::BTreeMap;

use gpuaas_api::dto::StateFilter;
use gpuaas_api::dto::{Allocation, AllocationListQuery, AllocationSearchQuery, Tags};
use gpuaas_contract::state::AllocationState;

use super::age;
use super::alloc_create::tag;
use super::alloc_view::{ends, state};
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::list::{self, Changes, List, when_empty};
use crate::output::{Table, View, text};
use crate::pages::{self, MAX_ITEMS};
use crate::{price, resolve, tenants};

/// Which allocations.
#[derive(Debug, clap::Args)]
pub(crate) struct AllocationListArgs {
    /// Only allocations in this state, such as active, placing, failed; `open` for all that have not ended.
    #[arg(long)]
    state: Option<StateFilter<AllocationState>>,
    /// Only allocations with this tag; repeatable.
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = tag)]
    tags: Vec<(String, String)>,
    /// Only allocations with this name.
    #[arg(long)]
    name: Option<String>,
    /// Include allocations that have ended.
    #[arg(short, long, conflicts_with = "state")]
    all: bool,
    /// List the allocations of every project, for operators.
    #[arg(long)]
    all_projects: bool,
    /// Only allocations on this node, for operators.
    #[arg(long, requires = "all_projects")]
    node: Option<String>,
    #[command(flatten)]
    list: list::ListArgs,
}

pub(super) async fn run(session: &CommandContext, args: AllocationListArgs) -> Result<Exit, CliError> {
    let client = session.client()?;
    let tags: BTreeMap<String, String> = args.tags.iter().cloned().collect();
    let filtered =
        args.state.is_some() || !tags.is_empty() || args.name.is_some() || args.node.is_some() || args.list.has_since();
    let state = args.state.or((!args.all).then_some(StateFilter::Open));
    let tags = (!tags.is_empty()).then(|| Tags(tags).to_string());
    let project = if args.all_projects { None } else { Some(tenants::project(session).await?.id.to_string()) };
    let node = match &args.node {
        Some(node) => Some(resolve::node(client, node).await?),
        None => None,
    };
    let page = async |after, limit| match &project {
        Some(project) => {
            let query = AllocationListQuery {
                state,
                tags: tags.clone(),
                name: args.name.clone(),
                newest_first: Some(true),
                after,
                limit: Some(limit),
            };
            client.project_allocations(project, &query).await
        }
        None => {
            let query = AllocationSearchQuery {
                node: node.clone(),
                state,
                tags: tags.clone(),
                name: args.name.clone(),
                newest_first: Some(true),
                after,
                limit: Some(limit),
                ..AllocationSearchQuery::default()
            };
            client.allocations(&query).await
        }
    };
    let list = List {
        changes: match &project {
            Some(project) => Changes::Project(project.clone(), "allocation"),
            None => Changes::Platform("allocation"),
        },
        time: |allocation: &Allocation| Some(allocation.created_at),
        limit: MAX_ITEMS,
        view: if project.is_some() { table as fn(&[Allocation]) -> View } else { wide_table },
        advice: when_empty(if filtered || args.all {
            "no allocation matches; `gpuaas alloc ls --all` lists all, including those that have ended"
        } else {
            "there are no allocations; `gpuaas catalog` shows what is on offer, `gpuaas alloc create NAME --sku SKU` leases it"
        }),
    };
    let newest = async |limit| {
        let is_wanted = |allocation: &Allocation| args.list.includes(allocation.created_at);
        Ok(pages::collect_newest(limit, is_wanted, &page).await?)
    };
    list.run(session, args.list, newest).await
}

fn table(allocations: &[Allocation]) -> View {
    if allocations.is_empty() {
        return View::Nothing;
    }
    let ids = short_ids(allocations);
    let mut table = Table::new(["ID", "NAME", "STATE", "SKU", "ADDRESS", "PRICE", "ENDS", "AGE"]);
    for (allocation, id) in allocations.iter().zip(ids) {
        table.row([
            id,
            allocation.name.clone(),
            state(allocation),
            allocation.sku.clone(),
            allocation.private_ip.map_or(String::new(), |ip| ip.to_string()),
            price::per_hour(allocation.price_per_hour),
            ends(allocation.expires_at.filter(|_| !allocation.is_terminal())),
            age(Some(allocation.created_at)),
        ]);
    }
    View::Table(table)
}

/// The table for operators, which also shows the project and the node.
fn wide_table(allocations: &[Allocation]) -> View {
    if allocations.is_empty() {
        return View::Nothing;
    }
    let ids = short_ids(allocations);
    let projects = text::short_ids(&allocations.iter().map(|allocation| allocation.project_id.to_string()).collect::<Vec<_>>());
    let mut table = Table::new(["ID", "NAME", "PROJECT", "NODE", "STATE", "SKU", "PRICE", "ENDS", "AGE"]);
    for ((allocation, id), project) in allocations.iter().zip(ids).zip(projects) {
        table.row([
            id,
            allocation.name.clone(),
            project,
            allocation.node_name.clone().unwrap_or_default(),
            state(allocation),
            allocation.sku.clone(),
            price::per_hour(allocation.price_per_hour),
            ends(allocation.expires_at.filter(|_| !allocation.is_terminal())),
            age(Some(allocation.created_at)),
        ]);
    }
    View::Table(table)
}

fn short_ids(allocations: &[Allocation]) -> Vec<String> {
    text::short_ids(&allocations.iter().map(|allocation| allocation.id.to_string()).collect::<Vec<_>>())
}
