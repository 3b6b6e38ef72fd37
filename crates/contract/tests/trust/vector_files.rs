//! The golden vectors: written from the cases, compared with the files, and verified again by a reader that knows only the files.

use std::path::PathBuf;
use std::sync::LazyLock;

use gpuaas_contract::key::{SigningKey, VerifyingKey};
use gpuaas_contract::verifier_set::{self, KeyState, VerifierSet};
use gpuaas_contract::{Digest, dsse, envelope, hex, receipt};
use serde_json::{Value, json};

use crate::envelope_cases::{self, NodeState, document};
use crate::fixture::{Holder, key_vectors, text, verifier_set_document};
use crate::receipt_cases::{self, Record};
use crate::verifier_set_cases;

pub(crate) fn testdata() -> PathBuf {
    // Cargo sets the variable at run time; the path from build time may belong to another copy of the repository.
    PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("run this test with cargo")).join("testdata")
}

/// All files except the README, by name, as the code generates them.
fn made() -> Vec<(String, String)> {
    let mut files = vec![
        ("envelope.json".to_owned(), pretty(&envelope_file())),
        ("receipt.json".to_owned(), pretty(&receipt_file())),
        ("verifier_set.json".to_owned(), pretty(&verifier_set_file())),
        ("link.json".to_owned(), pretty(&crate::link_messages::made())),
    ];
    files.extend(crate::schema_files::made().into_iter().map(|(name, schema)| (name, pretty(&schema))));
    files
}

fn pretty(file: &impl serde::Serialize) -> String {
    serde_json::to_string_pretty(file).expect("vectors are JSON") + "\n"
}

/// Writes the files once per run if `UPDATE_VECTORS=1` is set, before any test reads one.
static UPDATED: LazyLock<()> = LazyLock::new(|| {
    if std::env::var_os("UPDATE_VECTORS").is_some_and(|value| value == "1") {
        for (name, text) in made() {
            let path = testdata().join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("create the folder");
            std::fs::write(&path, text).expect("write the vectors");
        }
    }
});

/// Content of a file in `testdata/`.
fn stored(name: &str) -> String {
    LazyLock::force(&UPDATED);
    std::fs::read_to_string(testdata().join(name)).unwrap_or_else(|error| {
        panic!("testdata/{name} cannot be read ({error}): run `UPDATE_VECTORS=1 cargo test -p gpuaas-contract`")
    })
}

#[test]
fn the_files_are_what_the_code_makes() {
    for (name, expected) in made() {
        let found = stored(&name);
        let first_difference = found.lines().zip(expected.lines()).position(|(a, b)| a != b).map_or(0, |line| line + 1);
        assert!(
            found == expected,
            "testdata/{name} differs from what the code makes, first at line {first_difference}. Other implementations rely on \
             this file: if the change is meant, run `UPDATE_VECTORS=1 cargo test -p gpuaas-contract` and say why in the commit"
        );
    }
}

#[derive(serde::Serialize)]
struct SignedVector<Context: serde::Serialize> {
    name: &'static str,
    why: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<Digest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<Context>,
    payload: String,
    #[serde(skip_serializing_if = "is_zero")]
    append_spaces: usize,
    document: String,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

#[derive(serde::Serialize)]
struct EnvelopeFile {
    payload_type: &'static str,
    max_bytes: usize,
    max_start_window_us: u128,
    clock_skew_us: u128,
    keys: Vec<crate::fixture::KeyVector>,
    verifier_set: String,
    pre_authentication_encoding_hex: String,
    signature_hex: String,
    accepted: Vec<SignedVector<NodeState>>,
    rejected: Vec<SignedVector<NodeState>>,
}

#[derive(serde::Serialize)]
struct ReceiptFile {
    payload_type: &'static str,
    max_bytes: usize,
    keys: Vec<crate::fixture::KeyVector>,
    receipt_key_id: String,
    record: Record,
    accepted: Vec<SignedVector<()>>,
    rejected: Vec<SignedVector<()>>,
}

#[derive(serde::Serialize)]
struct VerifierSetFile {
    payload_type: &'static str,
    max_bytes: usize,
    max_keys: usize,
    keys: Vec<crate::fixture::KeyVector>,
    cluster_id: gpuaas_contract::id::ClusterId,
    accepted: Vec<SignedVector<()>>,
    rejected: Vec<SignedVector<()>>,
    successions: Vec<SuccessionVector>,
}

#[derive(serde::Serialize)]
struct SuccessionVector {
    name: &'static str,
    why: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    held: String,
    offered: String,
}

fn envelope_file() -> EnvelopeFile {
    let vector = |case: envelope_cases::Case| SignedVector {
        name: case.name,
        why: case.why,
        code: case.verdict.err().map(envelope::RefusalCode::as_str),
        digest: case.verdict.is_ok().then(|| Digest::of(case.payload.as_bytes())),
        context: Some(case.node),
        payload: case.payload,
        append_spaces: case.append_spaces,
        document: case.envelope,
    };
    let first = &envelope_cases::accepted()[0];
    let encoded = dsse::pre_authentication_encoding(envelope::PAYLOAD_TYPE, first.payload.as_bytes());
    EnvelopeFile {
        payload_type: envelope::PAYLOAD_TYPE,
        max_bytes: envelope::MAX_BYTES,
        max_start_window_us: envelope::MAX_START_WINDOW.as_micros(),
        clock_skew_us: envelope::CLOCK_SKEW.as_micros(),
        keys: key_vectors(&Holder::ALL),
        verifier_set: text(verifier_set_document().sign(&Holder::Root.key())),
        signature_hex: hex(&Holder::Control(KeyState::Active).key().sign(&encoded)),
        pre_authentication_encoding_hex: hex(&encoded),
        accepted: envelope_cases::accepted().into_iter().map(vector).collect(),
        rejected: envelope_cases::refused().into_iter().map(vector).collect(),
    }
}

fn receipt_file() -> ReceiptFile {
    let vector = |case: receipt_cases::Case| SignedVector {
        name: case.name,
        why: case.why,
        code: case.disbelief,
        digest: case.disbelief.is_none().then(|| Digest::of(case.payload.as_bytes())),
        context: None,
        payload: case.payload,
        append_spaces: case.append_spaces,
        document: case.receipt,
    };
    ReceiptFile {
        payload_type: receipt::PAYLOAD_TYPE,
        max_bytes: receipt::MAX_BYTES,
        keys: key_vectors(&[Holder::Node, Holder::OtherNode, Holder::Root]),
        receipt_key_id: Holder::Node.key().verifying_key().id().to_string(),
        record: receipt_cases::record(),
        accepted: receipt_cases::believed().into_iter().map(vector).collect(),
        rejected: receipt_cases::disbelieved().into_iter().map(vector).collect(),
    }
}

fn verifier_set_file() -> VerifierSetFile {
    let vector = |case: verifier_set_cases::Case| SignedVector {
        name: case.name,
        why: case.why,
        code: case.refusal,
        digest: case.refusal.is_none().then(|| Digest::of(case.payload.as_bytes())),
        context: None,
        payload: case.payload,
        append_spaces: case.append_spaces,
        document: case.document,
    };
    let root = Holder::Root.key();
    let succession = |case: verifier_set_cases::Succession| SuccessionVector {
        name: case.name,
        why: case.why,
        code: case.refusal,
        held: text(case.held.sign(&root)),
        offered: text(case.offered.sign(&root)),
    };
    VerifierSetFile {
        payload_type: verifier_set::PAYLOAD_TYPE,
        max_bytes: verifier_set::MAX_BYTES,
        max_keys: verifier_set::MAX_KEYS,
        keys: key_vectors(&[Holder::Root, Holder::Control(KeyState::Active), Holder::Stranger]),
        cluster_id: verifier_set_cases::CLUSTER_OF_THE_NODE,
        accepted: verifier_set_cases::taken().into_iter().map(vector).collect(),
        rejected: verifier_set_cases::refused().into_iter().map(vector).collect(),
        successions: verifier_set_cases::successions().into_iter().map(succession).collect(),
    }
}

// The code below knows only the files, as another implementation would.

pub(crate) fn read(name: &str) -> Value {
    serde_json::from_str(&stored(name)).expect("the vector file is JSON")
}

pub(crate) fn string<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("`{field}` is missing in {value}"))
}

pub(crate) fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    let items = value[field].as_array().unwrap_or_else(|| panic!("`{field}` is missing"));
    assert!(!items.is_empty(), "`{field}` is empty, which would prove nothing");
    items
}

fn bytes_of(vector: &Value) -> Vec<u8> {
    let spaces = vector["append_spaces"].as_u64().map_or(0, |count| usize::try_from(count).expect("a small number"));
    document(string(vector, "document"), spaces)
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex")).collect()
}

/// The public key that matches, checked against its own seed and id.
fn public_key(file: &Value, matches: impl Fn(&Value) -> bool) -> VerifyingKey {
    let key = list(file, "keys").iter().find(|key| matches(key)).expect("the key is listed");
    let seed: [u8; 32] = unhex(string(key, "seed_hex")).try_into().expect("32 bytes");
    let public = VerifyingKey::from_bytes(&unhex(string(key, "public_key_hex"))).expect("a public key");
    assert_eq!(SigningKey::from_seed(&seed).verifying_key(), public);
    assert_eq!(public.id().as_str(), string(key, "key_id"));
    public
}

fn named(name: &'static str) -> impl Fn(&Value) -> bool {
    move |key| key["name"] == name
}

fn verdict_of(vector: &Value) -> (Option<String>, Option<String>) {
    let text = |field: &str| vector[field].as_str().map(str::to_owned);
    (text("code"), text("digest"))
}

/// The vectors of a file. Of the previous version, only the accepted ones: what was refused then may be valid now, but what was accepted
/// must still be.
fn vectors<'a>(file: &'a Value, name: &str) -> Vec<&'a Value> {
    let rejected = if name.starts_with("previous/") { &[] } else { list(file, "rejected") };
    list(file, "accepted").iter().chain(rejected).collect()
}

#[test]
fn the_envelope_file_can_be_verified_from_the_outside() {
    envelopes("envelope.json");
}

#[test]
fn envelopes_of_the_version_before_are_accepted() {
    envelopes("previous/envelope.json");
}

fn envelopes(name: &str) {
    let file = read(name);
    let cluster = serde_json::from_value::<NodeState>(file["accepted"][0]["context"].clone()).expect("a context").cluster_id;
    let root = public_key(&file, named("root"));
    let keys = VerifierSet::open(string(&file, "verifier_set").as_bytes(), &root, cluster).expect("the set opens");

    let encoded = unhex(string(&file, "pre_authentication_encoding_hex"));
    let payload = string(&file["accepted"][0], "payload");
    assert!(encoded.ends_with(payload.as_bytes()), "the encoding belongs to the first accepted vector");
    assert!(public_key(&file, named("control_active")).verifies(&encoded, &unhex(string(&file, "signature_hex"))));

    for vector in vectors(&file, name) {
        let node = serde_json::from_value(vector["context"].clone()).expect("a context");
        let found = match envelope_cases::judge(&bytes_of(vector), node, &keys) {
            Ok(verified) => (None, Some(verified.digest().to_string())),
            Err(refusal) => (Some(refusal.code.to_string()), None),
        };
        assert_eq!(found, verdict_of(vector), "{}: {}", vector["name"], vector["why"]);
    }
}

#[test]
fn the_receipt_file_can_be_verified_from_the_outside() {
    receipts("receipt.json");
}

#[test]
fn receipts_of_the_version_before_are_believed() {
    receipts("previous/receipt.json");
}

fn receipts(name: &str) {
    let file = read(name);
    let record: Record = serde_json::from_value(file["record"].clone()).expect("a record");
    let key = public_key(&file, |key| key["key_id"] == file["receipt_key_id"]);
    let expect = receipt::Expectation {
        key: &key,
        cluster_id: record.cluster_id,
        node_id: record.node_id,
        node_epoch: record.node_epoch,
        task_id: record.task_id,
        task_type: record.task_type,
        envelope_digests: &record.envelope_digests,
    };
    for vector in vectors(&file, name) {
        let found = match receipt::verify(&bytes_of(vector), &expect) {
            Ok(verified) => (None, Some(verified.digest().to_string())),
            Err(disbelief) => (Some(disbelief.code().to_owned()), None),
        };
        assert_eq!(found, verdict_of(vector), "{}: {}", vector["name"], vector["why"]);
    }
}

#[test]
fn the_receipt_file_answers_the_envelope_file() {
    let (envelopes, receipts) = (read("envelope.json"), read("receipt.json"));
    assert_eq!(receipts["record"]["envelope_digests"], json!([envelopes["accepted"][0]["digest"]]));
    let second: Value = serde_json::from_str(string(&receipts["accepted"][1], "payload")).expect("a payload");
    assert_eq!(second["previous_receipt"], receipts["accepted"][0]["digest"], "the second receipt names the first");
}

#[test]
fn the_verifier_set_file_can_be_verified_from_the_outside() {
    verifier_sets("verifier_set.json");
}

#[test]
fn verifier_sets_of_the_version_before_are_taken() {
    verifier_sets("previous/verifier_set.json");
}

fn verifier_sets(name: &str) {
    let file = read(name);
    let root = public_key(&file, named("root"));
    let cluster = string(&file, "cluster_id").parse().expect("a cluster id");
    for vector in vectors(&file, name) {
        let code = VerifierSet::open(&bytes_of(vector), &root, cluster).err().map(|error| error.code().to_owned());
        assert_eq!(code, verdict_of(vector).0, "{}: {}", vector["name"], vector["why"]);
    }
    for vector in list(&file, "successions") {
        let open = |field| VerifierSet::open(string(vector, field).as_bytes(), &root, cluster).expect("both sets open");
        let code = open("held").succeed(open("offered")).err().map(|error| error.code().to_owned());
        assert_eq!(code, verdict_of(vector).0, "{}: {}", vector["name"], vector["why"]);
    }
}

#[test]
fn the_readme_explains_every_file_and_every_code() {
    let readme = stored("README.md");
    for name in ["envelope.json", "receipt.json", "verifier_set.json", "link.json", "previous/", "schema/"] {
        assert!(readme.contains(name), "testdata/README.md does not explain {name}");
    }
    for name in ["envelope.json", "receipt.json", "verifier_set.json"] {
        let file = read(name);
        for (field, _) in file.as_object().expect("an object") {
            assert!(readme.contains(&format!("`{field}`")), "testdata/README.md does not explain `{field}` of {name}");
        }
        for vector in list(&file, "rejected") {
            let code = string(vector, "code");
            assert!(readme.contains(&format!("`{code}`")), "testdata/README.md does not explain the code `{code}` of {name}");
        }
    }
}
