//! Sign-ins that are stored between commands, in one file per profile that only its owner can read.
//!
//! A refresh token can be used only once. Two concurrent commands must not use the same one, so renewing takes a lock, and the
//! second command finds the new tokens.

use std::io::Read as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpuaas_contract::time::Timestamp;
use gpuaas_identity::browser_client::{self, ClientSettings, LoginError, Provider, Tokens};

use crate::error::CliError;
use crate::exit::Exit;
use crate::files::NewFile;

/// The profile that is used if none is named.
pub(crate) const DEFAULT_PROFILE: &str = "default";
/// An access token that expires sooner than this is renewed before it is used.
const RENEW_BEFORE: Duration = Duration::from_secs(60);
/// Largest stored sign-in, in bytes.
const MAX_FILE_BYTES: u64 = 256 * 1024;

/// A stored sign-in.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SignIn {
    /// URL of the server that the sign-in is for. It is never sent to another one.
    pub(crate) url: String,
    /// CA certificates to trust for that server and the issuer, instead of the system's.
    pub(crate) ca_file: Option<PathBuf>,
    /// URL of the OIDC issuer.
    pub(crate) issuer: String,
    /// Client id of this program at the issuer.
    pub(crate) client_id: String,
    /// Scopes that were requested.
    pub(crate) scope: String,
    /// The bearer token that requests carry.
    pub(crate) token: String,
    /// The token with which the next access token is requested.
    pub(crate) refresh_token: Option<String>,
    /// When the bearer token expires.
    pub(crate) ends_at: Timestamp,
}

/// Keeps secrets out of logs.
impl std::fmt::Debug for SignIn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SignIn").field("url", &self.url).field("issuer", &self.issuer).finish_non_exhaustive()
    }
}

impl SignIn {
    /// Returns the client id and scopes for requests to the issuer.
    pub(crate) fn client(&self) -> ClientSettings {
        ClientSettings { client_id: self.client_id.clone(), scope: self.scope.clone() }
    }

    /// Returns the sign-in with new tokens.
    pub(crate) fn with(self, tokens: &Tokens, now: Timestamp) -> Self {
        // Some issuers use opaque access tokens, which the server cannot verify. The ID token then identifies the user.
        let is_readable = tokens.access_token.matches('.').count() == 2;
        let token = match &tokens.id_token {
            Some(id_token) if !is_readable => id_token.to_string(),
            Some(_) | None => tokens.access_token.to_string(),
        };
        let refresh_token = tokens.refresh_token.as_ref().map(|token| token.to_string()).or(self.refresh_token);
        Self { token, refresh_token, ends_at: now.plus(tokens.expires_in), ..self }
    }

    fn is_fresh(&self, now: Timestamp) -> bool {
        now.plus(RENEW_BEFORE) < self.ends_at
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Credentials {
    folder: PathBuf,
}

impl Credentials {
    /// Uses `$XDG_STATE_HOME` or `~/.local/state`. Returns `None` if there is no home folder.
    pub(crate) fn find(env: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let state = env("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let state = state.or_else(|| env("HOME").map(|home| Path::new(&home).join(".local/state")))?;
        Some(Self { folder: state.join("gpuaas") })
    }

    fn file(&self, profile: &str) -> PathBuf {
        self.folder.join("tokens").join(format!("{profile}.json"))
    }

    /// Returns the sign-in of a profile. A file that other users can read is refused: they may have its tokens already.
    pub(crate) fn read(&self, profile: &str) -> Result<Option<SignIn>, CliError> {
        let path = self.file(checked(profile)?);
        let bad = |what: &str| {
            CliError::usage("sign_in_unusable", format!("the kept sign-in {} {what}", path.display()))
                .hint("run `gpuaas logout` and `gpuaas login`")
        };
        let file = match std::fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(bad(&format!("cannot be read: {error}"))),
        };
        let mode = file.metadata().map_err(|error| bad(&format!("cannot be read: {error}")))?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(bad(&format!("can be read by others (mode {:o})", mode & 0o777)));
        }
        let mut bytes = Vec::new();
        file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).map_err(|error| bad(&format!("cannot be read: {error}")))?;
        serde_json::from_slice(&bytes).map(Some).map_err(|_| bad("is damaged"))
    }

    /// Stores a sign-in, replacing the previous one.
    pub(crate) fn write(&self, profile: &str, sign_in: &SignIn) -> Result<(), CliError> {
        let path = self.file(checked(profile)?);
        self.make_folder()?;
        let bytes = serde_json::to_vec_pretty(sign_in).map_err(|error| CliError::internal(error.to_string()))?;
        let mut file = NewFile::create(&path)?;
        file.write(&bytes)?;
        file.finish()
    }

    /// Removes a sign-in. Returns whether there was one.
    pub(crate) fn remove(&self, profile: &str) -> Result<bool, CliError> {
        let path = self.file(checked(profile)?);
        match std::fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(CliError::internal(format!("cannot remove {}: {error}", path.display()))),
        }
    }

    /// Returns the profiles that have a stored sign-in.
    pub(crate) fn profiles(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.join("tokens")).into_iter().flatten().flatten();
        let name = |entry: std::fs::DirEntry| entry.file_name().to_str()?.strip_suffix(".json").map(str::to_owned);
        let mut names: Vec<String> = entries.filter_map(name).filter(|name| checked(name).is_ok()).collect();
        names.sort();
        names
    }

    /// Returns the profile that `gpuaas profile use` chose.
    pub(crate) fn chosen(&self) -> Option<String> {
        let mut name = String::new();
        std::fs::File::open(self.folder.join("profile")).ok()?.take(256).read_to_string(&mut name).ok()?;
        checked(name.trim()).ok().map(str::to_owned)
    }

    /// Chooses a profile for later commands.
    pub(crate) fn choose(&self, profile: &str) -> Result<(), CliError> {
        self.make_folder()?;
        let mut file = NewFile::create(&self.folder.join("profile"))?;
        file.write(format!("{}\n", checked(profile)?).as_bytes())?;
        file.finish()
    }

    fn make_folder(&self) -> Result<(), CliError> {
        let folder = self.folder.join("tokens");
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        made.map_err(|error| CliError::internal(format!("cannot create the folder {}: {error}", folder.display())))
    }

    /// Returns the sign-in of a profile, renewed if its token expires soon.
    pub(crate) async fn fresh(&self, profile: &str, sign_in: SignIn) -> Result<SignIn, CliError> {
        if sign_in.is_fresh(Timestamp::now()) {
            return Ok(sign_in);
        }
        let _lock = self.lock(profile).await?;
        // Another command may have renewed it while this one waited for the lock.
        let sign_in = self.read(profile)?.unwrap_or(sign_in);
        let now = Timestamp::now();
        if sign_in.is_fresh(now) {
            return Ok(sign_in);
        }
        let renewed = async {
            let refresh_token = sign_in.refresh_token.as_deref().ok_or(LoginError::SignInAgain)?;
            let http = issuer_http(&sign_in.issuer, sign_in.ca_file.as_deref())?;
            let provider = Provider::discover(&http, &sign_in.issuer).await?;
            Ok::<_, CliError>(browser_client::refresh(&http, &provider, &sign_in.client(), refresh_token).await?)
        };
        match renewed.await {
            Ok(tokens) => {
                let next = sign_in.with(&tokens, now);
                self.write(profile, &next)?;
                Ok(next)
            }
            // The issuer is unreachable at the moment, but the token is still valid.
            Err(failure) if failure.exit == Exit::Unreachable && now < sign_in.ends_at => Ok(sign_in),
            Err(failure) => Err(failure),
        }
    }

    async fn lock(&self, profile: &str) -> Result<std::fs::File, CliError> {
        self.make_folder()?;
        let path = self.folder.join("tokens").join(format!("{}.lock", checked(profile)?));
        let failed = |error: std::io::Error| CliError::internal(format!("cannot lock the kept sign-in: {error}"));
        let locked = tokio::task::spawn_blocking(move || {
            let file = std::fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
            file.lock().map(|()| file)
        });
        locked.await.map_err(|error| CliError::internal(error.to_string()))?.map_err(failed)
    }
}

/// Checks that a profile's name is usable as a file name.
pub(crate) fn checked(profile: &str) -> Result<&str, CliError> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    if (1..=40).contains(&profile.len()) && profile.bytes().all(plain) {
        return Ok(profile);
    }
    Err(CliError::usage("profile_invalid", "a profile's name has 1 to 40 letters, digits, dashes or underscores"))
}

/// Returns an HTTP client for an issuer.
pub(crate) fn issuer_http(issuer: &str, ca_file: Option<&Path>) -> Result<browser_client::HttpClient, CliError> {
    let is_https = issuer.starts_with("https://");
    let client = browser_client::http_client(gpuaas_api::tls_config(is_https, ca_file)?, !is_https);
    client.map_err(|error| CliError::internal(format!("the HTTP client cannot be made: {error}")))
}

impl From<LoginError> for CliError {
    fn from(error: LoginError) -> Self {
        let exit = match &error {
            LoginError::Issuer(_) => Exit::Unreachable,
            LoginError::NotOffered { .. } => Exit::Usage,
            LoginError::Listen(_) => Exit::Internal,
            LoginError::TimedOut => Exit::Timeout,
            LoginError::Denied
            | LoginError::CodeExpired
            | LoginError::SignInAgain
            | LoginError::Refused { .. }
            | LoginError::Mismatch { .. } => Exit::Unauthorized,
        };
        let mut failure = Self::new(exit, error.code(), error.to_string());
        failure.cause = std::error::Error::source(&error).map(gpuaas_control::link::chain);
        match error {
            LoginError::SignInAgain => failure.hint("run `gpuaas login`"),
            LoginError::Issuer(_) => failure.hint("name the issuer with --issuer if it is not the server itself"),
            LoginError::NotOffered { .. }
            | LoginError::Listen(_)
            | LoginError::TimedOut
            | LoginError::Denied
            | LoginError::CodeExpired
            | LoginError::Refused { .. }
            | LoginError::Mismatch { .. } => failure,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(token: &str) -> SignIn {
        SignIn {
            url: "http://x".to_owned(),
            ca_file: None,
            issuer: "http://x".to_owned(),
            client_id: "gpuaas-cli".to_owned(),
            scope: "openid".to_owned(),
            token: token.to_owned(),
            refresh_token: None,
            ends_at: Timestamp::now().plus(Duration::from_secs(3600)),
        }
    }

    fn place() -> (tempfile::TempDir, Credentials) {
        let folder = tempfile::tempdir().expect("a folder");
        let home = folder.path().display().to_string();
        let credentials = Credentials::find(|name| (name == "HOME").then(|| home.clone())).expect("a place");
        (folder, credentials)
    }

    #[test]
    fn a_kept_sign_in_is_for_its_owner_only() {
        let (_folder, credentials) = place();
        assert_eq!(credentials.read("work").expect("nothing"), None);
        credentials.write("work", &kept("t")).expect("written");
        let path = credentials.file("work");
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(credentials.read("work").expect("read").expect("there").token, "t");
        assert_eq!(credentials.profiles(), ["work"]);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).expect("set");
        assert_eq!(credentials.read("work").expect_err("refused").code, "sign_in_unusable");
        assert!(credentials.remove("work").expect("removed") && !credentials.remove("work").expect("again"));
    }

    #[test]
    fn profiles_have_names_that_stay_in_their_folder() {
        let (_folder, credentials) = place();
        for bad in ["", "../x", "a/b", "a b", ".", &"x".repeat(41)] {
            assert_eq!(credentials.read(bad).expect_err("refused").code, "profile_invalid", "{bad}");
        }
        assert_eq!(credentials.chosen(), None);
        credentials.choose("work").expect("chosen");
        assert_eq!(credentials.chosen().as_deref(), Some("work"));
    }

    #[tokio::test]
    async fn a_token_that_is_still_good_is_used_and_one_that_ended_needs_a_login() {
        let (_folder, credentials) = place();
        assert_eq!(credentials.fresh("work", kept("t")).await.expect("good").token, "t");
        let ended = SignIn { ends_at: Timestamp::now(), ..kept("t") };
        let failure = credentials.fresh("work", ended).await.expect_err("ended");
        assert_eq!((failure.exit, failure.code.as_str()), (Exit::Unauthorized, "login_needed"));
        assert!(failure.hint.is_some_and(|hint| hint.contains("gpuaas login")));
    }
}
