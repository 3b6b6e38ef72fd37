//! `gpuaas task`.

use clap::Subcommand;
use futures::StreamExt as _;
use gpuaas_api::dto::StateFilter;
use gpuaas_api::dto::{Reason, Task, TaskListQuery, TaskTypeInfo};
use gpuaas_contract::state::TaskState;
use gpuaas_contract::time::Timestamp;

use super::task_run::{self, RunArgs};
use super::task_verify::{self, VerifyArgs};
use super::{age, moment};
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::list::{Changes, List, ListArgs, when_empty};
use crate::output::{Details, Table, View, text};
use crate::{follow, pages, resolve, time};

/// Number of tasks to list without `--limit`.
const TASKS_SHOWN: usize = 50;

/// Tasks. A task is named by its id or a unique prefix of it.
#[derive(Debug, Subcommand)]
pub(crate) enum TaskCommand {
    /// Run a task on a node.
    ///
    /// With --wait, progress is printed on stderr and the ended task on stdout, and the exit code is its outcome:
    /// 0 succeeded; 1 failed, cancelled, interrupted or lost; 4 refused by the host; 7 expired or still running.
    ///
    /// Examples:
    ///   gpuaas task run rack-1 diag.ping --param message=hello --wait
    ///   gpuaas task run rack-1 package.list --params '{"limit":5}' --wait -o json
    #[command(verbatim_doc_comment)]
    Run(RunArgs),
    /// List tasks, newest first.
    #[command(alias = "list")]
    Ls {
        /// Only tasks of this node.
        #[arg(long)]
        node: Option<String>,
        /// Only tasks in this state, such as `failed`; `open` means not ended.
        #[arg(long)]
        state: Option<StateFilter<TaskState>>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Show a task with its output.
    #[command(alias = "get")]
    Show {
        /// The task.
        task: String,
    },
    /// Print the log lines of a task.
    Logs {
        /// The task.
        task: String,
        /// Continue with new lines until the task has ended.
        #[arg(short, long)]
        follow: bool,
        /// Only lines after this position.
        #[arg(long, value_name = "SEQ", default_value_t = 0)]
        after: u64,
        /// Only lines from this time on: a duration before now such as `2h`, or UTC such as 2027-03-01T08:00Z.
        #[arg(long, value_name = "TIME", value_parser = time::parse_past)]
        since: Option<Timestamp>,
    },
    /// Request the cancellation of a task. It has ended when the node's receipt confirms it.
    Cancel {
        /// The task.
        task: String,
        /// Reason, recorded in the audit log.
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Check the signatures of a task's envelope and receipt. Exits with 1 if a check fails.
    ///
    /// Examples:
    ///   gpuaas task verify task_0198… --trust-root key_… --save evidence.json
    ///   gpuaas task verify --evidence evidence.json --trust-root key_…
    #[command(verbatim_doc_comment)]
    Verify(VerifyArgs),
    /// List the types of tasks, or show the parameters of one.
    Types {
        /// Type of task.
        task_type: Option<String>,
    },
}

pub(super) async fn run(session: &CommandContext, command: TaskCommand) -> Result<Exit, CliError> {
    match command {
        TaskCommand::Run(args) => task_run::run(session, args).await,
        TaskCommand::Ls { node, state, list: args } => list(session, node, state, args).await,
        TaskCommand::Show { task } => {
            let client = session.client()?;
            let id = resolve::task(client, &task).await?;
            let task = client.task(&id).await?;
            session.output.print(&task, |task| View::Details(details(task)))?;
            Ok(Exit::Done)
        }
        TaskCommand::Logs { task, follow, after, since } => logs(session, &task, (after, since), follow).await,
        TaskCommand::Cancel { task, reason } => {
            let client = session.client()?;
            let id = resolve::task(client, &task).await?;
            let task = client.task_cancel(&id, &Reason { reason }).await?;
            session.output.print(&task, |task| View::Details(details(task)))?;
            if !task.ended() {
                session.output.hint("the request is sent; `gpuaas task show ID` shows when the task has stopped");
            }
            Ok(Exit::Done)
        }
        TaskCommand::Verify(args) => task_verify::run(session, args).await,
        TaskCommand::Types { task_type } => types(session, task_type).await,
    }
}

async fn list(
    session: &CommandContext,
    node: Option<String>,
    state: Option<StateFilter<TaskState>>,
    args: ListArgs,
) -> Result<Exit, CliError> {
    let client = session.client()?;
    let node = match node {
        Some(node) => Some(resolve::node(client, &node).await?),
        None => None,
    };
    let filtered = node.is_some() || state.is_some() || args.has_since();
    let fetch = async |after, limit| {
        let query = TaskListQuery { node: node.clone(), state, id_prefix: None, after, limit: Some(limit) };
        client.tasks(&query).await
    };
    let list = List {
        changes: Changes::Platform("task"),
        time: |task: &Task| Some(task.created_at),
        limit: TASKS_SHOWN,
        view: table,
        advice: when_empty(if filtered {
            "no task matches"
        } else {
            "there are no tasks yet; try `gpuaas task run NODE diag.ping --wait`"
        }),
    };
    let newest = async |limit| Ok(pages::collect_newest(limit, |task: &Task| args.includes(task.created_at), &fetch).await?);
    list.run(session, args, newest).await
}

async fn logs(
    session: &CommandContext,
    task: &str,
    (after, since): (u64, Option<Timestamp>),
    follow: bool,
) -> Result<Exit, CliError> {
    let client = session.client()?;
    let id = resolve::task(client, task).await?;
    let mut lines = follow::logs(client, &id, after, follow).boxed();
    let mut any = false;
    while let Some(line) = lines.next().await.transpose()? {
        if since.is_none_or(|since| line.at >= since) {
            session.output.print_item(&line, follow::log_text)?;
            any = true;
        }
    }
    if !any {
        session.output.hint("there are no log lines");
    }
    Ok(Exit::Done)
}

fn table(tasks: &[Task]) -> View {
    if tasks.is_empty() {
        return View::Nothing;
    }
    let ids = text::short_ids(&tasks.iter().map(|task| task.id.to_string()).collect::<Vec<_>>());
    let mut table = Table::new(["ID", "NODE", "TYPE", "STATE", "CODE", "AGE", "TOOK"]);
    for (task, id) in tasks.iter().zip(ids) {
        let took = match (task.started_at, task.ended_at) {
            (Some(started), Some(ended)) => {
                text::milliseconds(u64::try_from(ended.since(started).as_millis()).unwrap_or(u64::MAX))
            }
            (Some(_) | None, _) => String::new(),
        };
        table.row([
            id,
            task.node_name.clone(),
            task.task_type.clone(),
            task.state.to_string(),
            task.code.clone(),
            age(Some(task.created_at)),
            took,
        ]);
    }
    View::Table(table)
}

pub(super) fn details(task: &Task) -> Details {
    let phases = task.phases.iter().map(|phase| format!("{} {}", phase.phase, text::milliseconds(phase.milliseconds)));
    let progress = task.progress.as_ref().filter(|_| !task.ended());
    let waits = if task.ended() || task.started_at.is_some() { None } else { Some(moment(task.queue_until)) };
    Details::default()
        .field("id", task.id)
        .field("type", &task.task_type)
        .maybe("node", (!task.node_name.is_empty()).then(|| format!("{} ({})", task.node_name, task.node_id)))
        .field("state", &task.state)
        .field("code", &task.code)
        .field("message", &task.message)
        .maybe("phase", progress.map(|progress| format!("{} {}", progress.phase, progress.message)))
        .field("params", pretty(&task.params))
        .maybe("output", task.output.as_ref().map(pretty))
        .field("phases", phases.collect::<Vec<_>>().join(", "))
        .field("requested by", &task.requested_by)
        .field("correlation", &task.correlation_id)
        .maybe("idempotency key", task.idempotency_key.as_ref())
        .field("created", moment(task.created_at))
        .maybe("waits until", waits)
        .field("dispatched", if task.dispatches > 1 { format!("{} times", task.dispatches) } else { String::new() })
        .maybe("cancel requested", task.cancel_requested_at.map(moment))
        .maybe("accepted", task.accepted_at.map(moment))
        .maybe("started", task.started_at.map(moment))
        .maybe("ended", task.ended_at.map(|at: Timestamp| moment(at)))
        .field("timeout", format!("{}s", task.timeout_seconds))
        .maybe("receipt", task.receipt_digest.as_ref())
}

fn pretty(value: &serde_json::Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_else(|_| value.to_string())
}

async fn types(session: &CommandContext, wanted: Option<String>) -> Result<Exit, CliError> {
    let types = session.client()?.task_types().await?.items;
    let Some(wanted) = wanted else {
        session.output.print(&types, |types| {
            let mut table = Table::new(["TYPE", "CHANGES HOST", "WHAT IT DOES"]);
            for kind in types {
                let changes = if kind.changes_host { "yes" } else { "no" };
                table.row([kind.task_type.clone(), changes.to_owned(), kind.summary.clone()]);
            }
            View::Table(table)
        })?;
        return Ok(Exit::Done);
    };
    let Some(kind) = types.iter().find(|kind| kind.task_type == wanted) else {
        let known: Vec<&str> = types.iter().map(|kind| kind.task_type.as_str()).collect();
        return Err(CliError::new(Exit::NotFound, "task_type_unknown", format!("there is no task type `{wanted}`"))
            .hint(format!("there are {}", known.join(", "))));
    };
    session.output.print(kind, |kind| View::Details(type_details(kind)))?;
    Ok(Exit::Done)
}

fn type_details(kind: &TaskTypeInfo) -> Details {
    let fields = |schema: &serde_json::Value| {
        let properties = schema.get("properties").and_then(serde_json::Value::as_object);
        let lines = properties.into_iter().flatten().map(|(name, field)| {
            let described = field.get("description").and_then(serde_json::Value::as_str).unwrap_or("").replace('\n', " ");
            let kind = match field.get("type") {
                Some(serde_json::Value::String(kind)) => kind.clone(),
                Some(other) => other.to_string(),
                // A named type, such as `#/$defs/Timestamp`.
                None => field.get("$ref").and_then(|r| r.as_str()?.rsplit('/').next()).unwrap_or("any").to_owned(),
            };
            format!("{name} ({kind}): {described}")
        });
        lines.collect::<Vec<_>>().join("\n")
    };
    Details::default()
        .field("type", &kind.task_type)
        .field("what it does", &kind.summary)
        .field("changes host", if kind.changes_host { "yes" } else { "no" })
        .field("params", fields(&kind.params))
        .field("output", fields(&kind.output))
}
