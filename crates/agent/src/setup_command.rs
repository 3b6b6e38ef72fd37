//! `gpuaas-agent setup slices`: the plan, the confirmation, and the result.

use std::io::{BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use gpuaas_agent::config::Config;
use gpuaas_agent::error_chain::chain;
use gpuaas_agent::setup::{self, Datapath, Plan, SetupError, SetupOptions, Step, StepStatus};
use gpuaas_contract::slice::{InterfaceName, Subnet};

use super::{BoxError, FAILED, say};

/// Exit code when something is left that the program cannot do.
const LEFT_TO_DO: u8 = 4;
/// Size limit of an answer.
const MAX_ANSWER: u64 = 1024;

/// Arguments of `setup slices`.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Open vSwitch bridge of the guests [default: br-slices, or that of the last run].
    #[arg(long, value_name = "NAME")]
    bridge: Option<InterfaceName>,
    /// Private network of the guests, which must not overlap any network of this host [default: 10.77.0.0/24, or that of the last
    /// run].
    #[arg(long, value_name = "CIDR")]
    network: Option<Subnet>,
    /// The only interface through which guests may leave this host [default: any].
    #[arg(long, value_name = "INTERFACE")]
    uplink: Option<InterfaceName>,
    /// Datapath of the bridge: `system` in the kernel, `netdev` in user space. `netdev` is for labs without the kernel module: it
    /// is slow and does not isolate the host from guests [default: system].
    #[arg(long, value_name = "KIND", value_parser = datapath)]
    datapath: Option<Datapath>,
    /// Install missing Debian packages. Without it, the plan prints the command.
    #[arg(long, conflicts_with = "undo")]
    install_packages: bool,
    /// Remove exactly what an earlier run created.
    #[arg(long, conflicts_with_all = ["bridge", "network", "uplink", "datapath", "root"])]
    undo: bool,
    /// Print the plan and change nothing.
    #[arg(long, visible_alias = "plan", conflicts_with = "yes")]
    dry_run: bool,
    /// Do not ask for confirmation.
    #[arg(long, short)]
    yes: bool,
    /// Write files under this folder, and do not use systemd, packages or kernel modules.
    #[arg(long, hide = true, value_name = "DIR", value_parser = absolute)]
    root: Option<PathBuf>,
}

fn datapath(text: &str) -> Result<Datapath, String> {
    match text {
        "system" => Ok(Datapath::System),
        "netdev" => Ok(Datapath::Netdev),
        _ => Err("choose system or netdev".to_owned()),
    }
}

fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(path) } else { Err("write an absolute path".to_owned()) }
}

/// Plans, asks for confirmation and applies.
pub(super) async fn run(config: &Config, arguments: Arguments) -> Result<ExitCode, BoxError> {
    let Arguments { bridge, network, uplink, datapath, install_packages, undo, dry_run, yes, root } = arguments;
    let options = SetupOptions { bridge, network, uplink, datapath, install_packages, root };
    let plan = if undo { setup::plan_undo(config).await? } else { setup::plan_setup(config, &options).await? };
    show(&plan);
    if dry_run {
        return Ok(ExitCode::SUCCESS);
    }
    let steps = plan.count(StepStatus::ToDo);
    if steps == 0 && !undo {
        say("Nothing to do: nothing was changed.");
        return Ok(outcome(&plan));
    }
    if !yes && !confirm(steps, undo)? {
        say("Nothing was changed.");
        return Ok(ExitCode::from(FAILED));
    }
    let left = if undo { setup::undo(config, told).await? } else { setup::setup(config, &options, &plan, told).await? };
    let remaining: Vec<&Step> = left.steps.iter().filter(|step| step.status != StepStatus::Done).collect();
    if remaining.is_empty() {
        say(if undo { "Everything that the setup created is removed." } else { "This host is set up." });
    } else {
        say("What is left:");
        remaining.into_iter().for_each(line);
    }
    Ok(outcome(&left))
}

fn outcome(plan: &Plan) -> ExitCode {
    if plan.count(StepStatus::ToDo) > 0 {
        ExitCode::from(FAILED)
    } else if plan.count(StepStatus::Cannot) > 0 {
        ExitCode::from(LEFT_TO_DO)
    } else {
        ExitCode::SUCCESS
    }
}

fn show(plan: &Plan) {
    plan.steps.iter().for_each(line);
    let count = |status| plan.count(status);
    say(format_args!(
        "{} done, {} to do, {} at boot, {} cannot be done by this program",
        count(StepStatus::Done),
        count(StepStatus::ToDo),
        count(StepStatus::AtBoot),
        count(StepStatus::Cannot)
    ));
}

fn line(step: &Step) {
    say(format_args!("{:<8} {:<13} {}", step.status.as_str(), step.name, step.what));
    if !step.how.is_empty() {
        say(format_args!("{:<8} {:<13}   {}", "", "", step.how));
    }
}

fn told(step: &Step, error: Option<&SetupError>) {
    let outcome = match (error, step.status) {
        (Some(_), _) => "failed",
        (None, StepStatus::Cannot) => "left",
        (None, StepStatus::Done) => "gone",
        (None, StepStatus::ToDo | StepStatus::AtBoot) => "ok",
    };
    let detail = error.map_or_else(|| step.how.clone(), |error| chain(error));
    say(format_args!("{outcome:<8} {:<13} {detail}", step.name));
}

/// Asks for confirmation on the terminal. Without a terminal there is no answer.
fn confirm(steps: usize, undo: bool) -> Result<bool, BoxError> {
    let input = std::io::stdin();
    if !input.is_terminal() {
        return Err("nothing was changed: there is no terminal to confirm on; check the plan and run it again with --yes".into());
    }
    let verb = if undo { "Undo" } else { "Do" };
    let mut output = std::io::stdout();
    write!(output, "{verb} the {steps} steps that are to do? [y/N] ")?;
    output.flush()?;
    let mut answer = String::new();
    std::io::BufReader::new(input.lock().take(MAX_ANSWER)).read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
