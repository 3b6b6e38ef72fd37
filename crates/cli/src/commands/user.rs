//! `gpuaas user`.

use clap::Subcommand;
use gpuaas_api::Client;
use gpuaas_api::dto::{Reason, User, UserCreate, UserListQuery, UserPassword};

use super::confirm::ConfirmArgs;
use super::{age, moment};
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::files;
use crate::list::{Changes, List, ListArgs, when_empty};
use crate::output::{Details, Table, View};
use crate::pages::{self, MAX_ITEMS};

/// Largest password file, in bytes.
const MAX_PASSWORD_FILE: u64 = 4 * 1024;

/// Users. A user is named by e-mail address or id.
#[derive(Debug, Subcommand)]
pub(crate) enum UserCommand {
    /// List users.
    #[command(alias = "list")]
    Ls {
        /// Only users with this e-mail address.
        #[arg(long)]
        email: Option<String>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Create a user with a password. A user has no permissions until they get a role (`gpuaas member add`).
    Create {
        /// E-mail address.
        email: String,
        /// Display name.
        #[arg(long, default_value = "")]
        name: String,
        /// File with the password, `-` for stdin [default: generate one and show it once].
        #[arg(long, value_name = "FILE")]
        password_file: Option<std::path::PathBuf>,
    },
    /// Set a user's password. Ends all their sign-ins.
    SetPassword {
        /// The user.
        user: String,
        /// File with the password, `-` for stdin [default: generate one and show it once].
        #[arg(long, value_name = "FILE")]
        password_file: Option<std::path::PathBuf>,
    },
    /// Deactivate a user: they can no longer sign in. Asks for their e-mail address first.
    Deactivate {
        /// The user.
        user: String,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
    /// Delete a user with their roles, their sign-ins and every key they created. To keep the keys, deactivate the user.
    #[command(alias = "rm")]
    Delete {
        /// The user.
        user: String,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
    /// Reactivate a user, who can then sign in again. Earlier sign-ins stay ended.
    Reactivate {
        /// The user.
        user: String,
    },
}

pub(super) async fn run(session: &CommandContext, command: UserCommand) -> Result<Exit, CliError> {
    let client = session.client()?;
    match command {
        UserCommand::Ls { email, list: args } => {
            let fetch = async |after, limit| {
                let query = UserListQuery { email: email.clone(), state: None, after, limit: Some(limit) };
                client.users(&query).await
            };
            let list = List {
                changes: Changes::Platform("user"),
                time: |user: &User| Some(user.created_at),
                limit: MAX_ITEMS,
                view: table,
                advice: when_empty("no user matches; `gpuaas user create EMAIL` creates one"),
            };
            return list.run(session, args, async |limit| Ok(pages::collect(limit, &fetch).await?)).await;
        }
        UserCommand::Create { email, name, password_file } => {
            let password = password_file.as_deref().map(password_from).transpose()?;
            let made = client.user_create(&UserCreate { email, name, password }, None).await?;
            session
                .output
                .print(&made, |made| View::Details(details(&made.user).maybe("password", made.one_time_password.as_ref())))?;
            session.output.hint("the user has no permissions yet; `gpuaas member add` gives them a role");
        }
        UserCommand::SetPassword { user, password_file } => {
            let id = find(client, &user).await?.id.to_string();
            let password = password_file.as_deref().map(password_from).transpose()?;
            let set = client.user_password_set(&id, &UserPassword { password }).await?;
            session
                .output
                .print(&set, |set| View::Details(details(&set.user).maybe("password", set.one_time_password.as_ref())))?;
        }
        UserCommand::Deactivate { user, confirm } => {
            let found = find(client, &user).await?;
            let question = format!("Deactivate {}? They are signed out everywhere and cannot sign in.", found.email);
            confirm.ask_for_name(&question, &found.email)?;
            let gone = client.user_deactivate(&found.id.to_string(), &Reason::default()).await?;
            session.output.print(&gone, |gone| View::Details(details(gone)))?;
        }
        UserCommand::Delete { user, confirm } => {
            let found = find(client, &user).await?;
            let question = format!("Delete {}? Their roles, their sign-ins and the keys they created end.", found.email);
            confirm.ask_for_name(&question, &found.email)?;
            let gone = client.user_delete(&found.id.to_string()).await?;
            session.output.print(&gone, |gone| View::Details(details(gone)))?;
        }
        UserCommand::Reactivate { user } => {
            let id = find(client, &user).await?.id.to_string();
            let back = client.user_reactivate(&id, &Reason::default()).await?;
            session.output.print(&back, |back| View::Details(details(back)))?;
        }
    }
    Ok(Exit::Done)
}

/// Returns the user with this id or e-mail address.
async fn find(client: &Client, user: &str) -> Result<User, CliError> {
    let by_email = user.contains('@');
    let query = UserListQuery { email: by_email.then(|| user.to_owned()), ..UserListQuery::default() };
    let unknown = || {
        CliError::new(Exit::NotFound, "user_unknown", format!("there is no user `{user}`")).hint("`gpuaas user ls` lists them")
    };
    if !by_email {
        let users = pages::collect(MAX_ITEMS, async |after, limit| {
            let query = UserListQuery { after, limit: Some(limit), ..UserListQuery::default() };
            client.users(&query).await
        });
        return users.await?.items.into_iter().find(|known| known.id.to_string() == user).ok_or_else(unknown);
    }
    let mut found = client.users(&query).await?.items;
    match (found.pop(), found.is_empty()) {
        (Some(user), true) => Ok(user),
        (Some(_), false) => {
            let failure = CliError::usage("user_ambiguous", format!("several issuers know `{user}`"));
            Err(failure.hint("name the user by the id in `gpuaas user ls`"))
        }
        (None, _) => Err(unknown()),
    }
}

pub(super) fn password_from(path: &std::path::Path) -> Result<String, CliError> {
    let bytes = files::read(path, MAX_PASSWORD_FILE)?;
    let text = String::from_utf8(bytes).map_err(|_| CliError::usage("password_invalid", "the password is not UTF-8"))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn table(users: &[User]) -> View {
    if users.is_empty() {
        return View::Nothing;
    }
    let mut table = Table::new(["ID", "E-MAIL", "NAME", "ISSUER", "STATE", "AGE"]);
    for user in users {
        let issuer = if user.local { "built-in".to_owned() } else { user.issuer.clone() };
        let age = age(Some(user.created_at));
        table.row([user.id.to_string(), user.email.clone(), user.name.clone(), issuer, user.state.to_string(), age]);
    }
    View::Table(table)
}

fn details(user: &User) -> Details {
    Details::default()
        .field("id", user.id)
        .field("e-mail", &user.email)
        .field("name", &user.name)
        .field("issuer", &user.issuer)
        .field("state", &user.state)
        .field("created", moment(user.created_at))
        .maybe("deactivated", user.deactivated_at.map(moment))
        .maybe("deleted", user.deleted_at.map(moment))
}
