//! What every command gets: the output, and a client on demand.

use std::sync::OnceLock;

use gpuaas_api::{Client, ClientOptions};

use crate::args::Global;
use crate::config;
use crate::error::CliError;
use crate::output::{Format, Output};

/// One run of the program.
pub(crate) struct CommandContext {
    /// How results are printed.
    pub(crate) output: Output,
    global: Global,
    client: OnceLock<Client>,
    project: OnceLock<Option<String>>,
}

impl CommandContext {
    /// Fails if the expression of `--jq` is invalid, or does not go with the output format.
    pub(crate) fn new(global: Global) -> Result<Self, CliError> {
        let output = Output::new(global.output, global.no_color).limited_to(global.columns.clone(), global.quiet);
        let output = match &global.jq {
            Some(_) if matches!(global.output, Format::Wide | Format::Yaml) => {
                let message = "--jq filters JSON; it does not go with -o wide or -o yaml";
                return Err(CliError::usage("usage", message).hint("omit -o, or give -o json"));
            }
            Some(expression) => output.filtered_by(expression)?,
            None => output,
        };
        Ok(Self { output, global, client: OnceLock::new(), project: OnceLock::new() })
    }

    /// Returns the value of `--limit`, or the default.
    pub(crate) fn limit_or(&self, default: usize) -> usize {
        self.global.limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(default)
    }

    /// Returns whether `--limit` was given.
    pub(crate) fn has_limit(&self) -> bool {
        self.global.limit.is_some()
    }

    /// Returns the client. It is created on first use, so that commands that work offline read no config file and need no server.
    pub(crate) fn client(&self) -> Result<&Client, CliError> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let resolved = self.resolved()?;
        for warning in &resolved.warnings {
            self.output.warn(warning);
        }
        self.project.get_or_init(|| resolved.project.clone());
        if !resolved.is_configured && resolved.kept.is_none() {
            let message = format!("there is no profile `{}`", resolved.profile);
            return Err(CliError::usage("profile_unknown", message)
                .hint("`gpuaas profile ls` lists them; `gpuaas login --profile NAME` creates one"));
        }
        let options = self.with_kept_sign_in(resolved)?;
        let has_token = options.token.is_some();
        let client = Client::new(options)?;
        if has_token && client.is_plaintext_over_network() {
            self.output
                .warn(&format!("{} is not encrypted: anyone on the network path can read the token; use https", client.url()));
        }
        Ok(self.client.get_or_init(|| client))
    }

    /// Combines flags, environment and config file.
    pub(crate) fn resolved(&self) -> Result<config::Resolved, CliError> {
        config::resolve(&self.global, |name| std::env::var(name).ok())
    }

    /// Returns the path of the config file, whether or not it exists.
    pub(crate) fn config_file(&self) -> Option<std::path::PathBuf> {
        config::path(&self.global, |name| std::env::var(name).ok()).map(|(path, _)| path)
    }

    /// Returns the profile, as the user wrote it.
    pub(crate) fn requested_profile(&self) -> Option<String> {
        self.global.profile.clone().or_else(|| std::env::var("GPUAAS_PROFILE").ok())
    }

    /// Adds the token of the stored sign-in, renewed if necessary, unless another token is given. A sign-in is only used for the
    /// server that it belongs to.
    fn with_kept_sign_in(&self, resolved: config::Resolved) -> Result<ClientOptions, CliError> {
        let config::Resolved { mut options, profile, credentials, kept, .. } = resolved;
        let (Some(credentials), Some(kept)) = (credentials, kept) else { return Ok(options) };
        if options.token.is_some() || options.unix_socket.is_some() {
            return Ok(options);
        }
        if kept.url.trim_end_matches('/') != options.url.trim_end_matches('/') {
            let text = format!(
                "you are signed in to {}, not to {}; sign in there with `gpuaas login --profile NAME`",
                kept.url, options.url
            );
            self.output.warn(&text);
            return Ok(options);
        }
        // Commands get their client synchronously. Only a renewal has to wait, so only then does this block the thread.
        let fresh =
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(credentials.fresh(&profile, kept)))?;
        options.token = Some(fresh.token);
        Ok(options)
    }

    /// Returns the project to work in, as the user wrote it: from the flag, then the environment, then the config file.
    pub(crate) fn requested_project(&self) -> Result<Option<&str>, CliError> {
        self.client()?;
        Ok(self.project.get().and_then(Option::as_deref))
    }
}
