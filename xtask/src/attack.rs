//! `cargo xtask attack`: attacks real processes while a legitimate user works next to them. `cargo xtask test` runs the short forms.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Stdio;

use crate::guard::Guard;
use crate::servers::Servers;
use crate::{cargo, test};

/// Options of `cargo xtask attack`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only run attacks whose name contains one of these, such as `sockets` or `http2` (default: all)
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Run the short forms, like `cargo xtask test`
    #[arg(long)]
    short: bool,
}

/// Builds the programs, runs the attacks one by one and prints their figures. Returns true if every attack was withstood.
pub(crate) fn run(options: &Options) -> Result<bool, String> {
    let features = test::features(&cargo::test_features()?);
    let features: Vec<&str> = features.iter().map(String::as_str).collect();
    cargo::build_all(&features)?;
    let folder = test::temporary_folder(Path::new("/tmp"))?;
    let mut guard = Guard::over(&folder)?;
    let servers = Servers::start(&folder, &mut guard);
    let mut arguments = vec!["test", "--workspace", "--test", "e2e"];
    arguments.extend(&features);
    // One attack at a time, so that the figures describe the attacked server alone.
    arguments.extend(["--", "--nocapture", "--test-threads=1"]);
    let filters: Vec<String> = match options.names.is_empty() {
        true => vec!["attack::".to_owned()],
        false => options.names.clone(),
    };
    arguments.extend(filters.iter().map(String::as_str));
    if !options.names.is_empty() {
        println!("(tests of other parts with such a name run as well)");
    }
    let mut command = cargo::command(&arguments);
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).env_remove("GPUAAS_FAILPOINT_DIR");
    servers.tell(&mut command);
    if !options.short {
        command.env("GPUAAS_PROVE", "long").env_remove("GPUAAS_PROVE_COUNT");
    }
    let mut child = command.spawn().map_err(|error| format!("cargo cannot be started: {error}"))?;
    guard.running(child.id())?;
    let mut figures = Vec::new();
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).split(b'\n') {
            let line = line.map_err(|error| format!("output of cargo: {error}"))?;
            let line = String::from_utf8_lossy(&line).into_owned();
            // The test harness prints the name of a test in front of this line, without a line break.
            if let Some(at) = line.find("attack ").filter(|_| line.contains("; bystander ")) {
                figures.push(line[at..].to_owned());
            }
            println!("{line}");
        }
    }
    let held = child.wait().map_err(|error| format!("waiting for cargo: {error}"))?.success();
    guard.end(child.id())?;
    drop(guard);
    println!("\n==> summary");
    for line in &figures {
        println!("    {line}");
    }
    println!("    {}", if held { "everything held" } else { "FAILED: see above" });
    Ok(held)
}
