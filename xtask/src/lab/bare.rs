//! A bare Debian, as a newcomer has it. The README's commands must work there with nothing but Rust and a C compiler installed.
//!
//! A minimal Debian is unpacked under `target/lab` and entered in namespaces of its own, so that no mount is left behind. It
//! shares the compiler and the downloaded crates of this machine, and gets a copy of the repository.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cargo;
use crate::requirements;

/// Options of `cargo xtask lab bare`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Crates whose tests are run
    #[arg(short, long = "package", value_name = "CRATE", default_values = ["gpuaas-host", "gpuaas-testkit"])]
    packages: Vec<String>,
    /// Skip the release build and the development cluster
    #[arg(long)]
    tests_only: bool,
}

const SUITE: &str = "bookworm";
/// The packages that a newcomer installs besides Rust. Debian itself needs `ca-certificates` to install anything over TLS.
const PACKAGES: &str = "gcc,libc6-dev,ca-certificates";

/// Runs the README's commands in a bare Debian: as root, who can install what is missing, and as a user who cannot.
pub(crate) fn run(options: &Options) -> Result<bool, String> {
    if !requirements::is_root() {
        return Err("the lab unpacks a Debian and enters it, which needs root".to_owned());
    }
    if requirements::in_path("debootstrap").is_none() {
        requirements::install_debian("debootstrap", "debootstrap", true)?;
    }
    let folder = super::cache()?.join("bare");
    let root = debian(&folder)?;
    copy_sources(&root)?;
    let bare = Bare { root };
    let mut results = Vec::new();
    let selected: String = options.packages.iter().map(|package| format!(" -p {package}")).collect();
    // The user goes first: what root installs would then be there for the user as well.
    let tests = format!("cargo xtask test --no-lint{selected}");
    results.push(("tests as a user, without apt", bare.enter("user", &tests)?));
    results.push(("tests as root, with apt", bare.enter("root", &tests)?));
    if !options.tests_only {
        results.push(("the development cluster", bare.enter("root", DEV)?));
    }
    println!("\n==> summary");
    for (what, succeeded) in &results {
        println!("    {what:<30} {}", if *succeeded { "ok" } else { "FAILED" });
    }
    Ok(results.iter().all(|(_, succeeded)| *succeeded))
}

/// Starts the development cluster, and runs every command that it prints for a first lease.
const DEV: &str = r#"
cargo build --release
cargo run --release -- dev --data-dir /tmp/dev >/tmp/dev.out 2>&1 &
dev=$!
for _ in $(seq 120); do grep -q Ctrl-C /tmp/dev.out && break; sleep 1; done
cat /tmp/dev.out
eval "$(grep -o 'export .*' /tmp/dev.out)"
export PATH="$PWD/target/release:$PATH"
grep -oE '^ *gpuaas (catalog|alloc .*|node ls)$' /tmp/dev.out | while read -r command; do echo "\$ $command"; $command </dev/null || exit 1; done
status=$?
kill -INT $dev; wait $dev
exit $status
"#;

/// Returns the root folder of a minimal Debian. Unpacks one if an earlier run has not.
fn debian(folder: &Path) -> Result<PathBuf, String> {
    let (root, partial) = (folder.join("root"), folder.join("root.partial"));
    if root.is_dir() {
        return Ok(root);
    }
    println!("==> unpacking Debian {SUITE} to {}", root.display());
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    if partial.exists() {
        std::fs::remove_dir_all(&partial).map_err(failed)?;
    }
    std::fs::create_dir_all(folder).map_err(failed)?;
    let mut debootstrap = Command::new("debootstrap");
    debootstrap.args(["--variant=minbase", &format!("--include={PACKAGES}"), SUITE]).arg(&partial);
    if !debootstrap.status().is_ok_and(|status| status.success()) {
        return Err("debootstrap failed (is there a network?)".to_owned());
    }
    std::fs::rename(&partial, &root).map_err(failed)?;
    Ok(root)
}

/// Copies the repository's files, including uncommitted changes, into the Debian. The build folder from an earlier run is kept.
fn copy_sources(root: &Path) -> Result<(), String> {
    let here = cargo::workspace();
    let there = root.join("src");
    let failed = |error: std::io::Error| format!("{}: {error}", there.display());
    std::fs::create_dir_all(&there).map_err(failed)?;
    let script = r#"set -e
cd "$1"
find . -mindepth 1 -maxdepth 1 ! -name target -exec rm -rf {} +
cd "$2"
tar --create --exclude=./target --exclude=./.git . | tar --extract --directory "$1""#;
    let mut copy = Command::new("sh");
    copy.args(["-c", script, "copy"]).args([&there, &here]);
    if copy.status().is_ok_and(|status| status.success()) { Ok(()) } else { Err("the sources cannot be copied".to_owned()) }
}

struct Bare {
    root: PathBuf,
}

impl Bare {
    /// Runs a script in the copy of the repository. Returns true if it succeeded.
    fn enter(&self, user: &str, script: &str) -> Result<bool, String> {
        println!("==> {user}: {}", script.trim().lines().next().unwrap_or_default());
        let home = PathBuf::from(std::env::var_os("HOME").ok_or("HOME is not set")?);
        let of = |variable: &str, folder: &str| std::env::var_os(variable).map_or_else(|| home.join(folder), PathBuf::from);
        // The mount and process namespaces end with the script, and with them all mounts and processes.
        let mut inside = Command::new("unshare");
        inside.args(["--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]);
        inside.args(["sh", "-ec", ENTER, "enter"]).arg(&self.root);
        inside.args([of("RUSTUP_HOME", ".rustup"), of("CARGO_HOME", ".cargo")]).args([user, script]);
        Ok(inside.status().map_err(|error| format!("unshare cannot be started: {error}"))?.success())
    }
}

/// Mounts what the Debian lacks, and runs the script in it. The toolchain is mounted read-only; the downloaded crates and the
/// network are shared with this machine.
const ENTER: &str = r#"
root=$1 rustup=$2 cargo=$3 user=$4 script=$5
# A mount of its own, because `ip netns` and others need `/` to be one.
mount --bind "$root" "$root"
mkdir -p "$root/opt/rustup" "$root/opt/cargo" "$root/src/target"
mount --bind "$rustup" "$root/opt/rustup"
mount -o remount,bind,ro "$root/opt/rustup"
mount --bind "$cargo" "$root/opt/cargo"
mount -t proc proc "$root/proc"
rm -rf "$root"/tmp/*
mount --rbind /dev "$root/dev"
mount -t sysfs -o ro sysfs "$root/sys"
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
# The network is that of this machine, and so are the authorities that it trusts.
cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
grep -q '^user:' "$root/etc/passwd" || chroot "$root" useradd --create-home --home-dir /opt/user --shell /bin/sh user
toolchain=$(basename "$(rustc --print sysroot)")
export RUSTUP_HOME=/opt/rustup CARGO_HOME=/opt/cargo RUSTUP_TOOLCHAIN=$toolchain
export PATH="/opt/rustup/toolchains/$toolchain/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# A user writes into folders of their own; crates are only read.
if [ "$user" = user ]; then
    chroot "$root" chown -R user /src
    export CARGO_HOME=/opt/user/.cargo
    mkdir -p "$root/opt/user/.cargo/registry"
    mount --bind "$cargo/registry" "$root/opt/user/.cargo/registry"
    chroot "$root" chown user /opt/user/.cargo
    # A user of a machine that cannot be changed has no apt.
    exec chroot --userspec=user:user "$root" env HOME=/opt/user sh -c "cd /src && $script"
fi
exec chroot "$root" env HOME=/root sh -c "cd /src && $script"
"#;
