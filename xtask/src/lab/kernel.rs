//! A Debian kernel that is unpacked but not installed.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::cleanup::Cleanup;
use super::initrd::Initrd;
use super::program::{read, run};

/// The metapackage that depends on the newest kernel for virtual machines.
const META_PACKAGE: &str = "linux-image-cloud-amd64";

pub(super) struct Kernel {
    pub(super) image: PathBuf,
    /// The folder with the modules of this kernel version.
    modules: PathBuf,
}

impl Kernel {
    /// Returns the newest kernel that apt offers. Downloads it if it is not in `cache`.
    pub(super) fn ensure(cache: &Path) -> Result<Self, String> {
        let depends = run(Command::new("apt-cache").args(["depends", META_PACKAGE]))?;
        let package = depends.lines().find_map(|line| line.trim().strip_prefix("Depends: linux-image-"));
        let version = package.ok_or_else(|| format!("apt does not say which kernel {META_PACKAGE} is; run `apt-get update`"))?;
        let folder = cache.join(format!("linux-{version}"));
        if !folder.is_dir() {
            fetch(version, &folder)?;
        }
        let image = folder.join(format!("boot/vmlinuz-{version}"));
        Ok(Self { image, modules: folder.join("lib/modules").join(version) })
    }

    /// Adds modules and their dependencies to `initrd`. Returns their paths in load order.
    pub(super) fn add_modules(&self, names: &[&str], initrd: &mut Initrd) -> Result<Vec<String>, String> {
        let listed = String::from_utf8_lossy(&read(&self.modules.join("modules.dep"))?).into_owned();
        let mut paths = vec![];
        for module in in_order(&listed, names)? {
            let at = format!("/lib/modules/{module}");
            initrd.file(&at, read(&self.modules.join(module))?);
            paths.push(at);
        }
        Ok(paths)
    }
}

fn fetch(version: &str, folder: &Path) -> Result<(), String> {
    println!("==> fetching Linux {version}");
    let mut cleanup = Cleanup::start()?;
    let new = folder.with_extension("new");
    cleanup.make_folder(&new)?;
    run(Command::new("apt-get").args(["--quiet", "download", &format!("linux-image-{version}")]).current_dir(&new))?;
    let files = std::fs::read_dir(&new).map_err(|error| format!("{}: {error}", new.display()))?;
    let is_package = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "deb");
    let package = files.flatten().map(|file| file.path()).find(is_package).ok_or("apt-get downloaded no package")?;
    let root = new.join("root");
    run(Command::new("dpkg-deb").arg("--extract").args([&package, &root]))?;
    run(Command::new("depmod").arg("--basedir").arg(&root).arg(version))?;
    // Renamed last: a folder with the right name is complete.
    std::fs::rename(&root, folder).map_err(|error| format!("{}: {error}", folder.display()))
}

/// Returns modules and their dependencies in load order, from the output of `depmod`: `path: path path …`, nearest dependency first.
fn in_order<'a>(listed: &'a str, names: &[&str]) -> Result<Vec<&'a str>, String> {
    let lines = listed.lines().filter_map(|line| line.split_once(':'));
    let by_name: HashMap<String, (&str, &str)> = lines.map(|(path, needs)| (name_of(path), (path, needs))).collect();
    let mut order = vec![];
    let mut seen = BTreeSet::new();
    for name in names {
        let (path, needs) = by_name.get(&name_of(name)).ok_or_else(|| format!("this kernel has no module {name}"))?;
        for module in needs.split_whitespace().rev().chain([*path]) {
            if seen.insert(module) {
                order.push(module);
            }
        }
    }
    Ok(order)
}

/// Returns the name of a module from its path, with `-` replaced by `_`: the two are equivalent.
fn name_of(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split('.').next().unwrap_or(file).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_comes_after_those_it_needs_and_only_once() {
        let listed = "kernel/vfio/vfio.ko:\nkernel/vfio/pci/vfio-pci-core.ko: kernel/vfio/vfio.ko\n\
                      kernel/vfio/pci/vfio-pci.ko: kernel/vfio/pci/vfio-pci-core.ko kernel/vfio/vfio.ko\n\
                      kernel/vfio/vfio_iommu_type1.ko: kernel/vfio/vfio.ko\n";
        let order = in_order(listed, &["vfio_pci", "vfio_iommu_type1"]).expect("known modules");
        let expected = ["vfio/vfio.ko", "vfio/pci/vfio-pci-core.ko", "vfio/pci/vfio-pci.ko", "vfio/vfio_iommu_type1.ko"];
        assert_eq!(order, expected.map(|path| format!("kernel/{path}")));
        assert!(in_order(listed, &["nouveau"]).is_err());
    }
}
