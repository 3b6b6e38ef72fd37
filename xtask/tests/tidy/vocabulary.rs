//! One term for one thing, and the term that an engineer in this field would search for. `docs/glossary.md` has the terms in use;
//! this file lists the ones that they replaced.

use crate::expect_none;
use crate::files::FILES;
use crate::rust_code::{code_only, has_word};

/// Excluded from the checks, because it contains every forbidden word.
const OWN_PATH: &str = "xtask/tests/tidy/vocabulary.rs";

/// Parts of words that American English spells differently, and their American spelling. They are forbidden in all files.
const SPELLING: [(&str, &str); 14] = [
    ("organis", "organiz"),
    ("enrolment", "enrollment"),
    ("authoris", "authoriz"),
    ("catalogue", "catalog"),
    ("colour", "color"),
    ("behaviour", "behavior"),
    ("licence", "license"),
    ("neighbour", "neighbor"),
    ("artefact", "artifact"),
    ("serialis", "serializ"),
    ("normalis", "normaliz"),
    ("recognis", "recogniz"),
    ("virtualis", "virtualiz"),
    ("synchronis", "synchroniz"),
];

/// Whole words that are forbidden in all files, and what to use instead.
const WORDS: [(&str, &str); 5] = [
    ("enrol", "enroll"),
    ("enrols", "enrolls"),
    ("books", "the store, records or resources"),
    ("wish", "request"),
    ("wishes", "requests"),
];

/// Identifiers that are forbidden in code, and what to use instead. Names such as `Kind` say nothing without the name of what
/// they belong to.
const IDENTIFIERS: [(&str, &str); 32] = [
    ("Wish", "PlacementRequest, TaskRequest, DownloadRequest"),
    ("SliceWish", "SliceRequest"),
    ("power_wish", "pending_power_action"),
    ("release_wish", "release_request"),
    ("Books", "a name that says which records"),
    ("World", "StepInputs, or Harness in tests"),
    ("Tools", "Signers"),
    ("Eyes", "Audience"),
    ("Standing", "StreamGrant"),
    ("Trouble", "LastError"),
    ("trouble", "last_error"),
    ("Believed", "ReceiptCheck"),
    ("Disbelief", "ReceiptError"),
    ("How", "TaskEnd"),
    ("MayHaveRan", "MayHaveRun"),
    ("Way", "CommitMode, Wipe"),
    ("Hint", "Wakeup"),
    ("LinkHint", "LinkWakeup"),
    ("Said", "Report or Claims"),
    ("said", "reported"),
    ("looked_up", "resolve_request"),
    ("hand_out", "dispatch_queued"),
    ("wish_of", "placement_request"),
    ("Kind", "a name that says of what, such as ResourceKind"),
    ("Failure", "a name that says whose, such as ControlError"),
    ("Session", "a name that says whose, such as LinkSession"),
    ("Held", "a name that says what is held, such as HeldSlots"),
    ("gpuaas_world", "gpuaas_runtime"),
    ("gpuaas_engines", "gpuaas_backends"),
    ("EnginesConfig", "BackendsConfig"),
    ("EnginesError", "BackendsError"),
    ("EngineArgs", "BackendArgs"),
];

/// Former names of modules, and the current ones.
const MODULES: [(&str, &str); 18] = [
    ("books", "resources"),
    ("leases", "commit or lease_settlement"),
    ("failure", "error or transact"),
    ("rights", "authz_cache"),
    ("task_make", "task_create"),
    ("allocation_shown", "allocation_view"),
    ("world", "load"),
    ("words", "tenant_messages"),
    ("people", "tenancy"),
    ("near", "affinity"),
    ("beneath", "openat2"),
    ("door", "fuzz_support"),
    ("when", "time"),
    ("span", "duration"),
    ("sign_ins", "credentials"),
    ("standing", "stream_grant"),
    ("hints", "wakeups"),
    ("engines", "backends"),
];

#[test]
fn spelling_is_american() {
    let mut broken = Vec::new();
    for file in FILES.iter().filter(|file| file.path != OWN_PATH) {
        for (number, line) in file.lines() {
            let lower = line.to_lowercase();
            for (found, instead) in SPELLING.iter().filter(|(found, _)| lower.contains(found)) {
                broken.push(format!("{}:{number}: `{found}` is spelled `{instead}`", file.path));
            }
        }
    }
    expect_none(&broken, "Code, API, command line, events and documents use American spelling.");
}

#[test]
fn retired_words_do_not_come_back() {
    let mut broken = Vec::new();
    for file in FILES.iter().filter(|file| file.path != OWN_PATH) {
        for (number, line) in file.lines() {
            let lower = line.to_lowercase();
            for (word, instead) in WORDS.iter().filter(|(word, _)| has_word(&lower, word)) {
                broken.push(format!("{}:{number}: `{word}`; use {instead}", file.path));
            }
        }
        if file.is_rust() {
            for (index, line) in code_only(&file.text).lines().enumerate() {
                for (name, instead) in IDENTIFIERS.iter().filter(|(name, _)| has_word(line, name)) {
                    broken.push(format!("{}:{}: `{name}`; use {instead}", file.path, index + 1));
                }
            }
            let module = file.path.rsplit('/').next().unwrap_or_default().trim_end_matches(".rs");
            let in_product = file.path.starts_with("crates/") && file.path.contains("/src/");
            for (_, instead) in MODULES.iter().filter(|(name, _)| in_product && *name == module) {
                broken.push(format!("{}: the module is called {instead}", file.path));
            }
        }
    }
    expect_none(&broken, "docs/glossary.md has the words that are in use.");
}
