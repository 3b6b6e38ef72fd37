//! `gpuaas task run`.

use std::time::Duration;

use gpuaas_api::dto::TaskCreate;

use super::task::details;
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::{self, Exit};
use crate::follow::{self, Waited};
use crate::output::View;
use crate::{duration, params, resolve};

/// What to run, and whether to wait for it.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Node: its id, a unique prefix of it, or its name.
    node: String,
    /// Type of the task; `gpuaas task types` lists them.
    task_type: String,
    /// One parameter; repeatable.
    #[arg(short, long = "param", value_name = "NAME=VALUE")]
    param: Vec<String>,
    /// All parameters as a JSON object: the text itself, @FILE, or - for stdin.
    #[arg(long, value_name = "JSON|@FILE|-")]
    params: Option<String>,
    /// Wait until the task has ended.
    #[arg(short, long)]
    wait: bool,
    /// Print the task's log lines on stderr while waiting. Implies --wait.
    #[arg(long)]
    logs: bool,
    /// Wait at most this long, then exit with 7; the task continues. Implies --wait.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    max_wait: Option<Duration>,
    /// How long the task may run, such as 90s or 5m [default: the server's].
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    timeout: Option<Duration>,
    /// How long the task may wait for its node [default: the server's].
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    queue_time: Option<Duration>,
    /// Idempotency key: repeating the command with the same key finds the same task instead of creating another one.
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

pub(super) async fn run(session: &CommandContext, args: RunArgs) -> Result<Exit, CliError> {
    let params = params::collect(&args.task_type, args.params.as_deref(), &args.param)?;
    let client = session.client()?;
    let create = TaskCreate {
        node: resolve::node(client, &args.node).await?,
        task_type: args.task_type,
        params,
        queue_seconds: args.queue_time.map(|time| time.as_secs()),
        timeout_seconds: args.timeout.map(|time| time.as_secs()),
    };
    let task = client.task_create(&create, args.idempotency_key.as_deref()).await?;
    if !(args.wait || args.logs || args.max_wait.is_some()) {
        session.output.print(&task, |task| View::Details(details(task)))?;
        session.output.hint(&format!("`gpuaas task show {}` shows its progress", task.id));
        return Ok(Exit::Done);
    }
    let id = task.id.to_string();
    match follow::wait(client, &id, args.logs, args.max_wait).await? {
        Waited::Ended(task) => {
            session.output.print(&task, |task| View::Details(details(task)))?;
            Ok(exit::of_task(&task.state))
        }
        Waited::GaveUp => {
            let task = client.task(&id).await?;
            session.output.print(&task, |task| View::Details(details(task)))?;
            if task.ended() {
                return Ok(exit::of_task(&task.state));
            }
            session.output.hint(&format!(
                "the task continues; `gpuaas task show {id}` shows its progress, `gpuaas task cancel {id}` stops it"
            ));
            Ok(Exit::Timeout)
        }
    }
}
