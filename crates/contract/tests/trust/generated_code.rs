//! The Rust code of the link protocol, generated from `proto/link.proto` and checked in.
//!
//! All crates depend on the contract, and compiling the generator would take longer than everything before it. Only this test needs it.

use std::path::Path;

#[test]
fn the_generated_code_is_that_of_the_protocol() {
    const NAME: &str = "gpuaas.link.v1.rs";
    let here = std::env::var_os("CARGO_MANIFEST_DIR").expect("run this test with cargo");
    let file = Path::new(&here).join("src/generated").join(NAME);
    let made = generate(&Path::new(&here).join("proto"), NAME);
    if std::env::var_os("UPDATE_VECTORS").is_some_and(|value| value == "1") {
        std::fs::write(&file, &made).expect("write the generated code");
    }
    let found = std::fs::read_to_string(&file).expect("read the generated code");
    assert!(
        found == made,
        "src/generated/{NAME} differs from what proto/link.proto says: run `UPDATE_VECTORS=1 cargo test -p gpuaas-contract`"
    );
}

fn generate(folder: &Path, name: &str) -> String {
    const BASE64: &str = "#[serde(with = \"crate::bytes_as_base64\")]";
    let descriptors = protox::compile(["link.proto"], [folder]).expect("the protocol compiles");
    let out = tempfile::tempdir().expect("a folder");
    tonic_prost_build::configure()
        .build_transport(false)
        .emit_rerun_if_changed(false)
        .out_dir(out.path())
        // The long-poll transport carries the same messages as JSON.
        .type_attribute(".", "#[derive(serde::Serialize, serde::Deserialize)]")
        .type_attribute(".", "#[serde(rename_all = \"snake_case\")]")
        .message_attribute(".", "#[serde(default)]")
        .field_attribute(".gpuaas.link.v1.Offer.envelope", BASE64)
        .field_attribute(".gpuaas.link.v1.SignedReceipt.receipt", BASE64)
        .field_attribute(".gpuaas.link.v1.VerifierSet.document", BASE64)
        .field_attribute(".gpuaas.link.v1.Hello.resume_proof", BASE64)
        .field_attribute(".gpuaas.link.v1.Welcome.resume_secret", BASE64)
        .compile_fds(descriptors)
        .expect("generate the code");
    let text = std::fs::read_to_string(out.path().join(name)).expect("read what was generated");
    // prost would add an attribute of a `oneof` to each of its variants as well.
    const KIND: &str = "    pub message: ::core::option::Option<";
    let known = format!("    #[serde(deserialize_with = \"crate::link::version::known_kind\")]\n{KIND}");
    assert_eq!(text.matches(KIND).count(), 2, "one for each direction");
    text.replace(KIND, &known)
}
