//! Options of `gpuaas server` for the certificate authority.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use gpuaas_control::pki::{CaConfig, StepCaConfig};

use crate::error::CliError;

/// The certificate authority of a cluster.
#[derive(Debug, Args)]
pub(crate) struct CaArgs {
    /// CA for the certificates of nodes and of the link. A cluster keeps the CA that it was created with.
    #[arg(long, env = "GPUAAS_CA", value_enum, default_value_t)]
    ca: CaChoice,
    /// URL of step-ca: `https://host:port`.
    #[arg(long, env = "GPUAAS_STEP_CA_URL", value_name = "URL")]
    step_ca_url: Option<String>,
    /// Root certificate of step-ca: a PEM file, or its SHA-256 fingerprint as `step certificate fingerprint` prints it.
    #[arg(long, env = "GPUAAS_STEP_CA_ROOT", value_name = "FILE|SHA256")]
    step_ca_root: Option<String>,
    /// Name of step-ca's X5C provisioner for this cluster.
    #[arg(long, env = "GPUAAS_STEP_CA_PROVISIONER", value_name = "NAME", default_value = "gpuaas")]
    step_ca_provisioner: String,
    /// PEM chain of the enrollment certificate that this provisioner trusts. Read again for every request.
    #[arg(long, env = "GPUAAS_STEP_CA_CERT", value_name = "FILE")]
    step_ca_cert: Option<PathBuf>,
    /// PEM key for --step-ca-cert.
    #[arg(long, env = "GPUAAS_STEP_CA_KEY", value_name = "FILE")]
    step_ca_key: Option<PathBuf>,
}

/// Certificate authority of the cluster.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum CaChoice {
    /// A built-in CA, with its keys in the data folder.
    #[default]
    BuiltIn,
    /// A step-ca; the control plane holds no CA key.
    StepCa,
}

impl CaArgs {
    /// Returns the server's configuration of the CA.
    pub(crate) fn config(self) -> Result<CaConfig, CliError> {
        match self.ca {
            CaChoice::BuiltIn => Ok(CaConfig::BuiltIn),
            CaChoice::StepCa => Ok(CaConfig::StepCa(StepCaConfig {
                url: needed(self.step_ca_url, "--step-ca-url")?,
                root: needed(self.step_ca_root, "--step-ca-root")?,
                provisioner: self.step_ca_provisioner,
                certificate: needed(self.step_ca_cert, "--step-ca-cert")?,
                key: needed(self.step_ca_key, "--step-ca-key")?,
            })),
        }
    }
}

fn needed<T>(value: Option<T>, option: &str) -> Result<T, CliError> {
    value.ok_or_else(|| {
        CliError::usage("step_ca_incomplete", format!("--ca step-ca needs {option}"))
            .hint("docs/certificates.md shows a whole setup")
    })
}
