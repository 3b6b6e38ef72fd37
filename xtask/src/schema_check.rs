//! `cargo xtask schema-check`: checks that the server conforms to its OpenAPI document. schemathesis calls every operation of a
//! real server without a token, with a tenant's keys and as the platform's administrator. No operation is excluded.

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

/// Operations that remove what other operations need. Each caller calls them last.
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
    /// Number of generated requests per operation, in addition to those that cover its document
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    examples: u32,
    /// Time limit in minutes; unfinished checks count as failed
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// Run the short form, like `cargo xtask test`
    #[arg(long, conflicts_with_all = ["examples", "minutes"])]
    short: bool,
    /// Use the programs of the last build
    #[arg(long)]
    no_build: bool,
}

/// How thorough the check is.
pub(crate) struct Extent {
    examples: u32,
    /// Also test values at and beyond the limits in the document, and sequences of requests that build on each other's responses.
    thorough: bool,
    within: Duration,
}

/// All phases of schemathesis.
const ALL_PHASES: &str = "examples,coverage,fuzzing,stateful";

/// The short form, for `cargo xtask test`. Takes about a minute.
pub(crate) const SHORT: Extent = Extent { examples: 2, thorough: false, within: Duration::from_secs(300) };

/// Runs the long form. Returns true if the server conforms.
pub(crate) fn run(options: &Options) -> Result<bool, String> {
    let root = requirements::is_root();
    if let Some(requirement) = requirements::ALL.iter().find(|requirement| requirement.name == PROGRAM) {
        requirement.ensure(root)?;
    }
    if !options.no_build {
        let features = test::features(&cargo::test_features()?);
        let features: Vec<&str> = features.iter().map(String::as_str).collect();
        cargo::build_all(&features)?;
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

/// Checks a server of its own, which the guard stops. Returns true if it conforms. The programs must already be built.
pub(crate) fn check(folder: &Path, guard: &mut Guard, extent: &Extent) -> Result<bool, String> {
    let until = Instant::now() + extent.within;
    let subject = Subject::start(&folder.join("schema-check"), guard)?;
    let tenant = subject.tenant()?;
    let admin = [subject.token.clone()];
    // The coverage phase finds the most, and takes the longest.
    let (few, most) = if extent.thorough { (ALL_PHASES, ALL_PHASES) } else { ("fuzzing", "coverage") };
    let round = |caller, keys, part, phases, successes| Round { caller, keys, part, phases, successes };
    // The keys are used before the endings, which may revoke them.
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
    // Created only now, so that no earlier call has seen its id: the endings revoke tokens, and must not revoke the one in use.
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
