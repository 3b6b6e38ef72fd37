//! Where the server is and how to connect to it: from flags, then the environment, then the config file, then defaults.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use gpuaas_api::ClientOptions;
use gpuaas_contract::id::CorrelationId;

use crate::args::Global;
use crate::credentials::{self, Credentials, SignIn};
use crate::error::CliError;

/// Where `gpuaas dev` and `gpuaas server` listen by default.
pub(crate) const DEFAULT_URL: &str = "http://127.0.0.1:8080";
/// Largest config or token file, in bytes.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// The config file, `~/.config/gpuaas/config.toml`.
#[derive(Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    url: Option<String>,
    token: Option<String>,
    token_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    project: Option<String>,
    #[serde(default)]
    profiles: BTreeMap<String, Section>,
}

/// A section `[profiles.NAME]`: the same keys, for another server or another user.
#[derive(Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    url: Option<String>,
    token: Option<String>,
    token_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    project: Option<String>,
}

impl ConfigFile {
    /// Returns the settings of this profile (its section, or the keys outside of all sections), and whether the file has the profile.
    fn of_profile(mut self, profile: &str) -> (Self, bool) {
        match self.profiles.remove(profile) {
            Some(Section { url, token, token_file, ca_file, project }) => {
                (Self { url, token, token_file, ca_file, project, profiles: BTreeMap::new() }, true)
            }
            None if profile == credentials::DEFAULT_PROFILE => (self, true),
            None => (Self::default(), false),
        }
    }
}

/// The client options, and warnings to show to the user.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) options: ClientOptions,
    /// The project to work in, as the user wrote it; not resolved to an id yet.
    pub(crate) project: Option<String>,
    /// Name of the profile in use.
    pub(crate) profile: String,
    /// Names of the profiles that have a section in the config file.
    pub(crate) configured: Vec<String>,
    /// Whether the config file has the profile in use.
    pub(crate) is_configured: bool,
    /// Where sign-ins are stored. `None` if there is no home folder.
    pub(crate) credentials: Option<Credentials>,
    /// The stored sign-in of the profile. It is used only if no token is given in another way.
    pub(crate) kept: Option<SignIn>,
    pub(crate) warnings: Vec<String>,
}

/// Combines flags, environment and config file.
pub(crate) fn resolve(global: &Global, env: impl Fn(&str) -> Option<String>) -> Result<Resolved, CliError> {
    let env = |name: &str| env(name).filter(|value| !value.is_empty());
    let mut warnings = Vec::new();
    let credentials = Credentials::find(env);
    let profile =
        global.profile.clone().or_else(|| env("GPUAAS_PROFILE")).or_else(|| credentials.as_ref().and_then(Credentials::chosen));
    let profile = profile.unwrap_or_else(|| credentials::DEFAULT_PROFILE.to_owned());
    credentials::checked(&profile)?;
    let kept = credentials.as_ref().map(|credentials| credentials.read(&profile)).transpose()?.flatten();
    let (file, folder) = config_file(global, &env, &mut warnings)?;
    let configured = file.profiles.keys().cloned().collect();
    let (file, is_configured) = file.of_profile(&profile);
    let unix_socket = global.socket.clone().or_else(|| env("GPUAAS_SOCKET").map(PathBuf::from));
    // A relative path in the config file is relative to the config file, wherever the command is run.
    let beside = |path: PathBuf| folder.join(path);

    let kept_url = kept.as_ref().map(|kept| kept.url.clone());
    let url = match &unix_socket {
        // Only used as the host name: the socket itself determines the server.
        Some(_) => "http://localhost".to_owned(),
        None => {
            let url = global.url.clone().or_else(|| env("GPUAAS_URL")).or(file.url).or(kept_url);
            url.unwrap_or_else(|| DEFAULT_URL.to_owned())
        }
    };
    let token = if let Some(token) = &global.token {
        Some(token.clone())
    } else if let Some(path) = &global.token_file {
        Some(token_from(path, &mut warnings)?)
    } else if unix_socket.is_some() {
        // The local socket needs no token. One from the environment is ignored: the caller may be here because it does not work.
        None
    } else if let Some(token) = env("GPUAAS_TOKEN") {
        Some(token)
    } else if let Some(path) = env("GPUAAS_TOKEN_FILE") {
        Some(token_from(Path::new(&path), &mut warnings)?)
    } else if let Some(token) = file.token {
        Some(token)
    } else if let Some(path) = file.token_file {
        Some(token_from(&beside(path), &mut warnings)?)
    } else {
        None
    };
    let ca_file = global.ca_file.clone().or_else(|| env("GPUAAS_CA_FILE").map(PathBuf::from)).or(file.ca_file.map(beside));
    let ca_file = ca_file.or_else(|| kept.as_ref().filter(|kept| kept.url == url).and_then(|kept| kept.ca_file.clone()));
    let correlation_id = match global.correlation_id.clone().or_else(|| env("GPUAAS_CORRELATION_ID")) {
        Some(text) => {
            Some(CorrelationId::try_from(text).map_err(|error| CliError::usage("correlation_id_invalid", error.to_string()))?)
        }
        None => None,
    };

    let project = global.project.clone().or_else(|| env("GPUAAS_PROJECT")).or(file.project);
    let mut options = ClientOptions::new(url);
    options.token = token;
    options.unix_socket = unix_socket;
    options.ca_file = ca_file;
    options.correlation_id = correlation_id;
    options.user_agent = concat!("gpuaas/", env!("CARGO_PKG_VERSION")).to_owned();
    Ok(Resolved { options, project, profile, configured, is_configured, credentials, kept, warnings })
}

/// Returns the path of the config file, and whether the user named it explicitly.
pub(crate) fn path(global: &Global, env: impl Fn(&str) -> Option<String>) -> Option<(PathBuf, bool)> {
    let env = |name: &str| env(name).filter(|value| !value.is_empty());
    if let Some(named) = global.config.clone().or_else(|| env("GPUAAS_CONFIG").map(PathBuf::from)) {
        return Some((named, true));
    }
    let base = env("XDG_CONFIG_HOME").map(PathBuf::from).or_else(|| env("HOME").map(|home| Path::new(&home).join(".config")))?;
    Some((base.join("gpuaas/config.toml"), false))
}

/// Sets one key of a profile, or removes it. The rest of the file is preserved, including comments. A file that could not be
/// parsed afterwards is not written.
pub(crate) fn set(path: &Path, profile: &str, key: &str, value: Option<&str>) -> Result<(), CliError> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        CliError::usage("config_unwritable", format!("cannot {what} the config file {}: {error}", path.display()))
    };
    let (text, mode) = match read_small(path) {
        Ok(read) => read,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => (String::new(), 0o600),
        Err(error) => return Err(failed("read", &error)),
    };
    let mut document: toml_edit::DocumentMut = text.parse().map_err(|error| failed("change", &error))?;
    let table = if profile == credentials::DEFAULT_PROFILE {
        document.as_table_mut()
    } else {
        let profiles = document.entry("profiles").or_insert_with(toml_edit::table);
        let profiles = profiles.as_table_mut().ok_or_else(|| failed("change", &"`profiles` is not a table"))?;
        profiles.set_implicit(true);
        let section = profiles.entry(profile).or_insert_with(toml_edit::table);
        section.as_table_mut().ok_or_else(|| failed("change", &"the profile is not a table"))?
    };
    match value {
        Some(value) => drop(table.insert(key, toml_edit::value(value))),
        None => drop(table.remove(key)),
    }
    let next = document.to_string();
    toml::from_str::<ConfigFile>(&next).map_err(|error| failed("change", &error.message()))?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(|error| failed("write", &error))?;
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(|error| failed("write", &error))?;
    std::io::Write::write_all(&mut file, next.as_bytes()).map_err(|error| failed("write", &error))?;
    let permissions = std::fs::Permissions::from_mode(mode & 0o777);
    std::fs::set_permissions(file.path(), permissions).map_err(|error| failed("write", &error))?;
    file.persist(path).map_err(|error| failed("write", &error.error))?;
    Ok(())
}

fn config_file(
    global: &Global,
    env: &impl Fn(&str) -> Option<String>,
    warnings: &mut Vec<String>,
) -> Result<(ConfigFile, PathBuf), CliError> {
    let Some((path, must_exist)) = path(global, env) else { return Ok((ConfigFile::default(), PathBuf::new())) };
    let (text, mode) = match read_small(&path) {
        Ok(read) => read,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !must_exist => {
            return Ok((ConfigFile::default(), PathBuf::new()));
        }
        Err(error) => {
            let message = format!("cannot read the config file {}: {error}", path.display());
            return Err(CliError::usage("config_unreadable", message));
        }
    };
    let file: ConfigFile = toml::from_str(&text).map_err(|error| {
        let place = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        let place = place.map_or(String::new(), |line| format!(" line {line}"));
        CliError::usage("config_invalid", format!("config file {}{place}: {}", path.display(), error.message()))
            .hint("the keys are url, token_file, ca_file, token, project and [profiles.NAME]")
    })?;
    let holds_token = file.token.is_some() || file.profiles.values().any(|section| section.token.is_some());
    if holds_token && mode & 0o077 != 0 {
        warnings.push(format!("{0} holds a token and others can read it; run `chmod 600 {0}`", path.display()));
    }
    Ok((file, path.parent().map(Path::to_owned).unwrap_or_default()))
}

fn token_from(path: &Path, warnings: &mut Vec<String>) -> Result<String, CliError> {
    let (text, mode) = read_small(path).map_err(|error| {
        CliError::usage("token_file_unreadable", format!("cannot read the token file {}: {error}", path.display()))
    })?;
    let token = text.trim();
    if token.is_empty() {
        return Err(CliError::usage("token_file_empty", format!("the token file {} is empty", path.display())));
    }
    if mode & 0o077 != 0 {
        warnings.push(format!("others can read the token file {0}; run `chmod 600 {0}`", path.display()));
    }
    Ok(token.to_owned())
}

/// Reads a small file. Returns its text and its mode.
fn read_small(path: &Path) -> std::io::Result<(String, u32)> {
    let file = std::fs::File::open(path)?;
    let mode = file.metadata()?.permissions().mode();
    let mut text = String::new();
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, format!("larger than {MAX_FILE_BYTES} bytes")));
    }
    Ok((text, mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Place {
        folder: tempfile::TempDir,
    }

    impl Place {
        fn new() -> Self {
            Self { folder: tempfile::tempdir().expect("a folder") }
        }

        fn write(&self, name: &str, text: &str, mode: u32) -> PathBuf {
            let path = self.folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(&path, text).expect("written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("set");
            path
        }

        fn resolve(&self, global: &Global, env: &[(&str, &str)]) -> Result<Resolved, CliError> {
            let home = self.folder.path().display().to_string();
            resolve(global, |name| match name {
                "HOME" => Some(home.clone()),
                _ => env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()),
            })
        }
    }

    #[test]
    fn flags_win_over_environment_over_file_over_default() {
        let place = Place::new();
        let global = Global::default();
        assert_eq!(place.resolve(&global, &[]).expect("ok").options.url, DEFAULT_URL);
        place.write(".config/gpuaas/config.toml", "url = \"http://file\"\ntoken_file = \"t\"\n", 0o600);
        place.write(".config/gpuaas/t", "from-file\n", 0o600);
        let resolved = place.resolve(&global, &[]).expect("ok");
        assert_eq!((resolved.options.url.as_str(), resolved.options.token.as_deref()), ("http://file", Some("from-file")));
        let env = [("GPUAAS_URL", "http://env"), ("GPUAAS_TOKEN", "from-env")];
        let resolved = place.resolve(&global, &env).expect("ok");
        assert_eq!((resolved.options.url.as_str(), resolved.options.token.as_deref()), ("http://env", Some("from-env")));
        let flag_file = place.write("flag", "from-flag-file", 0o600);
        let global = Global { url: Some("http://flag".to_owned()), token_file: Some(flag_file), ..Global::default() };
        let resolved = place.resolve(&global, &env).expect("ok");
        assert_eq!((resolved.options.url.as_str(), resolved.options.token.as_deref()), ("http://flag", Some("from-flag-file")));
        assert_eq!(resolved.warnings, Vec::<String>::new());
    }

    #[test]
    fn a_key_is_set_and_everything_else_stays() {
        let files = Place::new();
        let path =
            files.write("config.toml", "# mine\nurl = \"https://a\" # the lab\n\n[profiles.b]\nurl = \"https://b\"\n", 0o640);
        set(&path, "default", "project", Some("acme/training")).expect("written");
        set(&path, "b", "project", Some("acme/other")).expect("written");
        set(&path, "c", "url", Some("https://c")).expect("written");
        set(&path, "b", "url", None).expect("written");
        let text = std::fs::read_to_string(&path).expect("a file");
        assert!(text.starts_with("# mine\nurl = \"https://a\" # the lab\nproject = \"acme/training\"\n"), "{text}");
        assert!(
            text.contains("[profiles.b]\nproject = \"acme/other\"\n") && text.contains("[profiles.c]\nurl = \"https://c\""),
            "{text}"
        );
        assert_eq!(std::fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o640);
        let broken = files.write("broken.toml", "url = ", 0o600);
        assert_eq!(set(&broken, "default", "url", Some("x")).map_err(|error| error.code), Err("config_unwritable".to_owned()));
        assert_eq!(std::fs::read_to_string(&broken).expect("a file"), "url = ", "nothing is lost");
        let unknown = files.write("unknown.toml", "color = 1\n", 0o600);
        assert!(set(&unknown, "default", "url", Some("x")).is_err());
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_line() {
        let place = Place::new();
        place.write(".config/gpuaas/config.toml", "url = \"http://x\"\ntokn = \"y\"\n", 0o600);
        let failure = place.resolve(&Global::default(), &[]).expect_err("refused");
        assert!(failure.message.contains("line 2") && failure.message.contains("tokn"), "{}", failure.message);
    }

    #[test]
    fn a_token_that_others_can_read_is_warned_about() {
        let place = Place::new();
        place.write(".config/gpuaas/config.toml", "token = \"y\"\n", 0o644);
        assert_eq!(place.resolve(&Global::default(), &[]).expect("ok").warnings.len(), 1);
        let path = place.write("t", "x", 0o640);
        let global = Global { token_file: Some(path), ..Global::default() };
        assert!(place.resolve(&global, &[]).expect("ok").warnings.iter().any(|warning| warning.contains("token file")));
    }

    #[test]
    fn a_named_config_file_must_exist_and_an_empty_token_file_is_no_token() {
        let place = Place::new();
        let global = Global { config: Some(place.folder.path().join("none.toml")), ..Global::default() };
        assert_eq!(place.resolve(&global, &[]).expect_err("refused").code, "config_unreadable");
        let path = place.write("t", "\n", 0o600);
        let global = Global { token_file: Some(path), ..Global::default() };
        assert_eq!(place.resolve(&global, &[]).expect_err("refused").code, "token_file_empty");
    }
}
