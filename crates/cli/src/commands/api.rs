//! `gpuaas api`: sends any request to the REST API, with the credentials of this command line.

use std::path::Path;

use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::files;

/// Largest request body read from a file, in bytes.
const MAX_BODY: u64 = 1024 * 1024;

/// A request.
#[derive(Debug, clap::Args)]
pub(crate) struct ApiArgs {
    /// Method: GET, POST, PUT, PATCH or DELETE.
    method: String,
    /// Path, such as `/api/v1/nodes?limit=5`.
    path: String,
    /// Body: JSON, `@FILE`, or `-` for stdin.
    #[arg(short, long, value_name = "JSON|@FILE|-")]
    data: Option<String>,
}

pub(super) async fn run(session: &CommandContext, args: ApiArgs) -> Result<Exit, CliError> {
    if !args.path.starts_with('/') || args.path.contains(['{', '}', '#']) {
        let error = CliError::usage("path_invalid", format!("`{}` is not a path of the REST interface", args.path));
        return Err(error.hint("write it like /api/v1/nodes?limit=5"));
    }
    let body = match args.data.as_deref() {
        None => None,
        Some("-") => Some(files::read(Path::new("-"), MAX_BODY)?),
        Some(data) => match data.strip_prefix('@') {
            Some(path) => Some(files::read(Path::new(path), MAX_BODY)?),
            None => Some(data.as_bytes().to_vec()),
        },
    };
    let answer = session.client()?.raw(&args.method, &args.path, body).await?;
    if !answer.is_empty() {
        session.output.json(answer)?;
    }
    Ok(Exit::Done)
}
