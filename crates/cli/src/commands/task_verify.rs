//! `gpuaas task verify`.

use std::path::PathBuf;

use gpuaas_api::dto::TaskEvidence;

use crate::context::CommandContext;
use crate::error::CliError;
use crate::evidence::{self, TrustRoot};
use crate::exit::Exit;
use crate::files::{self, NewFile};
use crate::output::{Table, View};
use crate::resolve;

/// Largest evidence file, in bytes: room for the largest receipt and some envelopes, in base64.
const MAX_EVIDENCE_BYTES: u64 = 16 * 1024 * 1024;

/// What to verify, and what to trust.
#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// Task; not needed with --evidence.
    #[arg(required_unless_present = "evidence")]
    task: Option<String>,
    /// Read the evidence from this file (`-` for stdin); no network is used.
    #[arg(long, value_name = "FILE")]
    evidence: Option<PathBuf>,
    /// Write the evidence to this file, to verify it elsewhere or later.
    #[arg(long, value_name = "FILE", conflicts_with = "evidence")]
    save: Option<PathBuf>,
    /// Root key that you trust, or its id, from `gpuaas cluster info` at a time when you trusted the server.
    #[arg(long, value_name = "KEY", value_parser = TrustRoot::parse)]
    trust_root: Option<TrustRoot>,
}

pub(super) async fn run(session: &CommandContext, args: VerifyArgs) -> Result<Exit, CliError> {
    let evidence = match &args.evidence {
        Some(path) => {
            let bytes = files::read(path, MAX_EVIDENCE_BYTES)?;
            let evidence: TaskEvidence = serde_json::from_slice(&bytes).map_err(|error| {
                CliError::usage("evidence_invalid", format!("{} is not the evidence of a task: {error}", path.display()))
                    .hint("`gpuaas task verify TASK --save FILE` writes such a file")
            })?;
            if let Some(task) = args.task.as_ref().filter(|task| !evidence.task.id.to_string().starts_with(task.as_str())) {
                let message = format!("the file is evidence for {}, not for {task}", evidence.task.id);
                return Err(CliError::usage("evidence_of_another_task", message));
            }
            evidence
        }
        None => {
            let client = session.client()?;
            let id = resolve::task(client, args.task.as_deref().unwrap_or_default()).await?;
            client.task_evidence(&id).await?
        }
    };
    if let Some(path) = &args.save {
        let mut file = NewFile::create(path)?;
        file.write(&serde_json::to_vec_pretty(&evidence).map_err(|error| CliError::internal(error.to_string()))?)?;
        file.finish()?;
        session.output.hint(&format!("evidence written to {}", path.display()));
    }
    let report = evidence::verify(&evidence, args.trust_root.as_ref());
    session.output.print(&report, |report| {
        let mut table = Table::new(["CHECK", "RESULT", "DETAIL"]);
        for check in &report.checks {
            table.row([check.check.to_owned(), check.result.as_str().to_owned(), check.detail.clone()]);
        }
        View::Table(table)
    })?;
    let verdict = if report.verified { "verified" } else { "NOT verified" };
    session.output.hint(&format!("{}: {verdict}", report.task_id));
    Ok(if report.verified { Exit::Done } else { Exit::Failed })
}
