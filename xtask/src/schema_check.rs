//! `cargo xtask schema-check`: whether the server does what its OpenAPI document says. schemathesis asks a real server about every operation,
//! without a token, with keys of a tenant and as the platform's administrator. No operation is left out.

mod figures;
mod schemathesis;
mod subject;

use std::path::Path;
use std::time::{Duration, Instant};

pub(crate) use schemathesis::{PROGRAM, VERSION, program};

use crate::guard::Guard;
use crate::{cargo, requirements, test};
use schemathesis::{Part, Round};
use subject::Subject;

/// Operations that take away what the others need. Each caller asks for them last.
const ENDINGS: [&str; 13] = [
    "api_key_revoke",
    "api_token_revoke",
    "image_delete",
    "node_retire",
    "organization_quota_set",
    "project_delete",
    "project_member_change",
    "project_member_remove",
    "project_quota_set",
    "service_account_delete",
    "signing_key_revoke",
    "sku_change",
    "slot_withdraw",
];

/// Options of `cargo xtask schema-check`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// How many requests to make up for each operation, besides those that cover its document
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    examples: u32,
    /// Most minutes it may take; what is not done by then has failed
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// The short form, which is what `cargo xtask test` runs
    #[arg(long, conflicts_with_all = ["examples", "minutes"])]
    short: bool,
    /// Use the programs as they were built the last time
    #[arg(long)]
    no_build: bool,
}

/// How much is asked.
pub(crate) struct Extent {
    examples: u32,
    /// Values at the edges of what the document allows, and beyond; and requests that follow from each other's answers.
    thorough: bool,
    /// It has failed if it takes longer.
    within: Duration,
}

/// All that schemathesis has.
const ALL_PHASES: &str = "examples,coverage,fuzzing,stateful";

/// What `cargo xtask test` asks. Takes about a minute.
pub(crate) const SHORT: Extent = Extent { examples: 2, thorough: false, within: Duration::from_secs(300) };

/// Runs the long form. True if the document is true.
pub(crate) fn run(options: &Options) -> Result<bool, String> {
    let root = requirements::is_root();
    if let Some(requirement) = requirements::ALL.iter().find(|requirement| requirement.name == PROGRAM) {
        requirement.ensure(root)?;
    }
    if !options.no_build {
        // The same features as everywhere else, so that nothing is compiled twice.
        let features = test::features(&cargo::test_features()?);
        let features: Vec<&str> = features.iter().map(String::as_str).collect();
        if !cargo::run(&[&["build", "--workspace", "--bins"], features.as_slice()].concat())? {
            return Err("the server cannot be built".to_owned());
        }
    }
    let folder = test::temporary_folder(Path::new("/tmp"))?;
    let mut guard = Guard::over(&folder)?;
    let within = Duration::from_secs(options.minutes.saturating_mul(60));
    let long = Extent { examples: options.examples, thorough: true, within };
    let holds = check(&folder, &mut guard, if options.short { &SHORT } else { &long })?;
    drop(guard);
    println!("{}", if holds { "the document is true" } else { "the document is NOT true" });
    Ok(holds)
}

/// Asks a server of its own, which the guard stops. True if the document is true. The programs must be built.
pub(crate) fn check(folder: &Path, guard: &mut Guard, extent: &Extent) -> Result<bool, String> {
    let until = Instant::now() + extent.within;
    let subject = Subject::start(&folder.join("schema-check"), guard)?;
    let tenant = subject.tenant()?;
    let admin = [subject.token.clone()];
    // What covers the document finds most, and takes longest.
    let (few, most) = if extent.thorough { (ALL_PHASES, ALL_PHASES) } else { ("fuzzing", "coverage") };
    let round = |caller, keys, part, phases, successes| Round { caller, keys, part, phases, successes };
    // That the keys open something is shown before the endings, which may take the keys away.
    let rounds = [
        round("nobody", &[][..], Part::Everything, few, None),
        round("tenant", &tenant, Part::Main, few, Some(15)),
        round("tenant", &tenant, Part::Endings, few, Some(0)),
        round("administrator", &admin, Part::Main, most, Some(60)),
    ];
    let mut holds = true;
    for round in &rounds {
        holds &= round.run(&subject, guard, extent.examples, until)?;
    }
    // Made now, so that nobody has seen its id when tokens are revoked.
    let admin = [subject.another_administrator()?];
    holds &= round("administrator", &admin, Part::Endings, few, Some(0)).run(&subject, guard, extent.examples, until)?;
    Ok(holds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ending_is_an_operation_of_the_document() {
        let text = std::fs::read_to_string(cargo::workspace().join("docs/openapi.json")).expect("the document");
        let document: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let paths = document["paths"].as_object().expect("paths").values();
        let operations: Vec<&str> = paths
            .flat_map(|methods| methods.as_object().expect("methods").values())
            .filter_map(|operation| operation["operationId"].as_str())
            .collect();
        for name in ENDINGS {
            assert!(operations.contains(&name), "there is no operation {name}");
        }
    }
}
