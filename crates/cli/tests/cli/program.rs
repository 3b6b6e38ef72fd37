//! Runs the program and captures its output.

use std::process::Stdio;

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// Parses the whole of stdout as one JSON document.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }
}

/// Runs `gpuaas` with these arguments and no other configuration.
pub(crate) async fn gpuaas(arguments: &[&str]) -> Ran {
    gpuaas_with(arguments, &[]).await
}

#[expect(clippy::disallowed_types, reason = "a test of the program starts the program")]
pub(crate) async fn gpuaas_with(arguments: &[&str], env: &[(&str, &str)]) -> Ran {
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_gpuaas"))
        .args(arguments)
        .env_clear()
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("the program starts");
    Ran {
        code: output.status.code().expect("it exits by itself"),
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8(output.stderr).expect("text"),
    }
}
