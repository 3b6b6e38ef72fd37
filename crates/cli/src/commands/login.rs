//! `gpuaas login`, `gpuaas logout` and `gpuaas whoami`.

use std::io::IsTerminal as _;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use gpuaas_api::Client;
use gpuaas_api::dto::{OwnPassword, WhoAmI};
use gpuaas_contract::time::Timestamp;
use gpuaas_identity::browser_client::{self, BrowserLogin, ClientSettings, DeviceLogin, Provider, Tokens};
use indicatif::{ProgressBar, ProgressStyle};

use super::moment;
use crate::context::CommandContext;
use crate::credentials::{Credentials, SignIn, issuer_http};
use crate::error::CliError;
use crate::exit::Exit;
use crate::hidden;
use crate::output::{Details, Table, View};

/// Options of `gpuaas login`.
#[derive(Debug, Args)]
pub(crate) struct LoginArgs {
    /// Show a code to type into a browser on another machine, instead of opening one here.
    #[arg(long)]
    device: bool,
    /// OIDC issuer [default: the server itself].
    #[arg(long, value_name = "URL")]
    issuer: Option<String>,
    /// Client id of this program at the issuer.
    #[arg(long, value_name = "ID", default_value = "gpuaas-cli")]
    client_id: String,
    /// Scopes to request from the issuer.
    #[arg(long, value_name = "SCOPES", default_value = "openid profile email offline_access")]
    scope: String,
    /// Print the address instead of opening a browser.
    #[arg(long)]
    no_browser: bool,
}

/// Signs in, and stores the sign-in for later commands.
pub(super) async fn run(session: &CommandContext, args: LoginArgs) -> Result<Exit, CliError> {
    let resolved = session.resolved()?;
    for warning in &resolved.warnings {
        session.output.warn(warning);
    }
    let homeless = || CliError::usage("no_home", "neither HOME nor XDG_STATE_HOME is set, so a sign-in cannot be kept");
    let credentials = resolved.credentials.ok_or_else(homeless)?;
    let mut options = resolved.options;
    if options.unix_socket.take().is_some() {
        return Err(CliError::usage(
            "socket_needs_no_login",
            "the local socket needs no sign-in; run the command without --socket",
        ));
    }
    let url = options.url.trim_end_matches('/').to_owned();
    let issuer = args.issuer.as_deref().unwrap_or(&url).to_owned();
    let http = issuer_http(&issuer, options.ca_file.as_deref())?;
    let provider = Provider::discover(&http, &issuer).await?;
    let client = ClientSettings { client_id: args.client_id, scope: args.scope };
    let tokens = if args.device {
        with_code(session, &http, &provider, &client).await?
    } else {
        with_browser(session, &http, &provider, &client, !args.no_browser).await?
    };
    let sign_in = SignIn {
        url: url.clone(),
        ca_file: options.ca_file.as_deref().map(absolute),
        issuer,
        client_id: client.client_id,
        scope: client.scope,
        token: String::new(),
        refresh_token: None,
        ends_at: Timestamp::now(),
    };
    let sign_in = sign_in.with(&tokens, Timestamp::now());
    let has_other_token = options.token.replace(sign_in.token.clone()).is_some();
    // Stored only if the server accepts it.
    let who = Client::new(options)?.whoami().await?;
    credentials.write(&resolved.profile, &sign_in)?;
    session.output.hint(&format!("signed in to {url}, profile `{}`", resolved.profile));
    if has_other_token {
        let text = "a token from a flag, the environment or the config file is still used instead of this sign-in; remove it";
        session.output.warn(text);
    }
    show(session, &who)
}

fn absolute(path: &Path) -> std::path::PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

async fn with_browser(
    session: &CommandContext,
    http: &browser_client::HttpClient,
    provider: &Provider,
    client: &ClientSettings,
    may_open: bool,
) -> Result<Tokens, CliError> {
    let login = BrowserLogin::start(provider, client).await?;
    let is_open = may_open && gpuaas_host::open_browser(login.url());
    let what =
        if is_open { "your browser opens; if it does not, open this in it:" } else { "open this in a browser on this machine:" };
    session.output.hint(what);
    session.output.hint(&format!("  {}", login.url()));
    let spinner = spinner("waiting for the sign-in in the browser (Ctrl-C cancels)");
    let tokens = login.finish(http).await;
    spinner.finish_and_clear();
    Ok(tokens?)
}

async fn with_code(
    session: &CommandContext,
    http: &browser_client::HttpClient,
    provider: &Provider,
    client: &ClientSettings,
) -> Result<Tokens, CliError> {
    let login = DeviceLogin::start(http, provider, client, Timestamp::now()).await?;
    session.output.hint(&format!("open {} in any browser and type the code", login.verification_uri()));
    session.output.hint(&format!("  {}", login.user_code()));
    let spinner = spinner("waiting for the code to be approved (Ctrl-C cancels)");
    let tokens = login.finish(http).await;
    spinner.finish_and_clear();
    Ok(tokens?)
}

/// Shows a spinner, if stderr is a terminal.
fn spinner(text: &'static str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner().with_message(text);
    if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed:>4} {wide_msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

/// Ends the sign-in, on this machine and at the issuer.
pub(super) async fn sign_out(session: &CommandContext) -> Result<Exit, CliError> {
    let resolved = session.resolved();
    // A stored sign-in that cannot be used is still removed.
    let (credentials, profile, kept) = match resolved {
        Ok(resolved) => (resolved.credentials, resolved.profile, resolved.kept),
        Err(failure) if failure.code == "sign_in_unusable" => {
            let credentials = Credentials::find(|name| std::env::var(name).ok());
            let profile = session.requested_profile().or_else(|| credentials.as_ref().and_then(Credentials::chosen));
            (credentials, profile.unwrap_or_else(|| crate::credentials::DEFAULT_PROFILE.to_owned()), None)
        }
        Err(failure) => return Err(failure),
    };
    if let Some(kept) = &kept
        && let Err(failure) = revoke(kept).await
    {
        let text =
            format!("the issuer could not revoke the sign-in ({}); its tokens stay valid until they expire", failure.message);
        session.output.warn(&text);
    }
    let was_there = credentials.map(|credentials| credentials.remove(&profile)).transpose()?.unwrap_or_default();
    session.output.hint(&if was_there {
        format!("signed out, profile `{profile}`")
    } else {
        format!("profile `{profile}` was not signed in")
    });
    Ok(Exit::Done)
}

async fn revoke(kept: &SignIn) -> Result<(), CliError> {
    let http = issuer_http(&kept.issuer, kept.ca_file.as_deref())?;
    let provider = Provider::discover(&http, &kept.issuer).await?;
    let token = kept.refresh_token.as_deref().unwrap_or(&kept.token);
    Ok(browser_client::revoke(&http, &provider, &kept.client(), token).await?)
}

pub(super) async fn whoami(session: &CommandContext) -> Result<Exit, CliError> {
    let who = session.client()?.whoami().await?;
    show(session, &who)
}

/// Options of `gpuaas password`.
#[derive(Debug, clap::Args)]
pub(crate) struct PasswordArgs {
    /// File with the current password, `-` for stdin [default: ask on the terminal].
    #[arg(long, value_name = "FILE")]
    current_file: Option<std::path::PathBuf>,
    /// File with the new password [default: ask on the terminal].
    #[arg(long, value_name = "FILE")]
    new_file: Option<std::path::PathBuf>,
}

pub(super) async fn password(session: &CommandContext, args: PasswordArgs) -> Result<Exit, CliError> {
    let client = session.client()?;
    let current_password = match &args.current_file {
        Some(path) => super::user::password_from(path)?,
        None => hidden::ask("Current password: ")?,
    };
    let new_password = match &args.new_file {
        Some(path) => super::user::password_from(path)?,
        None => {
            let first = hidden::ask("New password: ")?;
            if first != hidden::ask("Repeat the new password: ")? {
                return Err(CliError::usage("passwords_differ", "the two new passwords differ; nothing was changed"));
            }
            first
        }
    };
    client.own_password_set(&OwnPassword { current_password, new_password }).await?;
    session.output.hint("your password is changed, and all your sign-ins have ended; `gpuaas login` signs you in again");
    Ok(Exit::Done)
}

fn show(session: &CommandContext, who: &WhoAmI) -> Result<Exit, CliError> {
    session.output.print(who, |who| {
        let details = Details::default()
            .field("kind", who.kind.as_str().replace('_', " "))
            .field("id", &who.id)
            .field("name", &who.name)
            .maybe("e-mail", who.email.as_ref())
            .maybe("role on the platform", who.platform_role.as_ref());
        if who.memberships.is_empty() {
            return View::Details(details);
        }
        let mut table = Table::new(["PLACE", "NAME", "ROLE"]);
        for membership in &who.memberships {
            table.row([membership.at.clone(), membership.place_name.clone(), membership.role.to_string()]);
        }
        View::DetailsAndTable(details, table)
    })?;
    if !who.invited && session.output.is_table() {
        session.output.hint("you have no role yet; ask an owner or an administrator for an invitation");
    }
    Ok(Exit::Done)
}

/// Returns until when a sign-in is valid, in plain words.
pub(super) fn good_until(kept: &SignIn) -> String {
    match kept.refresh_token {
        Some(_) => "renewed automatically".to_owned(),
        None => moment(kept.ends_at),
    }
}
