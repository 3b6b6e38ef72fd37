//! `gpuaas slice`.

use clap::Subcommand;
use futures::StreamExt as _;
use gpuaas_api::client::ErrorKind;
use gpuaas_api::dto::{Reason, Slice, SliceConsole, SliceListQuery, SliceOrder, SlicePower, SliceRelease, TaskLogLine};
use gpuaas_contract::state::{SliceState, SlotState, TaskState};
use gpuaas_contract::task::slice_console_read::{MAX_BYTES, MAX_FOLLOW_SECONDS};
use gpuaas_contract::task::slice_vm_power::PowerAction;

use super::confirm::ConfirmArgs;
use super::slice_create::{self, CreateArgs};
use super::{age, moment};
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::{self, Exit};
use crate::follow::{self, Waited};
use crate::list::{Changes, List, ListArgs, when_empty};
use crate::output::{Details, Table, View, text};
use crate::pages::{self, MAX_ITEMS};
use crate::resolve;

/// How long to wait for console lines that arrive after the receipt.
const LATE_LINES: std::time::Duration = std::time::Duration::from_secs(10);

/// Slices. A slice is named by its id, a unique prefix of it, or the guest's name if no other slice has the same name.
#[derive(Debug, Subcommand)]
pub(crate) enum SliceCommand {
    /// Create a guest on free slots of a node, and wait until it runs.
    ///
    /// Progress is printed on stderr. On success the guest's address and the command to sign in are printed; the exit code is the
    /// outcome, as with `gpuaas task run --wait`. If it fails, everything is undone and the slots are free again, or
    /// `gpuaas slice show` shows what is left.
    ///
    /// Examples:
    ///   gpuaas slice create rack-1 --slot 0 --name trainer --image-path ubuntu-24.04.img --image-sha256 9f86d0… --ssh-key ~/.ssh/id_ed25519.pub
    ///   gpuaas slice create rack-1 --slot 0 --slot 1 --name big --image-url https://images.example.com/u.img --image-sha256 9f86d0… --driver cloud-init
    #[command(verbatim_doc_comment)]
    Create(Box<CreateArgs>),
    /// List slices.
    #[command(alias = "list")]
    Ls {
        /// Only slices on this node.
        #[arg(long)]
        node: Option<String>,
        /// Only slices with a slot in this state: leased, releasing, needs_wipe, cleanup_blocked.
        #[arg(long)]
        state: Option<SlotState>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Show a slice: its guest, slots and last tasks.
    #[command(alias = "get")]
    Show {
        /// The slice.
        slice: String,
    },
    /// Release a slice: stop its guest, wipe its drives and free its slots. Asks for its name first.
    Release {
        /// The slice.
        slice: String,
        /// Do not wipe the drives. The slots cannot be leased until they are wiped.
        #[arg(long)]
        no_wipe: bool,
        #[command(flatten)]
        confirm: ConfirmArgs,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Stop a guest, by force if it does not shut down. It keeps its slots, disk and address.
    Stop(PowerArgs),
    /// Start a stopped guest.
    Start(PowerArgs),
    /// Reboot a guest.
    Reboot(PowerArgs),
    /// Print the serial console of a guest.
    Console {
        /// The slice.
        slice: String,
        /// Continue with new output for up to an hour or until Ctrl-C.
        #[arg(short, long)]
        follow: bool,
        /// How many bytes of past output to print.
        #[arg(long, value_name = "BYTES", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(0..=i64::from(MAX_BYTES)))]
        tail: u32,
    },
}

/// A slice, and whether to wait.
#[derive(Debug, clap::Args)]
pub(crate) struct PowerArgs {
    /// The slice.
    slice: String,
    #[command(flatten)]
    wait: WaitArgs,
}

/// Options for waiting for the result.
#[derive(Debug, clap::Args)]
pub(crate) struct WaitArgs {
    /// Return immediately instead of waiting for the result.
    #[arg(long)]
    pub(super) no_wait: bool,
    /// Idempotency key: repeating the command with the same key finds the same task instead of creating another one.
    #[arg(long, value_name = "KEY")]
    pub(super) idempotency_key: Option<String>,
}

pub(super) async fn run(session: &CommandContext, command: SliceCommand) -> Result<Exit, CliError> {
    match command {
        SliceCommand::Create(args) => slice_create::run(session, *args).await,
        SliceCommand::Ls { node, state, list: args } => list(session, node, state, args).await,
        SliceCommand::Show { slice } => {
            let client = session.client()?;
            let slice = client.slice(&resolve::slice(client, &slice).await?).await?;
            session.output.print(&slice, view)?;
            advise(session, &slice);
            Ok(Exit::Done)
        }
        SliceCommand::Release { slice, no_wipe, confirm, wait } => release(session, &slice, !no_wipe, confirm, &wait).await,
        SliceCommand::Stop(args) => power(session, args, PowerAction::Stop).await,
        SliceCommand::Start(args) => power(session, args, PowerAction::Start).await,
        SliceCommand::Reboot(args) => power(session, args, PowerAction::Reboot).await,
        SliceCommand::Console { slice, follow, tail } => console(session, &slice, follow, tail).await,
    }
}

async fn list(
    session: &CommandContext,
    node: Option<String>,
    state: Option<SlotState>,
    args: ListArgs,
) -> Result<Exit, CliError> {
    let client = session.client()?;
    let node = match node {
        Some(node) => Some(resolve::node(client, &node).await?),
        None => None,
    };
    let filtered = node.is_some() || state.is_some();
    let fetch =
        async |after, limit| client.slices(&SliceListQuery { node: node.clone(), state, after, limit: Some(limit) }).await;
    let list = List {
        changes: Changes::Platform("slot,task"),
        time: |slice: &Slice| slice.created_at,
        limit: MAX_ITEMS,
        view: table,
        advice: when_empty(if filtered || args.has_since() {
            "no slice matches; `gpuaas slice ls` lists all"
        } else {
            "there are no slices yet; `gpuaas slot ls --state available` lists free slots, `gpuaas slice create` uses them"
        }),
    };
    list.run(session, args, async |limit| Ok(pages::collect(limit, &fetch).await?)).await
}

async fn release(
    session: &CommandContext,
    slice: &str,
    wipe: bool,
    confirm: ConfirmArgs,
    wait: &WaitArgs,
) -> Result<Exit, CliError> {
    let client = session.client()?;
    let id = resolve::slice(client, slice).await?;
    if !confirm.is_given() {
        let now = client.slice(&id).await?;
        let drives = if wipe { "its drives are wiped" } else { "its drives are NOT wiped, so nobody gets its slots" };
        let name = if now.vm_name.is_empty() { &id } else { &now.vm_name };
        let question = format!("Release {name} on {} ({} slots)? The guest ends and {drives}.", now.node_name, now.slots.len());
        confirm.ask_for_name(&question, name)?;
    }
    let release = SliceRelease { wipe, graceful_timeout_seconds: None };
    let order = client.slice_release(&id, &release, wait.idempotency_key.as_deref()).await?;
    finish(session, order, wait.no_wait).await
}

async fn power(session: &CommandContext, args: PowerArgs, action: PowerAction) -> Result<Exit, CliError> {
    let client = session.client()?;
    let id = resolve::slice(client, &args.slice).await?;
    let power = SlicePower { action, graceful_timeout_seconds: None };
    let order = client.slice_power(&id, &power, args.wait.idempotency_key.as_deref()).await?;
    finish(session, order, args.wait.no_wait).await
}

/// Cleans up what is left on a slot.
pub(super) async fn force_cleanup(
    session: &CommandContext,
    slot: &str,
    reason: String,
    confirm: ConfirmArgs,
    wait: &WaitArgs,
) -> Result<Exit, CliError> {
    let client = session.client()?;
    let id = resolve::slot(client, slot).await?;
    let question = format!("Clean up slot {slot}? Whatever is left there ends, and the drives are wiped.");
    confirm.ask_for_name(&question, slot)?;
    let order = client.slot_force_cleanup(&id, &Reason { reason }, wait.idempotency_key.as_deref()).await?;
    finish(session, order, wait.no_wait).await
}

/// Waits for the task, unless `no_wait` is set, and shows the result.
pub(super) async fn finish(session: &CommandContext, order: SliceOrder, no_wait: bool) -> Result<Exit, CliError> {
    let client = session.client()?;
    let (slice, task) = (order.allocation_id.to_string(), order.task.id.to_string());
    if no_wait {
        session.output.print(&order, |order| View::Details(order_details(order)))?;
        session.output.hint(&format!("`gpuaas slice show {slice}` shows its progress"));
        return Ok(Exit::Done);
    }
    let waited = follow::wait(client, &task, false, None).await?;
    let ended = match waited {
        Waited::Ended(task) => *task,
        Waited::GaveUp => client.task(&task).await?,
    };
    let now = client.slice(&slice).await?;
    let order = SliceOrder { task: ended, slots: now.slots.clone(), ..order };
    session.output.print(&order, |order| View::Details(order_details(order)))?;
    if !order.task.ended() {
        session
            .output
            .hint(&format!("it continues; `gpuaas slice show {slice}` shows its progress, `gpuaas task cancel {task}` stops it"));
        return Ok(Exit::Timeout);
    }
    advise(session, &now);
    Ok(exit::of_task(&order.task.state))
}

fn order_details(order: &SliceOrder) -> Details {
    let task = &order.task;
    let output = |name: &str| task.output.as_ref().and_then(|output| output.get(name)).and_then(|value| value.as_str());
    let address = output("private_ip");
    let ssh = address.zip(output("default_user")).map(|(address, user)| format!("ssh {user}@{address}"));
    let slots: Vec<String> = order.slots.iter().map(|slot| format!("{} ({})", slot.spec.slot_index, slot.state)).collect();
    Details::default()
        .field("slice", order.allocation_id)
        .maybe("name", output("vm_name"))
        .field("node", &task.node_name)
        .field("slots", if slots.is_empty() { "none: they are free again".to_owned() } else { slots.join(", ") })
        .maybe("address", address)
        .maybe("sign in", ssh)
        .field("task", format!("{} ({})", task.id, task.task_type))
        .field("state", &task.state)
        .field("code", &task.code)
        .field("message", &task.message)
}

/// Prints a hint on what to do next with a slice in this state.
fn advise(session: &CommandContext, slice: &Slice) {
    let blocked = slice.slots.iter().find(|slot| slot.state == SlotState::CleanupBlocked);
    if let Some(slot) = blocked {
        let place = format!("{}/{}", slot.node_name, slot.spec.slot_index);
        session.output.hint(&format!("slot {place} is not proven to be clean: {}", slot.reason));
        session.output.hint(&format!(
            "repair that on the host, then `gpuaas slice release {}` retries; `gpuaas slot force-cleanup {place}` cleans up by force",
            slice.allocation_id
        ));
    } else if slice.state == SliceState::NeedsWipe {
        session.output.hint(&format!("its drives wait for a wipe: `gpuaas slice release {}` wipes them", slice.allocation_id));
    }
}

async fn console(session: &CommandContext, slice: &str, follow: bool, tail: u32) -> Result<Exit, CliError> {
    let client = session.client()?;
    let id = resolve::slice(client, slice).await?;
    let wanted = SliceConsole { tail_bytes: Some(tail), follow_seconds: Some(if follow { MAX_FOLLOW_SECONDS } else { 0 }) };
    let task = client.slice_console(&id, &wanted, None).await?.task.id.to_string();
    print_console(session, &task).await
}

/// Prints the output of a task that reads a console, until the task ends or Ctrl-C.
pub(super) async fn print_console(session: &CommandContext, task: &str) -> Result<Exit, CliError> {
    let client = session.client()?;
    let mut lines = std::pin::pin!(follow::logs(client, task, 0, true));
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    let (mut printed, mut last, mut is_interrupted) = (0, 0, false);
    loop {
        let line = tokio::select! {
            biased;
            _ = &mut interrupted => {
                is_interrupted = true;
                break;
            }
            line = lines.next() => line,
        };
        let Some(line) = line.transpose()? else { break };
        print_console_line(session, &line)?;
        (printed, last) = (printed + 1 + line.dropped, line.sequence);
    }
    let ended = client.task(task).await?;
    // The receipt says how many lines there are. Some may arrive after it, because logs and receipts travel independently.
    let all = ended.output.as_ref().and_then(|output| output["lines"].as_u64()).unwrap_or(0);
    let until = tokio::time::Instant::now() + LATE_LINES;
    while !is_interrupted && printed < all && tokio::time::Instant::now() < until {
        let mut late = std::pin::pin!(follow::logs(client, task, last, false));
        while let Some(line) = late.next().await.transpose()? {
            print_console_line(session, &line)?;
            (printed, last) = (printed + 1 + line.dropped, line.sequence);
        }
        let pause = tokio::time::sleep(std::time::Duration::from_millis(100));
        tokio::select! { biased; _ = &mut interrupted => break, () = pause => {} }
    }
    if !ended.ended() {
        // Nobody reads the output any more, so the node can stop reading the console.
        let cancelled = client.task_cancel(task, &Reason { reason: "no longer read".to_owned() }).await;
        // A caller who may read a console may not be allowed to cancel tasks. The task then ends by itself.
        cancelled.map(drop).or_else(|error| if error.kind() == ErrorKind::Unauthorized { Ok(()) } else { Err(error) })?;
        return Ok(Exit::Done);
    }
    if ended.state != TaskState::Succeeded {
        let message = if ended.message.is_empty() { &ended.code } else { &ended.message };
        let failure = CliError::new(exit::of_task(&ended.state), &ended.code, format!("the console was not read: {message}"));
        return Err(failure.hint(format!("`gpuaas task show {task}` shows more")));
    }
    Ok(Exit::Done)
}

fn print_console_line(session: &CommandContext, line: &TaskLogLine) -> Result<(), CliError> {
    session.output.print_item(line, |line| {
        let text = text::printable(&line.text);
        if line.stream == "agent" { format!("agent | {text}") } else { text }
    })
}

fn ssh(slice: &Slice) -> Option<String> {
    let address = slice.private_ip.filter(|_| slice.state == SliceState::Leased)?;
    Some(format!("ssh {}@{address}", slice.default_username))
}

fn view(slice: &Slice) -> View {
    let tasks: Vec<String> = slice
        .tasks
        .iter()
        .map(|task| {
            let phase = task.progress.as_ref().map_or(String::new(), |progress| format!(", {}", progress.phase));
            let code = if task.code.is_empty() || task.code == "ok" { String::new() } else { format!(" ({})", task.code) };
            format!("{} {} {}{phase}{code}", task.id, task.task_type, task.state)
        })
        .collect();
    let details = Details::default()
        .field("id", slice.allocation_id)
        .field("name", &slice.vm_name)
        .field("node", format!("{} ({})", slice.node_id, slice.node_name))
        .field("state", &slice.state)
        .maybe("address", slice.private_ip)
        .maybe("sign in", ssh(slice))
        .maybe("requested", slice.created_at.map(moment))
        .field("tasks", tasks.join("\n"));
    if slice.slots.is_empty() {
        return View::Details(details);
    }
    let mut table = Table::new(["SLOT", "STATE", "GPU", "DRIVE", "FABRIC", "REASON"]);
    for slot in &slice.slots {
        table.row([
            slot.spec.slot_index.to_string(),
            super::slot::state(slot),
            super::slot::gpu(slot),
            slot.spec.nvme_serial.clone(),
            super::slot::fabric(slot),
            slot.reason.clone(),
        ]);
    }
    View::DetailsAndTable(details, table)
}

fn table(slices: &[Slice]) -> View {
    if slices.is_empty() {
        return View::Nothing;
    }
    let ids = text::short_ids(&slices.iter().map(|slice| slice.allocation_id.to_string()).collect::<Vec<_>>());
    let mut table = Table::new(["ID", "NAME", "NODE", "SLOTS", "STATE", "ADDRESS", "LAST TASK", "AGE"]);
    for (slice, id) in slices.iter().zip(ids) {
        let slots: Vec<String> = slice.slots.iter().map(|slot| slot.spec.slot_index.to_string()).collect();
        let last = slice.tasks.first().map_or(String::new(), |task| format!("{} {}", task.task_type, task.state));
        table.row([
            id,
            slice.vm_name.clone(),
            slice.node_name.clone(),
            slots.join(","),
            slice.state.to_string(),
            slice.private_ip.map_or_else(|| "none".to_owned(), |ip| ip.to_string()),
            last,
            age(slice.created_at),
        ]);
    }
    View::Table(table)
}
