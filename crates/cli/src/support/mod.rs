//! `gpuaas support-bundle`: collects what support needs to see into one file, without secrets.

mod redact;

use std::path::{Path, PathBuf};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use futures::StreamExt as _;
use gpuaas_api::client::HeardEvent;
use gpuaas_api::dto::EventsQuery;
use gpuaas_api::{Client, routes};
use gpuaas_contract::time::Timestamp;
use serde_json::{Value, json};

use crate::commands::confirm;
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::files::NewFile;
use crate::output::{Details, Table, View, text};
use crate::tenants;

/// Number of events to keep; the newest ones.
const MAX_EVENTS: usize = 500;
/// Time limit for reading events.
const EVENTS_FOR: Duration = Duration::from_secs(10);
/// The end of the event stream is assumed after this much silence.
const SILENCE: Duration = Duration::from_secs(1);
/// Number of bytes to keep from the end of a log.
const MAX_LOG: u64 = 4 * 1024 * 1024;
/// Largest part of the bundle, in bytes.
const MAX_PART: usize = 16 * 1024 * 1024;

/// What to request from the server, if the caller may read it: name of the file, path and query, description.
const PARTS: &[(&str, &str, &str)] = &[
    ("whoami.json", routes::WHOAMI, "your roles"),
    ("cluster.json", routes::CLUSTER, "the cluster, its version and its CA"),
    ("nodes.json", "/api/v1/nodes?all=true&limit=1000", "nodes, their hardware and last metrics"),
    ("slots.json", "/api/v1/slots?limit=1000", "slots and their states"),
    ("machines.json", "/api/v1/machines?limit=1000", "whole machines on offer"),
    ("enrollments.json", "/api/v1/enrollments?limit=200", "hosts that asked to be enrolled"),
    ("tasks.json", "/api/v1/tasks?limit=1000", "the newest tasks that did not succeed"),
    ("allocations.json", "/api/v1/allocations?newest_first=true&limit=500", "the newest allocations"),
    ("capacity.json", routes::CAPACITY, "capacity per model and node"),
    ("budget.json", routes::BUDGET, "the budget of destructive commands"),
    ("signing-keys.json", routes::SIGNING_KEYS, "ids and states of the keys that sign tasks"),
    ("audit.json", "/api/v1/audit?newest=true&limit=500", "the newest audit rows, without their details"),
];

/// Options of `gpuaas support-bundle`.
#[derive(Debug, clap::Args)]
pub(crate) struct BundleArgs {
    /// The file to write [default: gpuaas-support-TIME.tar.gz in this folder].
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Add the end of this log of a server on this machine, redacted.
    #[arg(long, value_name = "FILE")]
    server_log: Option<PathBuf>,
    /// Replace the file if it exists.
    #[arg(long)]
    overwrite: bool,
}

struct Part {
    name: String,
    contents: String,
    bytes: Vec<u8>,
}

/// What was written, for `-o json`.
#[derive(serde::Serialize)]
struct Written {
    file: PathBuf,
    bytes: u64,
    parts: Vec<WrittenPart>,
}

#[derive(serde::Serialize)]
struct WrittenPart {
    name: String,
    contents: String,
    bytes: usize,
}

/// Collects what is available and writes the bundle.
pub(crate) async fn run(session: &CommandContext, args: BundleArgs) -> Result<Exit, CliError> {
    let now = Timestamp::now();
    let path = args.file.clone().unwrap_or_else(|| PathBuf::from(default_name(now)));
    let overwrite = may_overwrite(&path, args.overwrite)?;
    let mut parts = vec![versions(now), configuration(session)];
    match session.client() {
        Ok(client) => parts.extend(of_server(session, client).await),
        Err(error) => parts.push(missing("server.json", "the server", &error.message)),
    }
    if let Some(log) = &args.server_log {
        parts.push(server_log(log)?);
    }
    parts.insert(0, table_of_contents(&parts));
    let archive = archive(&parts, now).map_err(|error| CliError::internal(format!("cannot pack the bundle: {error}")))?;
    let mut file = NewFile::create(&path)?;
    file.write(&archive)?;
    if overwrite { file.finish() } else { file.finish_new() }?;
    let parts = parts.into_iter().map(|part| WrittenPart { bytes: part.bytes.len(), name: part.name, contents: part.contents });
    let written = Written { file: path, bytes: archive.len() as u64, parts: parts.collect() };
    session.output.print(&written, view)?;
    session
        .output
        .hint("read it before you send it: tokens, keys and passwords are left out, names and addresses of hosts are not");
    Ok(Exit::Done)
}

fn view(written: &Written) -> View {
    let details = Details::default().field("file", written.file.display()).field("size", text::bytes(written.bytes));
    let mut table = Table::new(["PART", "SIZE", "CONTENTS"]);
    for part in &written.parts {
        table.row([part.name.clone(), text::bytes(part.bytes as u64), part.contents.clone()]);
    }
    View::DetailsAndTable(details, table)
}

/// Returns a file name such as `gpuaas-support-20270301T080000Z.tar.gz`.
fn default_name(now: Timestamp) -> String {
    let time = now.rfc3339();
    let seconds: String = time.chars().take("2027-03-01T08:00:00".len()).filter(|c| c.is_ascii_alphanumeric()).collect();
    format!("gpuaas-support-{seconds}Z.tar.gz")
}

/// Returns whether to replace an existing file. A file is never replaced without `--overwrite` or a confirmation.
fn may_overwrite(path: &Path, is_told: bool) -> Result<bool, CliError> {
    if is_told || !path.exists() {
        return Ok(is_told);
    }
    if confirm::somebody_is_there() {
        confirm::ask(&format!("{} exists. Replace it?", path.display()))?;
        return Ok(true);
    }
    let error = CliError::new(Exit::Refused, "file_exists", format!("{} exists; nothing was written", path.display()));
    Err(error.hint("name another file with --file, or give --overwrite"))
}

fn part(name: &str, contents: &str, document: &Value) -> Part {
    let mut bytes = serde_json::to_vec_pretty(document).unwrap_or_default();
    bytes.push(b'\n');
    Part { name: name.to_owned(), contents: contents.to_owned(), bytes }
}

fn missing(name: &str, contents: &str, why: &str) -> Part {
    part(name, &format!("{contents}: not included"), &redact::document(json!({ "message": format!("not included: {why}") })))
}

fn versions(now: Timestamp) -> Part {
    let system = rustix::system::uname();
    let document = json!({
        "client": env!("CARGO_PKG_VERSION"),
        "made_at": now.rfc3339(),
        "system": { "name": system.sysname().to_string_lossy(), "kernel": system.release().to_string_lossy(), "machine": system.machine().to_string_lossy() },
    });
    part("version.json", "this program and this machine's system", &document)
}

/// The settings in effect, without values that may be secrets. Of environment variables, only the names are included.
fn configuration(session: &CommandContext) -> Part {
    let variables: Vec<String> = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect();
    let mut variables: Vec<&String> = variables.iter().filter(|name| name.starts_with("GPUAAS_")).collect();
    variables.sort();
    let document = match session.resolved() {
        Ok(resolved) => json!({
            "file": session.config_file().map(|path| path.display().to_string()),
            "profile": resolved.profile,
            "url": origin(&resolved.options.url),
            "project": resolved.project,
            "has_token": resolved.options.token.is_some() || resolved.kept.is_some(),
            "has_ca_file": resolved.options.ca_file.is_some(),
            "uses_socket": resolved.options.unix_socket.is_some(),
            "variables": variables,
        }),
        // The message is left out, because it may quote the file.
        Err(error) => json!({ "unusable": error.code, "variables": variables }),
    };
    part("config.json", "what flags, environment and config file say, without values that may be secret", &document)
}

/// Reduces a URL to scheme, host and port.
fn origin(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = host.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}")
}

async fn of_server(session: &CommandContext, client: &Client) -> Vec<Part> {
    let mut parts = Vec::new();
    for (name, path, contents) in PARTS {
        parts.push(match client.raw("GET", path, None).await {
            Ok(bytes) => match serde_json::from_slice::<Value>(&bytes) {
                Ok(document) => {
                    let document = if *name == "tasks.json" { unsuccessful(document) } else { document };
                    part(name, contents, &redact::document(document))
                }
                Err(_) => missing(name, contents, "the answer is not JSON"),
            },
            Err(error) => missing(name, contents, error.code()),
        });
    }
    for (name, path) in [("healthz.txt", routes::HEALTHZ), ("readyz.txt", routes::READYZ)] {
        let (text, contents) = match client.raw("GET", path, None).await {
            Ok(bytes) if bytes.trim_ascii() == b"ok" => ("ok".to_owned(), "the server's health"),
            Ok(_) => ("unexpected answer".to_owned(), "the server's health"),
            Err(error) => (error.code().to_owned(), "the server's health"),
        };
        parts.push(Part { name: name.to_owned(), contents: contents.to_owned(), bytes: (text + "\n").into_bytes() });
    }
    parts.push(match client.raw("GET", routes::METRICS, None).await {
        Ok(page) => {
            let bytes = redact::metrics(&String::from_utf8_lossy(&page)).into_bytes();
            Part { name: "metrics.txt".to_owned(), contents: "the server's metrics".to_owned(), bytes }
        }
        Err(error) => missing("metrics.txt", "the server's metrics", error.code()),
    });
    parts.push(events(session, client).await);
    for part in &mut parts {
        if part.bytes.len() > MAX_PART {
            part.bytes.truncate(MAX_PART);
            part.contents.push_str(" (cut off: it was too large)");
        }
    }
    parts
}

/// Removes the tasks that succeeded from a page.
fn unsuccessful(mut page: Value) -> Value {
    if let Some(tasks) = page.get_mut("items").and_then(Value::as_array_mut) {
        tasks.retain(|task| task["state"] != "succeeded");
    }
    page
}

/// The newest events of the platform, or those of the project if the caller may not read the platform's.
async fn events(session: &CommandContext, client: &Client) -> Part {
    const CONTENTS: &str = "the newest events, without their details";
    let query = EventsQuery { after: Some(0), kinds: None };
    let mut newest = heard(client.events(&query).boxed()).await;
    if newest.is_err()
        && let Ok(project) = tenants::project(session).await
    {
        newest = heard(client.project_events(&project.id.to_string(), &query).boxed()).await;
    }
    match newest {
        Ok(newest) => part("events.json", CONTENTS, &redact::document(Value::Array(newest.into()))),
        Err(why) => missing("events.json", CONTENTS, &why),
    }
}

async fn heard(
    mut stream: futures::stream::BoxStream<'static, Result<HeardEvent, gpuaas_api::ClientError>>,
) -> Result<std::collections::VecDeque<Value>, String> {
    let mut newest = std::collections::VecDeque::new();
    let until = tokio::time::Instant::now() + EVENTS_FOR;
    while tokio::time::Instant::now() < until {
        match tokio::time::timeout(SILENCE, stream.next()).await {
            Ok(Some(Ok(HeardEvent::Event(event)))) => {
                newest.extend(serde_json::to_value(&event).ok());
                if newest.len() > MAX_EVENTS {
                    newest.pop_front();
                }
            }
            Ok(Some(Err(error))) => return Err(error.code().to_owned()),
            Ok(Some(Ok(HeardEvent::Reconnecting)) | None) | Err(_) => break,
        }
    }
    Ok(newest)
}

fn server_log(path: &Path) -> Result<Part, CliError> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    let bad = |error: std::io::Error| CliError::usage("file_unreadable", format!("cannot read {}: {error}", path.display()));
    let mut file = std::fs::File::open(path).map_err(bad)?;
    let size = file.metadata().map_err(bad)?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(MAX_LOG))).map_err(bad)?;
    let mut bytes = Vec::new();
    file.take(MAX_LOG).read_to_end(&mut bytes).map_err(bad)?;
    let log = String::from_utf8_lossy(&bytes);
    // The first line may be incomplete.
    let skipped = usize::from(size > MAX_LOG);
    let lines: String = log.lines().skip(skipped).map(|line| redact::log_line(line) + "\n").collect();
    Ok(Part { name: "server.log".to_owned(), contents: "the end of the server's log".to_owned(), bytes: lines.into_bytes() })
}

fn table_of_contents(parts: &[Part]) -> Part {
    let mut page = "A support bundle of gpuaas.\n\nOnly fields on a list are in it: no tokens, keys, passwords, parameters or outputs of tasks,\n\
                    and no texts that people write. Names and addresses of hosts are in it.\n\n"
        .to_owned();
    for part in parts {
        page.push_str(&format!("{:20} {}\n", part.name, part.contents));
    }
    Part { name: "README.txt".to_owned(), contents: "what is in the bundle".to_owned(), bytes: page.into_bytes() }
}

fn archive(parts: &[Part], now: Timestamp) -> std::io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    for part in parts {
        let mut header = tar::Header::new_gnu();
        header.set_size(part.bytes.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(u64::try_from(now.0 / 1_000_000).unwrap_or(0));
        header.set_cksum();
        archive.append_data(&mut header, format!("gpuaas-support/{}", part.name), part.bytes.as_slice())?;
    }
    archive.into_inner()?.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_server_is_kept_without_what_may_be_a_password() {
        assert_eq!(origin("https://ada:hunter2@gpuaas.example.com:8080/path?key=x"), "https://gpuaas.example.com:8080");
        assert_eq!(origin("http://127.0.0.1:8080"), "http://127.0.0.1:8080");
    }

    #[test]
    fn a_bundle_is_named_by_its_time() {
        assert_eq!(default_name(Timestamp(1_000_000_000_000_000)), "gpuaas-support-20010909T014640Z.tar.gz");
    }

    #[test]
    fn a_file_that_exists_is_replaced_only_if_somebody_says_so() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("bundle.tar.gz");
        assert!(matches!(may_overwrite(&path, false), Ok(false)));
        std::fs::write(&path, "mine").expect("written");
        assert!(matches!(may_overwrite(&path, true), Ok(true)));
    }
}
