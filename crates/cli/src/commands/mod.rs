//! A file per resource: its subcommands, and how its documents look to a person.

pub(crate) mod api_token;
pub(crate) mod audit;
pub(crate) mod cluster;
pub(crate) mod enrolment;
pub(crate) mod join_token;
pub(crate) mod key;
pub(crate) mod node;
pub(crate) mod slice;
mod slice_create;
pub(crate) mod slot;
pub(crate) mod task;
mod task_run;
mod task_verify;
pub(crate) mod topology;

use gpuaas_contract::time::Timestamp;

use crate::args::{Cli, Command};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::text;
use crate::session::Session;

/// Runs one command.
pub(crate) async fn run(session: &Session, command: Command) -> Result<Exit, Failure> {
    match command {
        Command::Dev(args) => crate::dev::run(session, args).await,
        Command::Server(args) => crate::server::run(args).await,
        Command::Node(command) => node::run(session, command).await,
        Command::Slot(command) => slot::run(session, command).await,
        Command::Slice(command) => slice::run(session, command).await,
        Command::Task(command) => task::run(session, command).await,
        Command::Audit(command) => audit::run(session, command).await,
        Command::Key(command) => key::run(session, command).await,
        Command::Token(command) => api_token::run(session, command).await,
        Command::Cluster(command) => cluster::run(session, command).await,
        Command::Completions { shell } => completions(session, shell),
    }
}

fn completions(session: &Session, shell: clap_complete::Shell) -> Result<Exit, Failure> {
    use clap::CommandFactory as _;
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "gpuaas", &mut script);
    session.output.raw(&script)?;
    Ok(Exit::Done)
}

/// A moment for a list of fields.
fn moment(at: Timestamp) -> String {
    text::moment(at, Timestamp::now())
}

/// An age for a table; empty if it never happened.
fn age(at: Option<Timestamp>) -> String {
    at.map_or(String::new(), |at| text::age(at, Timestamp::now()))
}
