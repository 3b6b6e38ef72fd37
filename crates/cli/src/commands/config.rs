//! `gpuaas config`: the config file of this user.

use clap::{Subcommand, ValueEnum};

use crate::config;
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::{Details, View};

/// The config file, `~/.config/gpuaas/config.toml` unless --config names another one.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Show the settings in effect: flags, then environment, then the config file, then defaults.
    #[command(alias = "get")]
    Show,
    /// Set a key of the profile in use. The rest of the file is not changed.
    ///
    /// For example: gpuaas config set project acme/training
    Set {
        /// Key to set.
        key: Key,
        /// Value; `none` removes the key.
        value: String,
    },
}

/// A key of the config file. A token belongs in a file of its own, which `token_file` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Key {
    /// Address of the server.
    Url,
    /// File with the API token.
    TokenFile,
    /// PEM file with the certificate authorities to trust.
    CaFile,
    /// Project to work in.
    Project,
}

impl Key {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Url => "url",
            Self::TokenFile => "token_file",
            Self::CaFile => "ca_file",
            Self::Project => "project",
        }
    }
}

/// The settings in effect, for `-o json`. Never contains a secret.
#[derive(serde::Serialize)]
struct Effective {
    file: Option<String>,
    profile: String,
    url: String,
    project: Option<String>,
    ca_file: Option<String>,
    has_token: bool,
}

pub(super) fn run(session: &CommandContext, command: &ConfigCommand) -> Result<Exit, CliError> {
    match command {
        ConfigCommand::Show => {
            let resolved = session.resolved()?;
            let shown = Effective {
                file: session.config_file().map(|path| path.display().to_string()),
                profile: resolved.profile,
                url: resolved.options.url.clone(),
                project: resolved.project,
                ca_file: resolved.options.ca_file.as_ref().map(|path| path.display().to_string()),
                has_token: resolved.options.token.is_some() || resolved.kept.is_some(),
            };
            session.output.print(&shown, |shown| {
                View::Details(
                    Details::default()
                        .maybe("file", shown.file.as_ref())
                        .field("profile", &shown.profile)
                        .field("url", &shown.url)
                        .maybe("project", shown.project.as_ref())
                        .maybe("CA file", shown.ca_file.as_ref())
                        .field("token", if shown.has_token { "yes" } else { "no" }),
                )
            })?;
        }
        ConfigCommand::Set { key, value } => {
            let value = Some(value.as_str()).filter(|value| *value != "none");
            set(session, *key, value)?;
        }
    }
    Ok(Exit::Done)
}

/// Sets a key in the profile in use, and prints which file was changed.
pub(super) fn set(session: &CommandContext, key: Key, value: Option<&str>) -> Result<(), CliError> {
    let profile = session.resolved()?.profile;
    let homeless = || CliError::usage("no_home", "neither HOME nor XDG_CONFIG_HOME is set; name a file with --config");
    let path = session.config_file().ok_or_else(homeless)?;
    config::set(&path, &profile, key.as_str(), value)?;
    let (key, path) = (key.as_str(), path.display());
    match value {
        Some(value) => session.output.hint(&format!("{key} is now {value} ({path}, profile {profile})")),
        None => session.output.hint(&format!("{key} is no longer set ({path}, profile {profile})")),
    }
    Ok(())
}
