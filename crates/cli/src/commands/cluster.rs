//! `gpuaas cluster`.

use clap::Subcommand;

use super::moment;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Details, View};
use crate::session::Session;

/// The cluster itself.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Show the cluster's id, its root key, its CA and where agents connect to.
    Info,
}

pub(super) async fn run(session: &Session, command: ClusterCommand) -> Result<Exit, Failure> {
    match command {
        ClusterCommand::Info => {
            let info = session.client()?.cluster().await?;
            session.output.print(&info, |info| {
                View::Details(
                    Details::default()
                        .field("cluster", info.cluster_id)
                        .field("version", &info.version)
                        .field("store", &info.store)
                        .field("agents connect to", &info.link_address)
                        .field("CA sha256", &info.ca_sha256)
                        .field("root key", info.root_key.id())
                        .field("server time", moment(info.server_time)),
                )
            })?;
            Ok(Exit::Done)
        }
    }
}
