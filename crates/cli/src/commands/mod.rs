//! One file per resource, with its subcommands and how its documents are shown to a person.

pub(crate) mod alloc;
mod alloc_create;
mod alloc_events;
mod alloc_list;
mod alloc_ssh;
pub(crate) mod alloc_view;
pub(crate) mod api;
pub(crate) mod api_key;
pub(crate) mod api_token;
pub(crate) mod audit;
pub(crate) mod capacity;
pub(crate) mod catalog;
pub(crate) mod cluster;
pub(crate) mod config;
pub(crate) mod confirm;
pub(crate) mod enrollment;
pub(crate) mod events;
pub(crate) mod image;
pub(crate) mod join_token;
pub(crate) mod login;
pub(crate) mod machine;
pub(crate) mod maintenance;
pub(crate) mod member;
pub(crate) mod node;
mod node_drain;
pub(crate) mod org;
pub(crate) mod profile;
pub(crate) mod project;
pub(crate) mod quota;
pub(crate) mod service_account;
pub(crate) mod signing_key;
pub(crate) mod sku;
pub(crate) mod slice;
mod slice_create;
pub(crate) mod slot;
pub(crate) mod ssh_key;
pub(crate) mod task;
mod task_run;
mod task_verify;
pub(crate) mod topology;
pub(crate) mod user;
mod version;
pub(crate) mod webhook;
mod webhook_test;

use gpuaas_contract::time::Timestamp;

use crate::args::Command;
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::text;

pub(crate) async fn run(session: &CommandContext, command: Command) -> Result<Exit, CliError> {
    match command {
        Command::Dev(args) => crate::dev::run(session, args).await,
        Command::Server(args) => crate::server::run(*args).await,
        Command::Login(args) => login::run(session, args).await,
        Command::Logout => login::sign_out(session).await,
        Command::Whoami => login::whoami(session).await,
        Command::Password(args) => login::password(session, args).await,
        Command::Profile(command) => profile::run(session, &command),
        Command::Config(command) => config::run(session, &command),
        Command::User(command) => user::run(session, command).await,
        Command::Node(command) => node::run(session, command).await,
        Command::Slot(command) => slot::run(session, command).await,
        Command::Slice(command) => slice::run(session, command).await,
        Command::Task(command) => task::run(session, command).await,
        Command::Audit(command) => audit::run(session, command).await,
        Command::Catalog(args) => catalog::run(session, args).await,
        Command::Alloc(command) => alloc::run(session, command).await,
        Command::SshKey(command) => ssh_key::run(session, command).await,
        Command::Image(command) => image::run(session, command).await,
        Command::Events(args) => events::run(session, args).await,
        Command::Webhook(command) => webhook::run(session, command).await,
        Command::Org(command) => org::run(session, command).await,
        Command::Project(command) => project::run(session, command).await,
        Command::Member(command) => member::run(session, command).await,
        Command::ServiceAccount(command) => service_account::run(session, command).await,
        Command::Key(command) => api_key::run(session, command).await,
        Command::Quota(command) => quota::run(session, command).await,
        Command::Sku(command) => sku::run(session, command).await,
        Command::Capacity(args) => capacity::run(session, args).await,
        Command::Machine(command) => machine::run(session, command).await,
        Command::Maintenance(command) => maintenance::run(session, command).await,
        Command::SigningKey(command) => signing_key::run(session, command).await,
        Command::Token(command) => api_token::run(session, command).await,
        Command::Cluster(command) => cluster::run(session, command).await,
        Command::Api(args) => api::run(session, args).await,
        Command::SupportBundle(args) => crate::support::run(session, args).await,
        Command::Version => version::run(session).await,
        Command::Man { dir } => manual(session, dir.as_deref()),
        Command::Completions { shell } => completions(session, shell),
    }
}

fn manual(session: &CommandContext, dir: Option<&std::path::Path>) -> Result<Exit, CliError> {
    let program = crate::args::command();
    let failed = |error: std::io::Error| CliError::internal(format!("cannot write the manual: {error}"));
    match dir {
        Some(dir) => {
            std::fs::create_dir_all(dir).map_err(failed)?;
            clap_mangen::generate_to(program, dir).map_err(failed)?;
            session.output.hint(&format!("the pages are in {}", dir.display()));
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(program).render(&mut page).map_err(failed)?;
            session.output.raw(&page)?;
        }
    }
    Ok(Exit::Done)
}

fn completions(session: &CommandContext, shell: clap_complete::Shell) -> Result<Exit, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut crate::args::command(), "gpuaas", &mut script);
    session.output.raw(&script)?;
    Ok(Exit::Done)
}

/// Formats a time for a list of fields.
fn moment(at: Timestamp) -> String {
    text::moment(at, Timestamp::now())
}

/// Formats an age for a table; empty if there is no time.
fn age(at: Option<Timestamp>) -> String {
    at.map_or(String::new(), |at| text::age(at, Timestamp::now()))
}
