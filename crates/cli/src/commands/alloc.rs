//! `gpuaas alloc`.

use std::time::Duration;

use clap::Subcommand;
use gpuaas_api::dto::{Allocation, AllocationChange, AllocationExtend, AllocationRetry, Reason, SliceConsole};
use gpuaas_contract::slice::VmName;
use gpuaas_contract::state::{AllocationState, AllocationStep};
use gpuaas_contract::task::slice_console_read::{MAX_BYTES, MAX_FOLLOW_SECONDS};
use gpuaas_contract::time::Timestamp;

use super::alloc_create::{self, CreateArgs};
use super::alloc_list::{self, AllocationListArgs};
use super::alloc_view::{advise, show};
use super::confirm::ConfirmArgs;
use super::{alloc_events, alloc_ssh, slice};
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::follow::{self, WaitedFor};
use crate::{duration, tenants, time};

/// Allocations. An allocation is named by its id, a unique prefix of it, or its name in the project.
#[derive(Debug, Subcommand)]
pub(crate) enum AllocCommand {
    /// Create an allocation and wait until you can sign in.
    ///
    /// Progress is printed on stderr, and the address to sign in at the end. Ctrl-C stops waiting; the work continues.
    ///
    /// Examples:
    ///   gpuaas alloc create trainer --sku h100-1x --image ubuntu
    ///   gpuaas alloc create big --sku h100-8x --image ubuntu --ssh-key laptop --lease 8h --queue 10m --tag team=ml
    #[command(verbatim_doc_comment)]
    Create(Box<CreateArgs>),
    /// List allocations that have not ended.
    #[command(alias = "list")]
    Ls(AllocationListArgs),
    /// Show an allocation: its state, how to sign in, its price.
    #[command(alias = "get")]
    Show(Named),
    /// Stop a guest. It keeps its slots, disk, address and price.
    Stop(Power),
    /// Start a stopped guest, and wait until it answers by SSH.
    Start(Power),
    /// Reboot a guest, and wait until it answers by SSH.
    Reboot(Power),
    /// Extend a lease.
    Extend {
        /// The allocation.
        allocation: String,
        /// How long to extend the lease, such as `2h`.
        #[arg(long, value_name = "TIME", value_parser = duration::parse, required_unless_present = "forever", conflicts_with = "forever")]
        by: Option<Duration>,
        /// Remove the end of the lease: it lasts until the allocation is released.
        #[arg(long)]
        forever: bool,
        /// Idempotency key: repeating the command with the same key extends the lease once.
        #[arg(long, value_name = "KEY")]
        idempotency_key: Option<String>,
    },
    /// Release an allocation. Everything on its disks is lost. Asks for its name first.
    Release {
        /// The allocation.
        allocation: String,
        /// Reason, recorded in the history of the allocation.
        #[arg(long, default_value = "")]
        reason: String,
        #[command(flatten)]
        confirm: ConfirmArgs,
        /// Return immediately instead of waiting for the result.
        #[arg(long)]
        no_wait: bool,
    },
    /// Retry an allocation that failed, or a release that is blocked.
    Retry {
        /// The allocation.
        allocation: String,
        /// How long to wait for free capacity, such as `10m`.
        #[arg(long, value_name = "TIME", value_parser = duration::parse)]
        queue: Option<Duration>,
        /// Return immediately instead of waiting for the result.
        #[arg(long)]
        no_wait: bool,
    },
    /// Print the events of an allocation.
    Events {
        /// The allocation.
        allocation: String,
        /// Continue with new events until the allocation ends or Ctrl-C.
        #[arg(short, long)]
        follow: bool,
        /// Only events from this time on: a duration before now such as `2h` or `3d`, or UTC such as 2027-03-01T08:00Z.
        #[arg(long, value_name = "TIME", value_parser = time::parse_past)]
        since: Option<Timestamp>,
    },
    /// Print the serial console of a guest.
    Console {
        /// The allocation.
        allocation: String,
        /// Continue with new output for up to an hour or until Ctrl-C.
        #[arg(short, long)]
        follow: bool,
        /// How many bytes of past output to print.
        #[arg(long, value_name = "BYTES", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(0..=i64::from(MAX_BYTES)))]
        tail: u32,
    },
    /// Print an OpenSSH `Host` block, so that `ssh NAME` connects.
    SshConfig {
        /// The allocation.
        allocation: String,
        /// Write the block to ~/.ssh/gpuaas_config instead of printing it.
        #[arg(long)]
        write: bool,
    },
    /// Rename an allocation. The guest keeps its host name.
    Rename {
        /// The allocation.
        allocation: String,
        /// The new name: lower-case letters, digits and dashes.
        name: VmName,
    },
    /// Set or remove tags of an allocation. Other tags are not changed.
    Tag {
        /// The allocation.
        allocation: String,
        /// Tags to set.
        #[arg(value_name = "KEY=VALUE", value_parser = alloc_create::tag, required_unless_present = "remove")]
        tags: Vec<(String, String)>,
        /// Tag to remove; repeatable.
        #[arg(long, value_name = "KEY")]
        remove: Vec<String>,
    },
}

/// An allocation.
#[derive(Debug, clap::Args)]
pub(crate) struct Named {
    /// The allocation.
    allocation: String,
}

/// An allocation and whether to wait.
#[derive(Debug, clap::Args)]
pub(crate) struct Power {
    /// The allocation.
    allocation: String,
    /// Return immediately instead of waiting for the result.
    #[arg(long)]
    no_wait: bool,
}

pub(super) async fn run(session: &CommandContext, command: AllocCommand) -> Result<Exit, CliError> {
    let client = session.client()?;
    match command {
        AllocCommand::Create(args) => alloc_create::run(session, *args).await,
        AllocCommand::Ls(args) => alloc_list::run(session, args).await,
        AllocCommand::Show(Named { allocation }) => {
            let shown = client.allocation(&tenants::allocation(session, &allocation).await?).await?;
            show(session, &shown)?;
            advise(session, &shown);
            Ok(Exit::Done)
        }
        AllocCommand::Stop(Power { allocation, no_wait }) => {
            let id = tenants::allocation(session, &allocation).await?;
            powered(session, client.allocation_stop(&id).await?, no_wait).await
        }
        AllocCommand::Start(Power { allocation, no_wait }) => {
            let id = tenants::allocation(session, &allocation).await?;
            powered(session, client.allocation_start(&id).await?, no_wait).await
        }
        AllocCommand::Reboot(Power { allocation, no_wait }) => {
            let id = tenants::allocation(session, &allocation).await?;
            powered(session, client.allocation_reboot(&id).await?, no_wait).await
        }
        AllocCommand::Extend { allocation, by, forever, idempotency_key } => {
            let id = tenants::allocation(session, &allocation).await?;
            let extend = AllocationExtend { by_seconds: by.map(|by| by.as_secs()), forever };
            let extended = client.allocation_extend(&id, &extend, idempotency_key.as_deref()).await?;
            show(session, &extended)?;
            Ok(Exit::Done)
        }
        AllocCommand::Release { allocation, reason, confirm, no_wait } => {
            let id = tenants::allocation(session, &allocation).await?;
            if !confirm.is_given() {
                let now = client.allocation(&id).await?;
                let question = format!("Release {} ({}, {})? Everything on its disks is lost.", now.name, now.sku, now.state);
                confirm.ask_for_name(&question, &now.name)?;
            }
            let asked = client.allocation_release(&id, &Reason { reason }).await?;
            let is_done = |now: &Allocation| now.is_terminal() || now.state == AllocationState::ReleaseBlocked;
            finish(session, asked, no_wait, is_done, Allocation::is_terminal).await
        }
        AllocCommand::Retry { allocation, queue, no_wait } => {
            let id = tenants::allocation(session, &allocation).await?;
            let retry = AllocationRetry { wait_seconds: queue.map(|queue| queue.as_secs()) };
            let asked = client.allocation_retry(&id, &retry).await?;
            // A retried release still reads as blocked until its host has been asked again, so only a new version of it counts as
            // an answer.
            let (blocked, seen) = (asked.state == AllocationState::ReleaseBlocked, asked.etag.clone());
            let is_done = move |now: &Allocation| {
                now.is_terminal()
                    || if blocked { now.state == AllocationState::ReleaseBlocked && now.etag != seen } else { now.settled() }
            };
            let is_good = move |now: &Allocation| if blocked { now.is_terminal() } else { now.state == AllocationState::Active };
            finish(session, asked, no_wait, is_done, is_good).await
        }
        AllocCommand::Events { allocation, follow, since } => {
            alloc_events::run(session, &tenants::allocation(session, &allocation).await?, follow, since).await
        }
        AllocCommand::Console { allocation, follow, tail } => {
            let id = tenants::allocation(session, &allocation).await?;
            let follow_seconds = Some(if follow { MAX_FOLLOW_SECONDS } else { 0 });
            let task = client.allocation_console(&id, &SliceConsole { tail_bytes: Some(tail), follow_seconds }, None).await?;
            slice::print_console(session, &task.id.to_string()).await
        }
        AllocCommand::SshConfig { allocation, write } => {
            alloc_ssh::run(session, &client.allocation(&tenants::allocation(session, &allocation).await?).await?, write)
        }
        AllocCommand::Rename { allocation, name } => {
            let change = AllocationChange { name: Some(name), tags: None };
            changed(session, &tenants::allocation(session, &allocation).await?, &change, None).await
        }
        AllocCommand::Tag { allocation, tags, remove } => {
            let id = tenants::allocation(session, &allocation).await?;
            let now = client.allocation(&id).await?;
            let mut wanted = now.tags;
            wanted.extend(tags);
            for key in remove {
                if wanted.remove(&key).is_none() {
                    return Err(CliError::new(Exit::NotFound, "tag_unknown", format!("it has no tag `{key}`")));
                }
            }
            // Conditional on the version that was read, so that a tag that somebody else sets meanwhile is not lost.
            changed(session, &id, &AllocationChange { name: None, tags: Some(wanted) }, Some(&now.etag)).await
        }
    }
}

async fn changed(
    session: &CommandContext,
    id: &str,
    change: &AllocationChange,
    if_match: Option<&str>,
) -> Result<Exit, CliError> {
    let if_match = if_match.filter(|etag| !etag.is_empty());
    show(session, &session.client()?.allocation_change(id, change, if_match).await?)?;
    Ok(Exit::Done)
}

fn is_held(allocation: &Allocation) -> bool {
    allocation.state.known().is_some_and(AllocationState::is_held)
}

/// Waits until the host has carried out the power action.
async fn powered(session: &CommandContext, asked: Allocation, no_wait: bool) -> Result<Exit, CliError> {
    let is_done =
        |now: &Allocation| (now.pending_power_action.is_none() && now.step != AllocationStep::AwaitPower) || !is_held(now);
    // A power action that succeeds leaves no code behind; one that fails leaves its error code.
    let was_asked = asked.pending_power_action.is_some();
    finish(session, asked, no_wait, is_done, |now| is_held(now) && !(was_asked && now.code.is_some())).await
}

/// Waits until `is_done` holds, unless `no_wait` is set, and shows the result. The exit code depends on `is_good`.
pub(super) async fn finish(
    session: &CommandContext,
    asked: Allocation,
    no_wait: bool,
    is_done: impl Fn(&Allocation) -> bool,
    is_good: impl Fn(&Allocation) -> bool,
) -> Result<Exit, CliError> {
    let id = asked.id.to_string();
    if no_wait {
        show(session, &asked)?;
        session.output.hint(&format!("`gpuaas alloc show {}` shows its progress", asked.name));
        return Ok(Exit::Done);
    }
    let now = match follow::allocation(session.client()?, &id, &is_done).await? {
        WaitedFor::Done(now) => *now,
        WaitedFor::GaveUp => {
            let now = session.client()?.allocation(&id).await?;
            show(session, &now)?;
            session.output.hint(&format!(
                "it continues; `gpuaas alloc show {0}` shows its progress, `gpuaas alloc release {0}` ends it",
                now.name
            ));
            return Ok(Exit::Timeout);
        }
    };
    show(session, &now)?;
    advise(session, &now);
    Ok(if is_good(&now) { Exit::Done } else { Exit::Failed })
}
