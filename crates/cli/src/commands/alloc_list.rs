//! `gpuaas alloc ls`, once or again and again.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use gpuaas_api::client::HeardEvent;
use gpuaas_api::dto::StateFilter;
use gpuaas_api::dto::{Allocation, AllocationListQuery, AllocationSearchQuery, EventsQuery, Tags};
use gpuaas_contract::state::AllocationState;
use tokio::sync::Notify;

use super::age;
use super::alloc_create::tag;
use super::alloc_view::{ends, state};
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::{Table, View, text};
use crate::pages;
use crate::{price, resolve, tenants};

/// Stands behind the events: the list is looked at again at least this often.
const SLOW_POLL: Duration = Duration::from_secs(10);
/// Changes that come together are shown together.
const TOGETHER: Duration = Duration::from_millis(200);

/// Which allocations.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Only those in this state, such as active, placing, failed; `open` for all that are not over.
    #[arg(long)]
    state: Option<StateFilter<AllocationState>>,
    /// Only those with this tag; may be given several times.
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = tag)]
    tags: Vec<(String, String)>,
    /// Only those with this name.
    #[arg(long)]
    name: Option<String>,
    /// Those that are over, too.
    #[arg(short, long, conflicts_with = "state")]
    all: bool,
    /// Show the list again whenever something changes, until Ctrl-C.
    #[arg(short, long)]
    watch: bool,
    /// Those of every project, for operators.
    #[arg(long)]
    all_projects: bool,
    /// Only those on this node, for operators.
    #[arg(long, requires = "all_projects")]
    node: Option<String>,
}

pub(super) async fn run(session: &CommandContext, args: ListArgs) -> Result<Exit, CliError> {
    let client = session.client()?;
    let tags: BTreeMap<String, String> = args.tags.iter().cloned().collect();
    let filtered = args.state.is_some() || !tags.is_empty() || args.name.is_some() || args.node.is_some();
    let state = args.state.or((!args.all).then_some(StateFilter::Open));
    let tags = (!tags.is_empty()).then(|| Tags(tags).to_string());
    let project = if args.all_projects { None } else { Some(tenants::project(session).await?.id.to_string()) };
    let node = match &args.node {
        Some(node) => Some(resolve::node(client, node).await?),
        None => None,
    };
    let fetch = async || {
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
        pages::collect(session.limit(), page).await
    };
    let print = |allocations: &Vec<Allocation>| {
        session
            .output
            .print(allocations, |allocations| if project.is_some() { table(allocations) } else { wide_table(allocations) })
    };
    if args.watch {
        return watch(session, project.as_deref(), fetch, print).await;
    }
    let allocations = fetch().await?.items;
    print(&allocations)?;
    if allocations.is_empty() {
        session.output.hint(if filtered || args.all {
            "there are no such allocations; `gpuaas alloc ls --all` lists all, those that are over, too"
        } else {
            "there are no allocations; `gpuaas catalog` shows what there is, `gpuaas alloc create NAME --sku SKU` leases it"
        });
    }
    Ok(Exit::Done)
}

async fn watch(
    session: &CommandContext,
    project: Option<&str>,
    fetch: impl AsyncFn() -> Result<pages::Collected<Allocation>, gpuaas_api::ClientError>,
    print: impl Fn(&Vec<Allocation>) -> Result<(), CliError>,
) -> Result<Exit, CliError> {
    let client = session.client()?;
    let query = EventsQuery { after: None, kinds: Some("allocation".to_owned()) };
    let mut events = match project {
        Some(project) => client.project_events(project, &query).boxed(),
        None => client.events(&query).boxed(),
    };
    // What happens while the list is fetched is not lost: the next look starts at once.
    let changed = Arc::new(Notify::new());
    let listener = Arc::clone(&changed);
    let listening = async move {
        while let Some(event) = events.next().await {
            match event {
                Ok(HeardEvent::Event(_) | HeardEvent::Reconnecting) => listener.notify_one(),
                Err(error) => return error,
            }
        }
        std::future::pending().await
    };
    let showing = async {
        let mut shown = None;
        loop {
            let allocations = fetch().await?.items;
            if shown.as_ref() != Some(&allocations) {
                if session.output.is_table() && std::io::stdout().is_terminal() {
                    // To the top, and everything below it away.
                    session.output.raw(b"\x1b[H\x1b[2J")?;
                }
                print(&allocations)?;
                if allocations.is_empty() {
                    session.output.hint("there are no such allocations now; Ctrl-C ends the watch");
                }
                shown = Some(allocations);
            }
            // Whether it was told or not, it looks again.
            let _ = tokio::time::timeout(SLOW_POLL, changed.notified()).await;
            tokio::time::sleep(TOGETHER).await;
        }
    };
    tokio::select! {
        result = showing => result,
        error = listening => Err(error.into()),
        _ = tokio::signal::ctrl_c() => Ok(Exit::Done),
    }
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

/// With whose and where.
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
