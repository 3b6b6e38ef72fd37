//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::commands::{
    alloc, api, api_key, api_token, audit, capacity, cluster, config, events, image, login, machine, maintenance, member, node,
    org, profile, project, quota, service_account, signing_key, sku, slice, slot, ssh_key, task, user, webhook,
};
use crate::error::CliError;
use crate::exit;
use crate::output::Format;

/// Turns a rack of GPU servers into a cloud: the command for tenants and operators.
#[derive(Debug, Parser)]
#[command(name = "gpuaas", version, propagate_version = true, max_term_width = 110, after_help = exit::HELP)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Reads the command line.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let words: Vec<OsString> = words.into_iter().collect();
    Cli::from_arg_matches(&command().try_get_matches_from(words)?)
}

/// The command with all its subcommands. The global options are in the help of the program only: repeated under each of a hundred
/// commands, they would hide what the command itself takes.
pub(crate) fn command() -> clap::Command {
    fn hide(command: clap::Command, globals: &[clap::Arg]) -> clap::Command {
        let names: Vec<String> = command.get_subcommands().map(|subcommand| subcommand.get_name().to_owned()).collect();
        names.into_iter().fold(command, |command, name| {
            command.mut_subcommand(name, |subcommand| {
                let hidden = globals.iter().map(|argument| argument.clone().hide(true));
                hide(subcommand.args(hidden), globals).after_help(GLOBALS)
            })
        })
    }
    let command = Cli::command();
    let globals: Vec<clap::Arg> = command.get_arguments().filter(|argument| argument.is_global_set()).cloned().collect();
    hide(command, &globals)
}

/// Where the global options are.
const GLOBALS: &str = "`gpuaas --help` lists the options of every command, such as -o json, --columns, --project and --url.";

/// Tells somebody what is wrong with their command line, in the format they asked for.
pub(crate) fn report(error: &clap::Error) -> std::process::ExitCode {
    use clap::error::ErrorKind;
    let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    if !is_help && wants_json(std::env::args()) {
        let text = error.to_string();
        let message = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        let failure = CliError::usage("usage", message).hint("`--help` lists what the command takes");
        crate::output::Output::new(Format::Json, true).failure(&failure);
        return failure.exit.into();
    }
    // Nobody left to tell: nothing to do about it.
    let _ = error.print();
    std::process::ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// Whether a command line that could not be read asks for JSON.
fn wants_json(words: impl Iterator<Item = String>) -> bool {
    let words: Vec<String> = words.collect();
    let joined = |word: &str| ["-ojson", "-o=json", "--output=json"].contains(&word);
    let apart =
        |pair: &[String]| matches!(pair, [option, value] if ["-o", "--output"].contains(&option.as_str()) && value == "json");
    words.iter().any(|word| joined(word)) || words.windows(2).any(apart)
}

/// Options of every command.
#[derive(Clone, Default, Args)]
pub(crate) struct Global {
    /// Format of the result. Nothing but the result is on stdout.
    #[arg(short, long, global = true, value_enum, default_value_t, help_heading = "Global options")]
    pub(crate) output: Format,
    /// Only these columns of a list, by header or by field of the document, such as `name,state,facts.kernel`.
    #[arg(long, global = true, value_name = "NAMES", value_delimiter = ',', help_heading = "Global options")]
    pub(crate) columns: Vec<String>,
    /// Print ids only, one per line.
    #[arg(short, long, global = true, conflicts_with = "columns", help_heading = "Global options")]
    pub(crate) quiet: bool,
    /// Most items of a list.
    #[arg(long, global = true, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100_000), help_heading = "Global options")]
    pub(crate) limit: Option<u32>,
    /// Address of the server [env: GPUAAS_URL] [default: http://127.0.0.1:8080].
    #[arg(long, global = true, value_name = "URL", help_heading = "Global options")]
    pub(crate) url: Option<String>,
    /// API token [env: GPUAAS_TOKEN]. Other users of this machine can see it here; a file is better.
    #[arg(long, global = true, value_name = "TOKEN", conflicts_with = "token_file", help_heading = "Global options")]
    pub(crate) token: Option<String>,
    /// File with the API token [env: GPUAAS_TOKEN_FILE].
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    pub(crate) token_file: Option<PathBuf>,
    /// PEM file with the only authorities to trust for https [env: GPUAAS_CA_FILE] [default: the system's].
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    pub(crate) ca_file: Option<PathBuf>,
    /// Config file [env: GPUAAS_CONFIG] [default: ~/.config/gpuaas/config.toml].
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    pub(crate) config: Option<PathBuf>,
    /// The project, such as `acme/training` or its id [env: GPUAAS_PROJECT] [default: the only one you can see].
    #[arg(long, global = true, value_name = "PROJECT", help_heading = "Global options")]
    pub(crate) project: Option<String>,
    /// Profile: a section of the config file with its own sign-in [env: GPUAAS_PROFILE] [default: what `profile use` chose].
    #[arg(long, global = true, value_name = "NAME", help_heading = "Global options")]
    pub(crate) profile: Option<String>,
    /// The server's own socket, for whoever sits at its machine and has no token [env: GPUAAS_SOCKET].
    #[arg(long, global = true, value_name = "PATH", help_heading = "Global options")]
    pub(crate) socket: Option<PathBuf>,
    /// Name this request in every log it passes, up to the agent's [env: GPUAAS_CORRELATION_ID].
    #[arg(long, global = true, value_name = "ID", help_heading = "Global options")]
    pub(crate) correlation_id: Option<String>,
    /// No colors [env: NO_COLOR].
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) no_color: bool,
}

/// Secrets do not belong into logs.
impl std::fmt::Debug for Global {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Global").field("output", &self.output).field("url", &self.url).finish_non_exhaustive()
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// A whole cluster in one process, on simulated hosts: to try gpuaas and to develop against it.
    ///
    /// Prints the address, a token and commands to try. Everything is kept for the next start, unless --ephemeral.
    Dev(crate::dev::DevArgs),
    /// The control plane.
    ///
    /// One process does everything by default; several share a PostgreSQL database and the key folder with --roles.
    Server(Box<crate::server::ServerArgs>),
    /// Sign in, with the browser on this machine or with a code on another one.
    Login(login::LoginArgs),
    /// End the sign-in of this profile.
    Logout,
    /// Show who you are and which roles you have.
    Whoami,
    /// Change your own password, if this server signs you in itself. Ends all your sign-ins.
    Password(login::PasswordArgs),
    /// Profiles: one per server or user.
    #[command(subcommand)]
    Profile(profile::ProfileCommand),
    /// The config file: what counts, and setting a key.
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Users: people whom the server signs in itself, and those who came from elsewhere.
    #[command(subcommand)]
    User(user::UserCommand),
    /// What can be leased: products, their prices and how many there are now.
    Catalog,
    /// Allocations, what you lease: make, look, sign in, stop, start, release.
    #[command(subcommand)]
    Alloc(alloc::AllocCommand),
    /// SSH keys of a project, by name.
    #[command(subcommand)]
    SshKey(ssh_key::SshKeyCommand),
    /// Images that guests are made from.
    #[command(subcommand)]
    Image(image::ImageCommand),
    /// Hear what happens in a project, or with --platform on the whole platform.
    Events(events::EventsArgs),
    /// Webhooks: addresses that are told what happens in a project.
    #[command(subcommand)]
    Webhook(webhook::WebhookCommand),
    /// Organizations: make, look, change.
    #[command(subcommand)]
    Org(org::OrgCommand),
    /// Projects: make, look, change, delete.
    #[command(subcommand)]
    Project(project::ProjectCommand),
    /// Members: who has which role in a project, an organization or on the platform.
    #[command(subcommand)]
    Member(member::MemberCommand),
    /// Service accounts: programs that act for a project.
    #[command(subcommand)]
    ServiceAccount(service_account::ServiceAccountCommand),
    /// API keys of service accounts.
    #[command(subcommand)]
    Key(api_key::KeyCommand),
    /// Quotas: how much a project or an organization may have at once.
    #[command(subcommand)]
    Quota(quota::QuotaCommand),
    /// Products of the catalog, for operators.
    #[command(subcommand)]
    Sku(sku::SkuCommand),
    /// What there is, what of it works and what of that is free, for operators.
    Capacity(capacity::CapacityArgs),
    /// Whole machines on offer, for operators.
    #[command(subcommand)]
    Machine(machine::MachineCommand),
    /// Maintenance windows: announce, list, cancel.
    #[command(subcommand)]
    Maintenance(maintenance::MaintenanceCommand),
    /// Nodes: list, look, enroll, take out of service.
    #[command(subcommand)]
    Node(node::NodeCommand),
    /// Slots: list, look, hold back, clean up, end.
    #[command(subcommand)]
    Slot(slot::SlotCommand),
    /// Slices, guests on slots: make, look, stop, start, release.
    #[command(subcommand)]
    Slice(slice::SliceCommand),
    /// Tasks: run, follow, cancel, verify.
    #[command(subcommand)]
    Task(task::TaskCommand),
    /// The audit log: read, export, verify.
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    /// The keys that sign tasks.
    #[command(subcommand)]
    SigningKey(signing_key::SigningKeyCommand),
    /// API tokens.
    #[command(subcommand)]
    Token(api_token::TokenCommand),
    /// The cluster itself.
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Send any request to the REST interface, and print its answer as it is.
    ///
    /// For example: gpuaas api GET '/api/v1/nodes?limit=5'
    Api(api::ApiArgs),
    /// Print the version of this program, and of the server.
    Version,
    /// Print the manual page of this program, or write one per command.
    ///
    /// For example: gpuaas man --dir /usr/local/share/man/man1
    Man {
        /// Write a page per command into this folder instead.
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    /// Print a completion script for a shell.
    ///
    /// For example: gpuaas completions bash > /etc/bash_completion.d/gpuaas
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_and_argument_has_a_help_text() {
        fn walk(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            assert!(command.get_about().is_some(), "{path} has no help text");
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{path}: {} has no help text", argument.get_id());
            }
            for subcommand in command.get_subcommands() {
                walk(subcommand, &path);
            }
        }
        walk(&Cli::command(), "");
    }

    #[test]
    fn the_manual_names_every_command_and_every_exit_code() {
        fn walk(command: &clap::Command, path: &str, manual: &str) {
            for subcommand in command.get_subcommands() {
                let path = format!("{path} {}", subcommand.get_name());
                if subcommand.get_subcommands().next().is_none() {
                    assert!(manual.contains(&format!("`{path}")), "docs/cli.md does not name `{path}`");
                }
                walk(subcommand, &path, manual);
            }
        }
        let manual = include_str!("../../../docs/cli.md");
        walk(&Cli::command(), "gpuaas", manual);
        for code in 0..=8 {
            assert!(manual.contains(&format!("| {code} | ")), "docs/cli.md does not explain exit code {code}");
        }
    }

    #[test]
    fn no_command_has_an_argument_with_the_name_of_a_global_option() {
        // Clap would take the one's value for the other's: `token revoke NAME` would sign in with NAME.
        fn walk(command: &clap::Command, global: &[String]) {
            for argument in command.get_arguments().filter(|argument| !argument.is_global_set()) {
                let id = argument.get_id().to_string();
                assert!(!global.contains(&id), "{}: {id}", command.get_name());
            }
            command.get_subcommands().for_each(|subcommand| walk(subcommand, global));
        }
        let cli = Cli::command();
        let global: Vec<String> = cli
            .get_arguments()
            .filter(|argument| argument.is_global_set())
            .map(|argument| argument.get_id().to_string())
            .collect();
        assert!(global.contains(&"token".to_owned()));
        walk(&cli, &global);
    }

    #[test]
    fn global_options_are_in_the_help_once() {
        let mut program = command();
        program.build();
        assert!(program.render_long_help().to_string().contains("--token-file"));
        let node = program.find_subcommand_mut("node").and_then(|node| node.find_subcommand_mut("ls")).expect("node ls");
        let help = node.render_long_help().to_string();
        assert!(!help.contains("--token-file") && help.contains("gpuaas --help"), "{help}");
    }

    #[test]
    fn a_command_line_that_cannot_be_read_may_still_ask_for_json() {
        let wants = |line: &str| wants_json(line.split(' ').map(str::to_owned));
        assert!(wants("gpuaas node lss -o json") && wants("gpuaas -ojson x") && wants("gpuaas --output=json x"));
        assert!(!wants("gpuaas node ls -o yaml") && !wants("gpuaas json -o"));
    }

    #[test]
    fn global_options_work_after_the_command_too() {
        let line = ["gpuaas", "node", "ls", "-o", "json", "--url", "http://x"].map(OsString::from);
        let cli = parse(line).expect("parses");
        assert_eq!((cli.global.output, cli.global.url.as_deref()), (Format::Json, Some("http://x")));
    }
}
