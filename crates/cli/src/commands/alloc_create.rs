//! `gpuaas alloc create`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use gpuaas_api::dto::{Allocation, AllocationCreate, AllocationPlan};
use gpuaas_contract::slice::{SshPublicKey, UserName, VmName};
use gpuaas_contract::state::AllocationState;

use super::alloc;
use super::slice_create::{MAX_KEY_FILE, keys};
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::{Details, Table, View};
use crate::pages::MAX_ITEMS;
use crate::{duration, files, price, tenants};

/// What to lease.
#[derive(Debug, clap::Args)]
pub(crate) struct CreateArgs {
    /// Name of the allocation and host name of its guest: lower-case letters, digits and dashes.
    name: VmName,
    /// Product; `gpuaas catalog` lists them.
    #[arg(long)]
    sku: String,
    /// Image of the guest; `gpuaas image ls` lists them. Not for whole machines.
    #[arg(long)]
    image: Option<String>,
    /// SSH key that can sign in: the name of a stored key, a file (a value with `/` or `.` in it) or `-` for stdin; repeatable
    /// [default: ~/.ssh/id_ed25519.pub or id_rsa.pub, else the stored keys of the project].
    #[arg(long = "ssh-key", value_name = "KEY")]
    ssh_keys: Vec<String>,
    /// User name to create [default: that of the image].
    #[arg(long)]
    user: Option<UserName>,
    /// Tag; repeatable.
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = tag)]
    tags: Vec<(String, String)>,
    /// Duration of the lease, such as `8h` [default: until it is released].
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    lease: Option<Duration>,
    /// How long to wait for free capacity, such as `10m` [default: fail at once].
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    queue: Option<Duration>,
    /// Prefer the host with the most free capacity instead of the tightest fit.
    #[arg(long)]
    spread: bool,
    /// On a whole machine: allow the user to become root, if the host's policy permits it.
    #[arg(long)]
    sudo: bool,
    /// Show the expected result without creating anything: whether it fits, its price, and for operators its node and slots.
    #[arg(long)]
    dry_run: bool,
    /// Return immediately instead of waiting until the allocation is active.
    #[arg(long, conflicts_with = "watch")]
    no_wait: bool,
    /// Continue to print progress after the allocation is active, until it ends or Ctrl-C.
    #[arg(long)]
    watch: bool,
    /// Idempotency key: repeating the command with the same key finds the same allocation instead of creating another one.
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

/// Parses `key=value`.
pub(super) fn tag(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    if key.is_empty() {
        return Err("expected KEY=VALUE".to_owned());
    }
    Ok((key.to_owned(), value.to_owned()))
}

pub(super) async fn run(session: &CommandContext, args: CreateArgs) -> Result<Exit, CliError> {
    let chosen = who_may_sign_in(session, &args.ssh_keys)?;
    let client = session.client()?;
    let project = tenants::project(session).await?.id.to_string();
    let (ssh_keys, ssh_public_keys) = match chosen {
        Some(chosen) => chosen,
        None => (stored_keys(session, &project).await?, Vec::new()),
    };
    let create = AllocationCreate {
        name: args.name,
        sku: args.sku,
        image: args.image,
        ssh_keys,
        ssh_public_keys,
        username: args.user,
        tags: args.tags.into_iter().collect(),
        lease_seconds: args.lease.map(|lease| lease.as_secs()),
        wait_seconds: args.queue.map(|queue| queue.as_secs()),
        spread: args.spread,
        sudo: args.sudo,
        graceful_timeout_seconds: None,
        dry_run: args.dry_run,
    };
    if args.dry_run {
        let plan = client.allocation_plan(&project, &create).await?;
        session.output.print(&plan, plan_view)?;
        return Ok(if plan.fits { Exit::Done } else { Exit::Refused });
    }
    let asked = client.allocation_create(&project, &create, args.idempotency_key.as_deref()).await?;
    let id = asked.id.to_string();
    let is_there = |now: &Allocation| now.state == AllocationState::Active && !now.release_requested;
    let is_done = |now: &Allocation| is_there(now) || now.is_terminal() || now.state == AllocationState::ReleaseBlocked;
    let exit = alloc::finish(session, asked, args.no_wait, is_done, is_there).await?;
    if !args.watch || exit != Exit::Done {
        return Ok(exit);
    }
    let now = client.allocation(&id).await?;
    alloc::finish(session, now, false, Allocation::is_terminal, |now| now.state == AllocationState::Released).await
}

/// Names of stored keys, and public keys read from files.
type ChosenKeys = (Vec<String>, Vec<SshPublicKey>);

/// Returns the keys from the arguments, or the caller's own key. `None` if no key is named and the caller has none.
fn who_may_sign_in(session: &CommandContext, wanted: &[String]) -> Result<Option<ChosenKeys>, CliError> {
    if wanted.is_empty() {
        let Some((path, found)) = default_key()? else { return Ok(None) };
        session.output.hint(&format!("using {} to sign in; --ssh-key names another key", path.display()));
        return Ok(Some((Vec::new(), found)));
    }
    let (mut names, mut found) = (Vec::new(), Vec::new());
    for value in wanted {
        match file_of(value) {
            Some(path) => found.extend(keys(&path, &files::read(&path, MAX_KEY_FILE)?)?),
            None => names.push(value.clone()),
        }
    }
    Ok(Some((names, found)))
}

/// Returns the keys that are stored in the project, for callers who have no key of their own.
async fn stored_keys(session: &CommandContext, project: &str) -> Result<Vec<String>, CliError> {
    let stored = tenants::ssh_keys(session.client()?, project, MAX_ITEMS).await?.items;
    let names: Vec<String> = stored.into_iter().filter(|key| key.deleted_at.is_none()).map(|key| key.name).collect();
    if names.is_empty() {
        let error =
            CliError::usage("ssh_key_needed", "somebody must be able to sign in, and neither ~/.ssh nor the project has a key");
        return Err(error.hint("make one with `ssh-keygen -t ed25519`, or name one with --ssh-key: a stored key, a file or `-`"));
    }
    session.output.hint(&format!("the project's stored keys may sign in: {}", names.join(", ")));
    Ok(names)
}

/// Returns the path if the value means a file. Names of stored keys contain neither `/` nor `.`, so a value with one of them is a path.
fn file_of(value: &str) -> Option<PathBuf> {
    if value == "-" {
        return Some(PathBuf::from("-"));
    }
    // Shells do not always expand `~`, for example after `--ssh-key=`.
    if let (Some(rest), Some(home)) = (value.strip_prefix("~/"), home()) {
        return Some(home.join(rest));
    }
    (value.contains('/') || value.contains('.')).then(|| PathBuf::from(value))
}

pub(super) fn home() -> Option<PathBuf> {
    std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from)
}

/// Returns the caller's own public key, from where OpenSSH keeps it.
fn default_key() -> Result<Option<(PathBuf, Vec<SshPublicKey>)>, CliError> {
    let folder = home().map(|home| home.join(".ssh"));
    let found = ["id_ed25519.pub", "id_rsa.pub"].iter().filter_map(|name| Some(folder.as_deref()?.join(name)));
    let Some(path) = found.into_iter().find(|path: &PathBuf| path.is_file()) else { return Ok(None) };
    let bytes = files::read(Path::new(&path), MAX_KEY_FILE)?;
    let found = keys(&path, &bytes)?;
    Ok(Some((path, found)))
}

fn plan_view(plan: &AllocationPlan) -> View {
    let slots = plan.slots.as_ref().map(|slots| slots.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
    let near = plan.same_numa.map(|same| if same { "yes" } else { "no: its slots are near different memory" });
    let details = Details::default()
        .field("product", &plan.sku)
        .field("price", price::per_hour(plan.price_per_hour))
        .field("fits", if plan.fits { "yes" } else { "no" })
        .maybe("reason", plan.reason.as_deref())
        .maybe("code", plan.code.as_deref())
        .maybe("node", plan.node_name.as_deref())
        .maybe("slots", slots)
        .maybe("same memory", near)
        .maybe("note", plan.note.as_deref());
    let reasons = plan.reasons_by_node.as_deref().unwrap_or_default();
    if reasons.is_empty() {
        return View::Details(details);
    }
    let mut table = Table::new(["NODE", "NOT TAKEN BECAUSE"]);
    for node in reasons {
        table.row([node.node_name.clone(), node.reasons.join("; ")]);
    }
    View::DetailsAndTable(details, table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_a_file_only_if_no_stored_key_could_have_its_name() {
        for (value, is_file) in [("-", true), ("./laptop", true), ("id_rsa.pub", true), ("/k", true), ("laptop", false)] {
            assert_eq!(file_of(value).is_some(), is_file, "{value}");
        }
    }

    #[test]
    fn a_tag_has_a_key_and_may_have_an_empty_value() {
        assert_eq!(tag("team=ml=x"), Ok(("team".to_owned(), "ml=x".to_owned())));
        assert_eq!(tag("team="), Ok(("team".to_owned(), String::new())));
        assert!(tag("team").is_err() && tag("=x").is_err());
    }
}
