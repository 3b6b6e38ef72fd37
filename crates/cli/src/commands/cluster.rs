//! `gpuaas cluster`.

use clap::Subcommand;
use gpuaas_api::dto::{CaInfo, CaState};

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

/// The CA in a line: which one, how it does, and until when the control plane may ask it.
fn ca(info: &CaInfo) -> String {
    let mut text = info.kind.clone();
    match info.state {
        CaState::Available => {}
        CaState::Unavailable => text.push_str(", unavailable"),
        CaState::Unknown => text.push_str(", not asked yet"),
    }
    if let Some(detail) = &info.detail {
        text.push_str(&format!(" ({detail})"));
    }
    match (info.kind.as_str(), info.credential_expires_at) {
        (_, Some(until)) => text.push_str(&format!(", enrollment certificate until {}", moment(until))),
        ("step-ca", None) => text.push_str(", enrollment certificate not usable"),
        (_, None) => {}
    }
    text
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
                        .field("CA", ca(&info.ca))
                        .field("CA sha256", &info.ca_sha256)
                        .field("root key", info.root_key.id())
                        .field("server time", moment(info.server_time)),
                )
            })?;
            Ok(Exit::Done)
        }
    }
}
