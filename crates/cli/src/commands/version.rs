//! `gpuaas version`: the version of this program, and of the server if one can be reached.

use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::{Details, View};

#[derive(serde::Serialize)]
struct Versions {
    client: &'static str,
    /// `None` if the server cannot be reached.
    server: Option<String>,
}

pub(super) async fn run(session: &CommandContext) -> Result<Exit, CliError> {
    let server = match session.client() {
        Ok(client) => client.cluster().await.map(|info| info.version).map_err(|error| error.to_string()),
        Err(error) => Err(error.message),
    };
    if let Err(error) = &server {
        session.output.hint(&format!("the version of the server is unknown: {error}"));
    }
    let versions = Versions { client: env!("CARGO_PKG_VERSION"), server: server.ok() };
    session.output.print(&versions, |versions| {
        View::Details(Details::default().field("client", versions.client).maybe("server", versions.server.as_ref()))
    })?;
    Ok(Exit::Done)
}
