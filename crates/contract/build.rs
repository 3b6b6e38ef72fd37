//! Compiles `proto/link.proto` with protox, so that no `protoc` is needed on a fresh machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/link.proto");
    let descriptors = protox::compile(["proto/link.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .build_transport(false)
        // The long-poll transport carries the same messages as JSON.
        .type_attribute(".", "#[derive(serde::Serialize, serde::Deserialize)]")
        .type_attribute(".", "#[serde(rename_all = \"snake_case\")]")
        .message_attribute(".", "#[serde(default)]")
        .field_attribute(".gpuaas.link.v1.Offer.envelope", BASE64)
        .field_attribute(".gpuaas.link.v1.SignedReceipt.receipt", BASE64)
        .field_attribute(".gpuaas.link.v1.VerifierSet.document", BASE64)
        .field_attribute(".gpuaas.link.v1.Hello.resume_proof", BASE64)
        .field_attribute(".gpuaas.link.v1.Welcome.resume_secret", BASE64)
        .compile_fds(descriptors)?;
    Ok(())
}

const BASE64: &str = "#[serde(with = \"crate::bytes_as_base64\")]";
