//! `gpuaas audit`.

use std::io::BufRead as _;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use gpuaas_api::dto::{AuditQuery, AuditRow, MAX_PAGE};
use gpuaas_domain::audit_chain::{self, Head};

use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::files::NewFile;
use crate::list::{Changes, List, ListArgs, when_empty};
use crate::output::{Details, Table, View};
use crate::pages::Collected;

/// Number of rows to list without `--limit`.
const ROWS_SHOWN: usize = 50;
/// Longest line of an exported chain, in bytes.
const MAX_LINE_BYTES: u64 = 1024 * 1024;

/// The audit log, a chain of hashes over every change.
#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// List the newest rows, or those after a position.
    #[command(alias = "list")]
    Ls {
        /// Only rows about this id.
        #[arg(long, value_name = "ID")]
        target: Option<String>,
        /// Rows after this position instead of the newest.
        #[arg(long, value_name = "SEQ")]
        after: Option<u64>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Export the whole chain, one JSON row per line.
    Export {
        /// File to write [default: stdout].
        #[arg(short, long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Verify the chain of hashes, of the server or of an exported file. Exits with 1 if it is broken.
    ///
    /// If rows are cut off the end, the rest is still a valid chain. To detect that, keep the head that this command prints and
    /// pass it as --head the next time.
    Verify {
        /// Verify an exported file (`-` for stdin) instead of the server; no network is used.
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// Head printed by an earlier run; the chain must still contain it.
        #[arg(long, value_name = "HASH")]
        head: Option<String>,
    },
}

/// The result of verifying the chain.
#[derive(Debug, serde::Serialize)]
struct Verified {
    rows: u64,
    head: String,
    intact: bool,
    detail: String,
}

pub(super) async fn run(session: &CommandContext, command: AuditCommand) -> Result<Exit, CliError> {
    match command {
        AuditCommand::Ls { target, after, list: args } => {
            let client = session.client()?;
            let list = List {
                changes: Changes::Unannounced,
                time: |row: &AuditRow| Some(row.at),
                limit: ROWS_SHOWN,
                view: table,
                advice: when_empty("no audit row matches"),
            };
            let newest = after.is_none().then_some(true);
            let fetch = async |limit: usize| {
                let limit = u32::try_from(limit).unwrap_or(MAX_PAGE).min(MAX_PAGE);
                let page = client.audit(&AuditQuery { after, limit: Some(limit), target: target.clone(), newest }).await?;
                // The server returns one page of the newest rows and has no cursor to older ones. `audit export` returns all of them.
                let more = page.items.len() == limit as usize && page.items.iter().all(|row| args.includes(row.at));
                let mut items = page.items;
                items.retain(|row| args.includes(row.at));
                // The newest rows are at the end of the page.
                let kept = session.limit_or(ROWS_SHOWN);
                if newest.is_some() && items.len() > kept {
                    items.drain(..items.len() - kept);
                }
                Ok(Collected { items, more })
            };
            list.run(session, args, fetch).await
        }
        AuditCommand::Export { file } => export(session, file).await,
        AuditCommand::Verify { file, head } => {
            let mut chain = Chain::new(head);
            match file {
                Some(path) => read_lines(&path, |line| chain.push(line))?,
                None => {
                    let mut export = session.client()?.audit_export().await?;
                    while let Some(line) = export.next_line().await? {
                        if chain.push(&line).is_break() {
                            break;
                        }
                    }
                }
            }
            let verified = chain.finish();
            session.output.print(&verified, |verified| {
                View::Details(
                    Details::default()
                        .field("result", if verified.intact { "intact" } else { "broken" })
                        .field("detail", &verified.detail)
                        .field("rows", verified.rows)
                        .field("head", &verified.head),
                )
            })?;
            Ok(if verified.intact { Exit::Done } else { Exit::Failed })
        }
    }
}

fn table(rows: &[AuditRow]) -> View {
    if rows.is_empty() {
        return View::Nothing;
    }
    let mut table = Table::new(["SEQ", "AT", "ACTOR", "ACTION", "TARGET", "CORRELATION"]);
    for row in rows {
        table.row([
            row.seq.to_string(),
            row.at.to_string(),
            row.actor.clone(),
            row.action.clone(),
            row.target.clone(),
            row.correlation_id.clone(),
        ]);
    }
    View::Table(table)
}

async fn export(session: &CommandContext, file: Option<PathBuf>) -> Result<Exit, CliError> {
    #[derive(serde::Serialize)]
    struct Exported {
        file: PathBuf,
        rows: u64,
    }

    let mut export = session.client()?.audit_export().await?;
    let Some(path) = file else {
        while let Some(line) = export.next_line().await? {
            session.output.json(line)?;
        }
        return Ok(Exit::Done);
    };
    let mut new = NewFile::create(&path)?;
    let mut rows = 0;
    while let Some(line) = export.next_line().await? {
        new.write(&line)?;
        new.write(b"\n")?;
        rows += 1;
    }
    new.finish()?;
    let hint = format!("check it with `gpuaas audit verify --file {}`", path.display());
    session.output.print(&Exported { file: path, rows }, |exported| {
        View::Details(Details::default().field("file", exported.file.display()).field("rows", exported.rows))
    })?;
    session.output.hint(&hint);
    Ok(Exit::Done)
}

/// Passes each line of the file to `take` until it breaks off. Only one line is in memory at a time.
fn read_lines(path: &Path, mut take: impl FnMut(&[u8]) -> std::ops::ControlFlow<()>) -> Result<(), CliError> {
    let bad = |error: std::io::Error| CliError::usage("file_unreadable", format!("cannot read {}: {error}", path.display()));
    let mut reader: Box<dyn std::io::BufRead> = if path == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(std::io::BufReader::new(std::fs::File::open(path).map_err(bad)?))
    };
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = std::io::Read::take(&mut reader, MAX_LINE_BYTES).read_until(b'\n', &mut line).map_err(bad)?;
        if read == 0 {
            return Ok(());
        }
        if read as u64 == MAX_LINE_BYTES {
            return Err(CliError::usage(
                "file_invalid",
                format!("{} has a line of a mebibyte; it is no exported chain", path.display()),
            ));
        }
        if take(line.trim_ascii()).is_break() {
            return Ok(());
        }
    }
}

/// Verifies a chain row by row.
struct Chain {
    head: Head,
    broken: Option<String>,
    wanted: Option<String>,
    found: bool,
}

impl Chain {
    fn new(wanted: Option<String>) -> Self {
        Self { head: Head::genesis(), broken: None, wanted, found: false }
    }

    /// Verifies one line. Breaks off at the first row that does not continue the chain.
    fn push(&mut self, line: &[u8]) -> std::ops::ControlFlow<()> {
        if line.is_empty() {
            return std::ops::ControlFlow::Continue(());
        }
        let checked = serde_json::from_slice::<AuditRow>(line)
            .map_err(|error| format!("the line after row {} is not an audit row: {error}", self.head.seq))
            .and_then(|row| audit_chain::verify(&self.head, [&as_chained(row)]).map_err(|broken| broken.to_string()));
        match checked {
            Ok(head) => {
                self.head = head;
                self.found |= self.wanted.as_ref() == Some(&self.head.hash);
                std::ops::ControlFlow::Continue(())
            }
            Err(broken) => {
                self.broken = Some(broken);
                std::ops::ControlFlow::Break(())
            }
        }
    }

    fn finish(self) -> Verified {
        let Head { seq: rows, hash: head } = self.head;
        let problem = match (self.broken, self.wanted) {
            (Some(broken), _) => Some(broken),
            (None, Some(wanted)) if !self.found => Some(format!("{wanted} is not in the chain: rows were cut off or rewritten")),
            (None, Some(_) | None) => None,
        };
        let intact = problem.is_none();
        let detail = problem.unwrap_or_else(|| format!("{rows} rows follow each other without a gap"));
        Verified { rows, head, intact, detail }
    }
}

fn as_chained(row: AuditRow) -> audit_chain::AuditRow {
    let AuditRow { seq, at, actor, action, target, correlation_id, body, prev_hash, hash } = row;
    audit_chain::AuditRow { seq, at, actor, action, target, correlation_id, body, prev_hash, hash }
}
