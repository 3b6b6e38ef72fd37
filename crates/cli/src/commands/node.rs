//! `gpuaas node`.

use clap::Subcommand;
use gpuaas_api::dto::{Node, NodeChange, NodeRetire, Reason};
use gpuaas_contract::telemetry::HostFacts;
use gpuaas_contract::time::Timestamp;

use super::confirm::ConfirmArgs;
use super::{age, enrollment, join_token, moment, node_drain, topology};
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::list::{Changes, List, ListArgs, when_empty};
use crate::output::{Details, Table, View, text};
use crate::pages::MAX_ITEMS;
use crate::resolve;

/// Nodes. A node is named by its id, a unique prefix of it, or its name if no other node has the same name.
#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// List nodes.
    #[command(alias = "list")]
    Ls {
        /// Include retired nodes.
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Show a node: its link, hardware and last metrics.
    #[command(alias = "get")]
    Show {
        /// The node.
        node: String,
    },
    /// List enrollment requests of hosts.
    Requests {
        /// Include requests that were already approved or rejected.
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Approve an enrollment request.
    Approve {
        /// Request: its id, a unique prefix of it, or the host's name.
        request: String,
        /// Reason, recorded in the audit log.
        #[arg(long, default_value = "")]
        reason: String,
        /// Existing node with the same fingerprint that the host replaces. The old identity ends.
        #[arg(long, value_name = "NODE")]
        replace_node: Option<String>,
    },
    /// Reject an enrollment request.
    Reject {
        /// Request: its id, a unique prefix of it, or the host's name.
        request: String,
        /// Reason, shown to the host.
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Rename a node.
    Rename {
        /// The node.
        node: String,
        /// New name.
        name: String,
    },
    /// Drain a node: it gets no new work, and running tasks finish. Shows what is still on it and asks first on a terminal.
    Drain {
        #[command(flatten)]
        operation: Operation,
        /// Show what is still on the node without changing anything.
        #[arg(long)]
        preview: bool,
        /// Do not ask for confirmation.
        #[arg(short, long)]
        yes: bool,
    },
    /// Return a drained node to service: it gets new work again.
    Undrain(Operation),
    /// Quarantine a suspect node: it gets no new work.
    Quarantine(Operation),
    /// End the quarantine of a node.
    Unquarantine(Operation),
    /// Retire a node: its certificates are revoked and its open tasks are lost. Asks for its name first.
    ///
    /// Only enrolling it again brings it back. Refused while tenants have allocations on it, unless --force is given.
    Retire {
        #[command(flatten)]
        operation: Operation,
        /// Retire the node even if tenants have allocations on it. The tenants lose these allocations and are notified.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
    /// Inspect a node and create slots on it.
    #[command(subcommand)]
    Topology(topology::TopologyCommand),
    /// Manage join tokens, which enroll hosts.
    #[command(subcommand)]
    Token(join_token::JoinTokenCommand),
}

/// A node and a reason.
#[derive(Debug, clap::Args)]
pub(crate) struct Operation {
    /// The node.
    node: String,
    /// Reason, shown with the node and recorded in the audit log.
    #[arg(long, default_value = "")]
    reason: String,
}

pub(super) async fn run(session: &CommandContext, command: NodeCommand) -> Result<Exit, CliError> {
    let (operation, kind) = match command {
        NodeCommand::Ls { all, list: args } => return list(session, all, args).await,
        NodeCommand::Show { node } => return show(session, &node).await,
        NodeCommand::Requests { all, list: args } => return enrollment::list(session, all, args).await,
        NodeCommand::Approve { request, reason, replace_node } => {
            return enrollment::approve(session, &request, reason, replace_node).await;
        }
        NodeCommand::Reject { request, reason } => return enrollment::reject(session, &request, reason).await,
        NodeCommand::Rename { node, name } => return rename(session, &node, name).await,
        NodeCommand::Topology(command) => return topology::run(session, command).await,
        NodeCommand::Token(command) => return join_token::run(session, command).await,
        NodeCommand::Drain { operation, preview, yes } => {
            let node = resolve::node(session.client()?, &operation.node).await?;
            if preview {
                return node_drain::preview(session, &node).await;
            }
            node_drain::confirmed(session, &node, yes).await?;
            (Operation { node, ..operation }, NodeOperation::Drain)
        }
        NodeCommand::Undrain(operation) => (operation, NodeOperation::Undrain),
        NodeCommand::Quarantine(operation) => (operation, NodeOperation::Quarantine),
        NodeCommand::Unquarantine(operation) => (operation, NodeOperation::Unquarantine),
        NodeCommand::Retire { operation, force, confirm } => return retire(session, operation, force, confirm).await,
    };
    operate(session, operation, kind).await
}

async fn rename(session: &CommandContext, node: &str, name: String) -> Result<Exit, CliError> {
    let client = session.client()?;
    let node = resolve::node(client, node).await?;
    let node = client.node_change(&node, &NodeChange { name }).await?;
    session.output.print(&node, |node| View::Details(details(node)))?;
    Ok(Exit::Done)
}

enum NodeOperation {
    Drain,
    Undrain,
    Quarantine,
    Unquarantine,
}

async fn retire(session: &CommandContext, operation: Operation, force: bool, confirm: ConfirmArgs) -> Result<Exit, CliError> {
    let client = session.client()?;
    let id = resolve::node(client, &operation.node).await?;
    let name = client.node(&id).await?.name;
    let question = format!("Retire {name}? Its open tasks are lost, and it must be enrolled again to come back.");
    confirm.ask_for_name(&question, &name)?;
    let node = client.node_retire(&id, &NodeRetire { reason: operation.reason, force }).await?;
    print_operated(session, &node)
}

async fn operate(session: &CommandContext, operation: Operation, kind: NodeOperation) -> Result<Exit, CliError> {
    let client = session.client()?;
    let node = resolve::node(client, &operation.node).await?;
    let reason = Reason { reason: operation.reason };
    let node = match kind {
        NodeOperation::Drain => client.node_drain(&node, &reason).await?,
        NodeOperation::Undrain => client.node_undrain(&node, &reason).await?,
        NodeOperation::Quarantine => client.node_quarantine(&node, &reason).await?,
        NodeOperation::Unquarantine => client.node_unquarantine(&node, &reason).await?,
    };
    print_operated(session, &node)
}

fn print_operated(session: &CommandContext, node: &Node) -> Result<Exit, CliError> {
    session.output.print(node, |node| {
        View::Details(
            Details::default()
                .field("id", node.id)
                .field("name", &node.name)
                .field("service", &node.service)
                .field("reason", &node.service_reason)
                .field("open tasks", node.tasks_open),
        )
    })?;
    Ok(Exit::Done)
}

async fn list(session: &CommandContext, all: bool, args: ListArgs) -> Result<Exit, CliError> {
    let client = session.client()?;
    let list = List {
        changes: Changes::Platform("node"),
        time: |node: &Node| Some(node.created_at),
        limit: MAX_ITEMS,
        view: table,
        advice: when_empty("there are no nodes yet; `gpuaas node token create` prints the command that enrolls a host"),
    };
    list.run(session, args, async |limit| resolve::all_nodes(client, all, limit).await).await
}

async fn show(session: &CommandContext, node: &str) -> Result<Exit, CliError> {
    let client = session.client()?;
    let id = resolve::node(client, node).await?;
    let node = client.node(&id).await?;
    session.output.print(&node, |node| View::Details(details(node)))?;
    Ok(Exit::Done)
}

fn table(nodes: &[Node]) -> View {
    if nodes.is_empty() {
        return View::Nothing;
    }
    let ids = text::short_ids(&nodes.iter().map(|node| node.id.to_string()).collect::<Vec<_>>());
    let mut table = Table::new(["ID", "NAME", "SERVICE", "LINK", "SEEN", "GPUS", "OPEN TASKS", "AGENT"]);
    for (node, id) in nodes.iter().zip(ids) {
        table.row([
            id,
            node.name.clone(),
            node.service.to_string(),
            link_of(node).to_owned(),
            if node.online { "now".to_owned() } else { age(node.last_seen_at) },
            gpus_of(&node.facts),
            node.tasks_open.to_string(),
            node.facts.agent_version.clone(),
        ]);
    }
    View::Table(table)
}

fn link_of(node: &Node) -> &str {
    match &node.session {
        Some(session) if node.online => session.transport.as_str(),
        Some(_) | None => "offline",
    }
}

/// Returns the GPUs of a host, such as `8 × NVIDIA H100 (simulated)`.
pub(super) fn gpus_of(facts: &HostFacts) -> String {
    let simulated = if facts.simulated { " (simulated)" } else { "" };
    let mut kinds: Vec<(&str, usize)> = Vec::new();
    for gpu in &facts.gpus {
        let name = if gpu.name.is_empty() { "GPU" } else { gpu.name.as_str() };
        match kinds.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => kinds.push((name, 1)),
        }
    }
    let kinds: Vec<String> = kinds.into_iter().map(|(name, count)| format!("{count} × {name}")).collect();
    if kinds.is_empty() { format!("none{simulated}") } else { format!("{}{simulated}", kinds.join(", ")) }
}

/// Returns the operating system of a host, such as `Debian GNU/Linux 12, kernel 6.1, x86_64`.
pub(super) fn system_of(facts: &HostFacts) -> String {
    let kernel = if facts.kernel.is_empty() { String::new() } else { format!("kernel {}", facts.kernel) };
    let parts = [facts.os.as_str(), &kernel, &facts.architecture];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

fn details(node: &Node) -> Details {
    let facts = &node.facts;
    let link = match &node.session {
        Some(session) if node.online => format!("{} since {}", session.transport, moment(session.since)),
        Some(_) | None => "offline".to_owned(),
    };
    let certificate = node.certificate_not_after.map(|end| {
        let state = if end < Timestamp::now() { "expired" } else { "valid until" };
        format!("{state} {}", moment(end))
    });
    let disks = facts.disks.iter().map(|disk| format!("{} {} {}", disk.name, text::bytes(disk.size_bytes), disk.model));
    let networks = facts.networks.iter().map(|net| {
        let speed = if net.speed_mbit > 0 { format!(", {} Mbit/s", net.speed_mbit) } else { String::new() };
        format!("{} {}{speed}", net.name, if net.up { "up" } else { "down" })
    });
    let mut details = Details::default()
        .field("id", node.id)
        .field("name", &node.name)
        .field("simulated", if node.simulated { "yes: nothing on it is real hardware" } else { "" })
        .field("service", &node.service)
        .field("reason", &node.service_reason)
        .field("link", link)
        .maybe("last seen", node.last_seen_at.map(moment))
        .field("open tasks", node.tasks_open)
        .field("epoch", node.epoch)
        .field("enrolled", moment(node.enrolled_at))
        .field("first enrolled", moment(node.created_at))
        .maybe("certificate", certificate)
        .field("rejoins", if node.rejoins > 0 { node.rejoins.to_string() } else { String::new() })
        .field("receipt key", node.receipt_key.id())
        .field("fingerprint", &node.fingerprint)
        .field("agent", &facts.agent_version)
        .field("system", system_of(facts))
        .field("CPU", format!("{} × {}", facts.cpu_threads, facts.cpu_model))
        .field("memory", text::bytes(facts.memory_bytes))
        .field("GPUs", gpu_lines(node))
        .field("disks", disks.collect::<Vec<_>>().join("\n"))
        .field("networks", networks.collect::<Vec<_>>().join("\n"));
    if let Some(metrics) = &node.metrics {
        details = details
            .field("metrics", moment(metrics.at))
            .field(
                "CPU busy",
                format!("{}%, load {}.{:02}", metrics.cpu_percent, metrics.load_percent / 100, metrics.load_percent % 100),
            )
            .field("memory used", text::bytes(metrics.memory_used_bytes))
            .field("root disk", format!("{} of {}", text::bytes(metrics.root_used_bytes), text::bytes(metrics.root_size_bytes)))
            .field("agent memory", text::bytes(metrics.agent_rss_bytes));
    }
    details
}

/// Returns one line per GPU, with its last sample.
fn gpu_lines(node: &Node) -> String {
    if node.facts.gpus.is_empty() {
        return "none".to_owned();
    }
    let lines = node.facts.gpus.iter().map(|gpu| {
        let memory = if gpu.memory_bytes > 0 { format!(" {}", text::bytes(gpu.memory_bytes)) } else { String::new() };
        let driver = if gpu.driver.is_empty() { String::new() } else { format!(", driver {}", gpu.driver) };
        let samples = node.metrics.iter().flat_map(|metrics| &metrics.gpus);
        let sample = samples.filter(|sample| sample.pci_address == gpu.pci_address).map(|sample| {
            let watts = sample.power_milliwatts / 1000;
            format!(", {}% busy, {} °C, {watts} W", sample.utilization_percent, sample.temperature_celsius)
        });
        format!("{} {}{memory}{driver}{}", gpu.pci_address, gpu.name, sample.collect::<String>())
    });
    lines.collect::<Vec<_>>().join("\n")
}
