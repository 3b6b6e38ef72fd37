//! `cargo xtask sim`: runs many seeds of the simulated cluster, or replays one.

use crate::{cargo, test};

/// Options of `cargo xtask sim`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Number of seeds to run
    #[arg(long, default_value_t = 20_000, conflicts_with = "seed")]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0, conflicts_with = "seed")]
    from: u64,
    /// Run only this seed and print its history
    #[arg(long)]
    seed: Option<u64>,
    /// With --seed: break these promises on purpose, such as `agent.duplicates`
    #[arg(long, requires = "seed", value_name = "PROMISE", value_delimiter = ',')]
    r#break: Vec<String>,
    /// With --seed: the log filter of the programs, such as `info` or `gpuaas_agent=debug`
    #[arg(long, requires = "seed", value_name = "FILTER")]
    log: Option<String>,
}

/// Runs the seeds. Returns true if every promise was kept.
pub(crate) fn run(options: &Options) -> Result<bool, String> {
    // The same features as everywhere else, so that nothing is compiled twice.
    let features = test::features(&cargo::test_features()?);
    let features: Vec<&str> = features.iter().map(String::as_str).collect();
    let test = ["test", "--workspace", "--test", "seeds"];
    let arguments = [&test[..], &features, &["--", "--nocapture", "every_seed_keeps_every_promise"]].concat();
    println!("==> cargo {}", arguments.join(" "));
    let mut command = cargo::command(&arguments);
    match options.seed {
        Some(seed) => command.env("GPUAAS_SIM_SEED", seed.to_string()),
        None => command.env("GPUAAS_SIM_SEEDS", format!("{}..{}", options.from, options.from.saturating_add(options.seeds))),
    };
    if !options.r#break.is_empty() {
        command.env("GPUAAS_SIM_BREAK", options.r#break.join(","));
    }
    if let Some(log) = &options.log {
        command.env("GPUAAS_LOG", log);
    }
    let status = command.status().map_err(|error| format!("cargo cannot be started: {error}"))?;
    Ok(status.success())
}
