//! What every command gets: a way to print, and a client when it asks for one.

use std::sync::OnceLock;

use gpuaas_api::Client;

use crate::args::Global;
use crate::config;
use crate::failure::Failure;
use crate::output::Output;

/// One run of the program.
pub(crate) struct Session {
    /// How results are printed.
    pub(crate) output: Output,
    global: Global,
    client: OnceLock<Client>,
}

impl Session {
    pub(crate) fn new(global: Global) -> Self {
        let output = Output::new(global.output, global.no_color);
        Self { output, global, client: OnceLock::new() }
    }

    /// The client. Made on first use: commands that work offline read no config and need no server.
    pub(crate) fn client(&self) -> Result<&Client, Failure> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let resolved = config::resolve(&self.global, |name| std::env::var(name).ok())?;
        for warning in &resolved.warnings {
            self.output.warn(warning);
        }
        let has_token = resolved.options.token.is_some();
        let client = Client::new(resolved.options)?;
        if has_token && client.is_plaintext_over_network() {
            self.output.warn(&format!("{} is not encrypted: everybody on the way can read the token; use https", client.url()));
        }
        Ok(self.client.get_or_init(|| client))
    }
}
