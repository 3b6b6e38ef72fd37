//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::commands::confirm::CONFIRMED;
use crate::commands::{
    alloc, api, api_key, api_token, audit, capacity, cluster, config, events, image, login, machine, maintenance, member, node,
    org, profile, project, quota, service_account, signing_key, sku, slice, slot, ssh_key, task, user, webhook,
};
use crate::error::CliError;
use crate::exit;
use crate::output::Format;

/// Turns a rack of GPU servers into a cloud: the command line for tenants and operators.
#[derive(Debug, Parser)]
#[command(name = "gpuaas", version, propagate_version = true, max_term_width = 110, after_help = exit::HELP)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
    /// The command destroys something, and is not confirmed in advance.
    #[arg(skip)]
    pub(crate) is_unconfirmed: bool,
}

/// Parses the command line.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let words: Vec<OsString> = words.into_iter().collect();
    let matches = command().try_get_matches_from(words)?;
    let mut innermost = &matches;
    while let Some((_, deeper)) = innermost.subcommand() {
        innermost = deeper;
    }
    let is_unconfirmed = matches!(innermost.try_get_one::<bool>(CONFIRMED), Ok(Some(false)));
    Ok(Cli { is_unconfirmed, ..Cli::from_arg_matches(&matches)? })
}

/// Returns the command with all its subcommands. Only the help of the program itself lists the global options: repeated under
/// each of a hundred subcommands, they would bury the options of the subcommand.
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

/// Shown below the help of every subcommand.
const GLOBALS: &str = "`gpuaas --help` lists the global options, such as -o json, --jq, --columns, --project and --url.";

/// Reports a command line that cannot be parsed, in the output format that the user asked for.
pub(crate) fn report(error: &clap::Error) -> std::process::ExitCode {
    use clap::error::ErrorKind;
    let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    if !is_help && wants_json(std::env::args()) {
        let text = error.to_string();
        let message = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        let failure = CliError::usage("usage", message).hint("`--help` lists what the command accepts");
        crate::output::Output::new(Format::Json, true).failure(&failure);
        return failure.exit.into();
    }
    // If stderr is gone, there is nowhere left to report to.
    let _ = error.print();
    std::process::ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// Returns whether a command line that cannot be parsed asks for JSON.
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
    /// Output format. Only the result is printed to stdout.
    #[arg(short, long, global = true, value_enum, default_value_t, help_heading = "Global options")]
    pub(crate) output: Format,
    /// Show only these columns of a list, by header or by field of the document, such as `name,state,facts.kernel`.
    #[arg(long, global = true, value_name = "NAMES", value_delimiter = ',', help_heading = "Global options")]
    pub(crate) columns: Vec<String>,
    /// Filter the result with an expression of the jq language; implies -o json. Text is printed without quotes.
    #[arg(long, global = true, value_name = "EXPRESSION", conflicts_with_all = ["columns", "quiet"], help_heading = "Global options")]
    pub(crate) jq: Option<String>,
    /// Print ids only, one per line.
    #[arg(short, long, global = true, conflicts_with = "columns", help_heading = "Global options")]
    pub(crate) quiet: bool,
    /// Maximum number of rows of a list.
    #[arg(long, global = true, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100_000), help_heading = "Global options")]
    pub(crate) limit: Option<u32>,
    /// Address of the server [env: GPUAAS_URL] [default: http://127.0.0.1:8080].
    #[arg(long, global = true, value_name = "URL", help_heading = "Global options")]
    pub(crate) url: Option<String>,
    /// API token [env: GPUAAS_TOKEN]. Other users of this machine can see it on the command line; prefer a file.
    #[arg(long, global = true, value_name = "TOKEN", conflicts_with = "token_file", help_heading = "Global options")]
    pub(crate) token: Option<String>,
    /// File with the API token [env: GPUAAS_TOKEN_FILE].
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    pub(crate) token_file: Option<PathBuf>,
    /// PEM file with the certificate authorities to trust for https, and no others [env: GPUAAS_CA_FILE] [default: the system's].
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    pub(crate) ca_file: Option<PathBuf>,
    /// Config file [env: GPUAAS_CONFIG] [default: ~/.config/gpuaas/config.toml].
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    pub(crate) config: Option<PathBuf>,
    /// Project, such as `acme/training` or its id [env: GPUAAS_PROJECT] [default: the only one you can see].
    #[arg(long, global = true, value_name = "PROJECT", help_heading = "Global options")]
    pub(crate) project: Option<String>,
    /// Profile: a section of the config file with its own sign-in [env: GPUAAS_PROFILE] [default: what `profile use` chose].
    #[arg(long, global = true, value_name = "NAME", help_heading = "Global options")]
    pub(crate) profile: Option<String>,
    /// Local socket of a server on this machine, used without a token [env: GPUAAS_SOCKET].
    #[arg(long, global = true, value_name = "PATH", help_heading = "Global options")]
    pub(crate) socket: Option<PathBuf>,
    /// Correlation id that appears in every log along the way, including the agent's [env: GPUAAS_CORRELATION_ID].
    #[arg(long, global = true, value_name = "ID", help_heading = "Global options")]
    pub(crate) correlation_id: Option<String>,
    /// Do not use colors [env: NO_COLOR].
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) no_color: bool,
}

/// Keeps secrets out of logs.
impl std::fmt::Debug for Global {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Global").field("output", &self.output).field("url", &self.url).finish_non_exhaustive()
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a whole cluster in one process, on simulated hosts, to try gpuaas or develop against it.
    ///
    /// Prints the address, a token and commands to try. Data is kept for the next start, unless --ephemeral is given.
    Dev(crate::dev::DevArgs),
    /// Run the control plane.
    ///
    /// By default one process does everything; with --roles, several processes share a PostgreSQL database and the key folder.
    Server(Box<crate::server::ServerArgs>),
    /// Sign in with the browser on this machine, or with a code on another one.
    Login(login::LoginArgs),
    /// Sign out of this profile.
    Logout,
    /// Show who you are and which roles you have.
    Whoami,
    /// Change your own password, if this server manages it. Ends all your sign-ins.
    Password(login::PasswordArgs),
    /// Manage profiles, one per server or user.
    #[command(subcommand)]
    Profile(profile::ProfileCommand),
    /// Show and change the config file.
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Manage users, for administrators.
    #[command(subcommand)]
    User(user::UserCommand),
    /// List the products that can be leased, with prices and availability.
    Catalog(crate::list::WatchArgs),
    /// Manage allocations: create, list, show, sign in, stop, start, release.
    #[command(subcommand)]
    Alloc(alloc::AllocCommand),
    /// Manage the SSH keys of a project.
    #[command(subcommand)]
    SshKey(ssh_key::SshKeyCommand),
    /// Manage the images that guests are created from.
    #[command(subcommand)]
    Image(image::ImageCommand),
    /// Print the events of a project, or of the whole platform with --platform.
    Events(events::EventsArgs),
    /// Manage webhooks: addresses that receive the events of a project.
    #[command(subcommand)]
    Webhook(webhook::WebhookCommand),
    /// Manage organizations: create, list, show, change, delete.
    #[command(subcommand)]
    Org(org::OrgCommand),
    /// Manage projects: create, list, show, change, delete.
    #[command(subcommand)]
    Project(project::ProjectCommand),
    /// Manage members: who has which role in a project, in an organization or on the platform.
    #[command(subcommand)]
    Member(member::MemberCommand),
    /// Manage service accounts: programs that act for a project.
    #[command(subcommand)]
    ServiceAccount(service_account::ServiceAccountCommand),
    /// Manage the API keys of service accounts.
    #[command(subcommand)]
    Key(api_key::KeyCommand),
    /// Show and set quotas of projects and organizations.
    #[command(subcommand)]
    Quota(quota::QuotaCommand),
    /// Manage the products of the catalog, for operators.
    #[command(subcommand)]
    Sku(sku::SkuCommand),
    /// Show total, healthy and free capacity, for operators.
    Capacity(capacity::CapacityArgs),
    /// Manage nodes that are leased as whole machines, for operators.
    #[command(subcommand)]
    Machine(machine::MachineCommand),
    /// Manage maintenance windows: announce, list, cancel.
    #[command(subcommand)]
    Maintenance(maintenance::MaintenanceCommand),
    /// Manage nodes: list, show, enroll, drain, retire.
    #[command(subcommand)]
    Node(node::NodeCommand),
    /// Manage slots: list, show, quarantine, clean up, withdraw.
    #[command(subcommand)]
    Slot(slot::SlotCommand),
    /// Manage slices, the guests on slots: create, list, show, stop, start, release.
    #[command(subcommand)]
    Slice(slice::SliceCommand),
    /// Manage tasks: run, follow, cancel, verify.
    #[command(subcommand)]
    Task(task::TaskCommand),
    /// List, export and verify the audit log.
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    /// Manage the keys that sign tasks.
    #[command(subcommand)]
    SigningKey(signing_key::SigningKeyCommand),
    /// Manage API tokens of the platform.
    #[command(subcommand)]
    Token(api_token::TokenCommand),
    /// Show the cluster and its budget of destructive commands.
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Send a request to the REST interface and print the response.
    ///
    /// For example: gpuaas api GET '/api/v1/nodes?limit=5'
    Api(api::ApiArgs),
    /// Write a file for support: versions, nodes, failed tasks, metrics, events. Secrets are left out.
    ///
    /// For example: gpuaas support-bundle --file bundle.tar.gz
    SupportBundle(crate::support::BundleArgs),
    /// Print the versions of this program and of the server.
    Version,
    /// Print the manual page, or write one page per command.
    ///
    /// For example: gpuaas man --dir /usr/local/share/man/man1
    Man {
        /// Write one page per command into this folder instead.
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
        // Otherwise clap would use the value of one for the other: `token revoke NAME` would sign in with NAME.
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
