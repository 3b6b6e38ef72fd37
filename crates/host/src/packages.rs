//! Installed packages: queried from dpkg or rpm with our own format, and parsed by pure functions.

use std::path::PathBuf;
use std::time::Duration;

use gpuaas_contract::task::package_list::{MAX_LIMIT, Output, Package, Params};

use crate::HostError;
use crate::exec::{Exec, ExecError, first_installed};

const DPKG_QUERY: &[&str] = &["/usr/bin/dpkg-query"];
const RPM: &[&str] = &["/usr/bin/rpm", "/bin/rpm"];
const APT_GET: &[&str] = &["/usr/bin/apt-get"];
const NOT_INSTALLED: &str = "packages_not_installed";
/// Killing an installation leaves the package manager in a broken state, so the limit is long.
const INSTALL_DEADLINE: Duration = Duration::from_secs(30 * 60);
const DPKG_FORMAT: &str = "${db:Status-Abbrev}\\t${Package}\\t${Version}\\t${Architecture}\\n";
const RPM_FORMAT: &str = "%{NAME}\\t%|EPOCH?{%{EPOCH}:}|%{VERSION}-%{RELEASE}\\t%{ARCH}\\n";
/// A host with every package of a distribution prints about 5 MiB.
const STDOUT_CAP: usize = 16 * 1024 * 1024;
/// Size limit of the list, so that the receipt stays below its own limit whatever the names are.
const LIST_CAP: usize = 512 * 1024;

/// Why there is no list.
#[derive(Debug, thiserror::Error)]
pub enum PackagesError {
    /// Neither tool is installed.
    #[error("neither dpkg-query nor rpm is installed on this host; package.list supports no other package manager")]
    NoManager,
    /// The tool failed.
    #[error("the package manager did not answer")]
    Exec(#[from] ExecError),
    /// The output is not the expected one.
    #[error("{manager} printed a line that is not a package: {line}")]
    Malformed {
        /// The tool.
        manager: &'static str,
        /// The line, printable.
        line: String,
    },
}

/// Queries the host's package manager.
pub(crate) async fn list(params: &Params) -> Result<Output, PackagesError> {
    if let Some(program) = first_installed(DPKG_QUERY) {
        let printed = ask(program, &["-W", "-f", DPKG_FORMAT]).await?;
        return Ok(select("dpkg", parse_dpkg(&printed)?, params));
    }
    if let Some(program) = first_installed(RPM) {
        let printed = ask(program, &["-qa", "--qf", RPM_FORMAT]).await?;
        return Ok(select("rpm", parse_rpm(&printed)?, params));
    }
    Err(PackagesError::NoManager)
}

async fn ask(program: PathBuf, args: &[&str]) -> Result<Vec<u8>, ExecError> {
    let exec = args.iter().fold(Exec::new(program), |exec, arg| exec.arg(arg));
    Ok(exec.deadline(Duration::from_secs(60)).stdout_cap(STDOUT_CAP).run().await?.stdout)
}

/// Parses the output of dpkg-query. Only fully installed packages count.
pub fn parse_dpkg(printed: &[u8]) -> Result<Vec<Package>, PackagesError> {
    let mut packages = Vec::new();
    for line in lines(printed) {
        let [status, name, version, architecture] = fields(line).ok_or_else(|| malformed("dpkg", line))?;
        if status.starts_with("ii") {
            packages.push(package(name, version, architecture));
        }
    }
    Ok(packages)
}

/// Parses the output of rpm. Imported signing keys, which rpm lists as packages, are left out.
pub fn parse_rpm(printed: &[u8]) -> Result<Vec<Package>, PackagesError> {
    let mut packages = Vec::new();
    for line in lines(printed) {
        let [name, version, architecture] = fields(line).ok_or_else(|| malformed("rpm", line))?;
        if name != "gpg-pubkey" {
            packages.push(package(name, version, architecture));
        }
    }
    Ok(packages)
}

fn lines(printed: &[u8]) -> impl Iterator<Item = &[u8]> {
    printed.split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
}

fn fields<const N: usize>(line: &[u8]) -> Option<[&str; N]> {
    let parts: Vec<&str> = std::str::from_utf8(line).ok()?.split('\t').collect();
    parts.try_into().ok()
}

fn malformed(manager: &'static str, line: &[u8]) -> PackagesError {
    PackagesError::Malformed { manager, line: crate::exec::printable(line) }
}

fn package(name: &str, version: &str, architecture: &str) -> Package {
    Package { name: name.to_owned(), version: version.to_owned(), architecture: architecture.to_owned() }
}

/// Filters, sorts and limits the list, in the same way for every package manager.
pub fn select(manager: &str, packages: Vec<Package>, params: &Params) -> Output {
    let mut packages: Vec<Package> = packages.into_iter().filter(|p| p.name.contains(&params.name_contains)).collect();
    packages.sort_by(|a, b| (&a.name, &a.architecture, &a.version).cmp(&(&b.name, &b.architecture, &b.version)));
    let matched = packages.len();
    packages.truncate(usize::try_from(params.limit.min(MAX_LIMIT)).unwrap_or(usize::MAX));
    let mut bytes = 0;
    let fits = packages
        .iter()
        .take_while(|p| {
            // 48 bytes of JSON around every entry.
            bytes += p.name.len() + p.version.len() + p.architecture.len() + 48;
            bytes <= LIST_CAP
        })
        .count();
    packages.truncate(fits);
    Output {
        manager: manager.to_owned(),
        truncated: packages.len() < matched,
        matched: u32::try_from(matched).unwrap_or(u32::MAX),
        packages,
    }
}

/// Installs Debian packages without recommended ones.
pub async fn install(names: &[&'static str]) -> Result<(), HostError> {
    install_with(APT_GET, names).await
}

/// Returns whether this host can install Debian packages.
pub fn can_install() -> bool {
    first_installed(APT_GET).is_some()
}

async fn install_with(apt_get: &[&str], names: &[&'static str]) -> Result<(), HostError> {
    if names.is_empty() {
        return Ok(());
    }
    let list = names.join(", ");
    let Some(program) = first_installed(apt_get) else {
        let message = format!("there is no apt-get on this host; install by hand: {list}");
        return Err(HostError::new(NOT_INSTALLED, message));
    };
    let what = format!("cannot install {list}; try `apt-get update` and install them by hand");
    let installed = installation(program, names).run().await;
    installed.map(drop).map_err(|error| HostError::because(NOT_INSTALLED, &what, &error))
}

fn installation(program: PathBuf, names: &[&'static str]) -> Exec {
    // Another installation may be running, such as nightly upgrades.
    let fixed = ["-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300", "install"];
    let exec = fixed.iter().chain(names).fold(Exec::new(program), |exec, arg| exec.arg(arg));
    exec.env("DEBIAN_FRONTEND", "noninteractive")
        // Ubuntu would restart services after an installation, including the agent and the hypervisor.
        .env("NEEDRESTART_SUSPEND", "1")
        .deadline(INSTALL_DEADLINE)
        .stdout_cap(STDOUT_CAP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dpkg_lists_installed_packages_only() {
        let packages = parse_dpkg(include_bytes!("../testdata/dpkg-query.txt")).expect("parses");
        let names: Vec<_> = packages.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["adduser", "bash", "libc6", "zlib1g"]);
        assert_eq!(packages[3], package("zlib1g", "1:1.2.13.dfsg-1", "amd64"));
    }

    #[test]
    fn rpm_lists_packages_with_epoch_and_without_keys() {
        let packages = parse_rpm(include_bytes!("../testdata/rpm-qa.txt")).expect("parses");
        let names: Vec<_> = packages.iter().map(|p| format!("{} {}", p.name, p.version)).collect();
        assert_eq!(names, ["bash 5.1.8-9.el9", "openssl-libs 1:3.0.7-27.el9", "tzdata 2024a-1.el9"]);
    }

    #[test]
    fn a_line_that_is_no_package_is_an_error_and_not_a_guess() {
        assert!(matches!(parse_dpkg(b"hello\n"), Err(PackagesError::Malformed { manager: "dpkg", .. })));
        assert!(matches!(parse_rpm(b"a\tb\tc\td\n"), Err(PackagesError::Malformed { manager: "rpm", .. })));
        assert!(matches!(parse_rpm(b"\xff\tb\tc\n"), Err(PackagesError::Malformed { .. })));
    }

    #[test]
    fn filter_and_limit_say_what_was_left_out() {
        let all: Vec<_> = (0..10).map(|n| package(&format!("lib{n}"), "1", "amd64")).collect();
        let output = select("dpkg", all, &Params { name_contains: "lib".to_owned(), limit: 3 });
        assert_eq!((output.packages.len(), output.matched, output.truncated), (3, 10, true));
    }

    #[test]
    fn the_largest_answer_fits_into_a_receipt() {
        let all: Vec<_> = (0..5000).map(|n| package(&format!("{n:0>200}"), &"9".repeat(100), "amd64")).collect();
        let output = select("dpkg", all, &Params::default());
        assert!(output.truncated);
        assert!(serde_json::to_vec(&output).expect("json").len() < gpuaas_contract::receipt::MAX_OUTPUT_BYTES);
    }

    #[tokio::test]
    async fn an_installation_that_fails_names_the_packages() {
        assert_eq!(install_with(&["/nowhere"], &[]).await, Ok(()), "nothing to do");
        for apt_get in ["/nowhere", "/bin/false"] {
            let error = install_with(&[apt_get], &["qemu-utils", "ovmf"]).await.expect_err("fails");
            assert!(error.code == "packages_not_installed" && error.message.contains("qemu-utils, ovmf"), "{error}");
        }
        assert_eq!(install_with(&["/bin/true"], &["qemu-utils"]).await, Ok(()));
    }

    #[tokio::test]
    async fn apt_gets_the_packages_and_asks_nobody() {
        let told = installation("/bin/echo".into(), &["ovmf", "swtpm"]).run().await.expect("runs").stdout;
        assert_eq!(told, b"-y --no-install-recommends -o DPkg::Lock::Timeout=300 install ovmf swtpm\n");
        let exec = format!("{:?}", installation("/bin/echo".into(), &["ovmf"]));
        assert!(exec.contains(r#"("DEBIAN_FRONTEND", "noninteractive")"#), "{exec}");
    }

    #[tokio::test]
    async fn this_machine_answers_or_says_why_not() {
        match list(&Params::default()).await {
            Ok(output) => assert!(!output.packages.is_empty()),
            Err(error) => assert!(matches!(error, PackagesError::NoManager), "{error}"),
        }
    }
}
