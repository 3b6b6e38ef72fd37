//! `gpuaas profile`: one profile per server or user.

use clap::Subcommand;

use super::login::good_until;
use crate::context::CommandContext;
use crate::credentials::DEFAULT_PROFILE;
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::{Table, View};

/// Profiles: sections `[profiles.NAME]` of the config file, or created by `gpuaas login --profile NAME`.
#[derive(Debug, Subcommand)]
pub(crate) enum ProfileCommand {
    /// List profiles.
    #[command(alias = "list")]
    Ls,
    /// Choose the profile for later commands.
    Use {
        /// Name; `default` for the keys outside of all sections.
        name: String,
    },
    /// Remove the sign-in of a profile from this machine, without revoking it at the issuer.
    Rm {
        /// Name.
        name: String,
    },
}

/// One profile, for `-o json`.
#[derive(serde::Serialize)]
struct Shown {
    name: String,
    chosen: bool,
    configured: bool,
    signed_in: bool,
    url: Option<String>,
    issuer: Option<String>,
    good_until: Option<String>,
}

pub(super) fn run(session: &CommandContext, command: &ProfileCommand) -> Result<Exit, CliError> {
    let resolved = session.resolved()?;
    let homeless = || CliError::usage("no_home", "neither HOME nor XDG_STATE_HOME is set, so there are no profiles");
    let credentials = resolved.credentials.ok_or_else(homeless)?;
    match command {
        ProfileCommand::Ls => {
            let mut names = credentials.profiles();
            names.extend(resolved.configured.iter().cloned());
            names.extend([DEFAULT_PROFILE.to_owned(), resolved.profile.clone()]);
            names.sort();
            names.dedup();
            let mut shown = Vec::with_capacity(names.len());
            for name in names {
                // A sign-in that cannot be read is shown as not signed in; using it reports the reason.
                let kept = credentials.read(&name).ok().flatten();
                shown.push(Shown {
                    chosen: name == resolved.profile,
                    configured: name == DEFAULT_PROFILE || resolved.configured.contains(&name),
                    signed_in: kept.is_some(),
                    url: kept.as_ref().map(|kept| kept.url.clone()),
                    issuer: kept.as_ref().map(|kept| kept.issuer.clone()),
                    good_until: kept.as_ref().map(good_until),
                    name,
                });
            }
            session.output.print(&shown, |shown| {
                let mut table = Table::new(["PROFILE", "CHOSEN", "SIGNED IN TO", "VALID UNTIL"]);
                for profile in shown {
                    let chosen = if profile.chosen { "yes" } else { "" };
                    let (url, until) = (profile.url.clone().unwrap_or_default(), profile.good_until.clone().unwrap_or_default());
                    table.row([profile.name.clone(), chosen.to_owned(), url, until]);
                }
                View::Table(table)
            })?;
        }
        ProfileCommand::Use { name } => {
            let is_known = name == DEFAULT_PROFILE || resolved.configured.contains(name) || credentials.read(name)?.is_some();
            if !is_known {
                let failure = CliError::new(Exit::NotFound, "profile_unknown", format!("there is no profile `{name}`"));
                return Err(failure.hint(format!("`gpuaas login --profile {name}` creates it")));
            }
            credentials.choose(name)?;
            session.output.hint(&format!("profile `{name}` is now in use"));
        }
        ProfileCommand::Rm { name } => {
            if !credentials.remove(name)? {
                return Err(CliError::new(Exit::NotFound, "profile_unknown", format!("profile `{name}` is not signed in")));
            }
            if credentials.chosen().as_deref() == Some(name) {
                credentials.choose(DEFAULT_PROFILE)?;
            }
            session.output.hint(&format!("the sign-in of profile `{name}` is removed; its section of the config file stays"));
        }
    }
    Ok(Exit::Done)
}
