//! The machine's fingerprint: the same machine is the same node, even after a reinstallation.
//!
//! It is the SHA-256 over `name=value\n` lines, in this order: `product_uuid`, `board_serial`, `product_serial` (from
//! `/sys/class/dmi/id`). Missing values and known placeholders of vendors are left out. If none of them is usable, `machine_id`
//! (from `/etc/machine-id`) is hashed instead, so a reinstallation changes the fingerprint of such a machine. Only root can read
//! the DMI files: an agent without root on a machine with DMI also falls back to `machine_id`.

use std::path::Path;

use gpuaas_contract::Digest;

use crate::sysfs;

/// Hardware attributes in the order in which they are hashed.
const HARDWARE: [&str; 3] = ["product_uuid", "board_serial", "product_serial"];

/// Placeholders of vendors, which many machines share.
const PLACEHOLDERS: [&str; 14] = [
    "",
    "none",
    "n/a",
    "na",
    "unknown",
    "default string",
    "not specified",
    "not applicable",
    "to be filled by o.e.m.",
    "system serial number",
    "base board serial number",
    "0123456789",
    "123456789",
    "03000200-0400-0500-0006-000700080009",
];

/// The machine has no usable identity.
#[derive(Debug, thiserror::Error)]
#[error("this machine has neither a usable DMI identity nor /etc/machine-id; run: systemd-machine-id-setup")]
pub struct NoIdentity;

/// Returns the fingerprint of the machine whose files are under `root` (normally `/`).
pub fn fingerprint(root: &Path) -> Result<String, NoIdentity> {
    let dmi = root.join("sys/class/dmi/id");
    let mut identity: String = HARDWARE
        .iter()
        .map(|name| (name, sysfs::text(dmi.join(name)).to_ascii_lowercase()))
        .filter(|(_, value)| is_usable(value))
        .map(|(name, value)| format!("{name}={value}\n"))
        .collect();
    if identity.is_empty() {
        let machine_id = sysfs::text(root.join("etc/machine-id")).to_ascii_lowercase();
        if !is_usable(&machine_id) {
            return Err(NoIdentity);
        }
        identity = format!("machine_id={machine_id}\n");
    }
    Ok(Digest::of(identity.as_bytes()).to_string())
}

fn is_usable(value: &str) -> bool {
    let significant: Vec<u8> = value.bytes().filter(|b| b.is_ascii_alphanumeric()).collect();
    let one_letter = significant.windows(2).all(|pair| pair[0] == pair[1]);
    !PLACEHOLDERS.contains(&value) && !one_letter
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("folder");
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("parent")).expect("folder");
            std::fs::write(path, text).expect("file");
        }
        root
    }

    const UUID: (&str, &str) = ("sys/class/dmi/id/product_uuid", "4C4C4544-0042-3510-8052-B4C04F383132\n");

    #[test]
    fn a_reinstalled_machine_keeps_its_fingerprint() {
        let before = machine(&[UUID, ("etc/machine-id", "aaaabbbbccccdddd\n")]);
        let after = machine(&[UUID, ("etc/machine-id", "0123456789abcdef\n")]);
        assert_eq!(fingerprint(before.path()).expect("found"), fingerprint(after.path()).expect("found"));
    }

    #[test]
    fn the_documented_order_and_form_are_what_is_hashed() {
        let root = machine(&[("sys/class/dmi/id/board_serial", "B-77\n"), UUID]);
        let text = b"product_uuid=4c4c4544-0042-3510-8052-b4c04f383132\nboard_serial=b-77\n";
        assert_eq!(fingerprint(root.path()).expect("found"), Digest::of(text).to_string());
    }

    #[test]
    fn placeholders_of_vendors_do_not_make_two_machines_one() {
        for junk in ["To Be Filled By O.E.M.", "00000000-0000-0000-0000-000000000000", "FFFFFFFF-FFFF", "Default string"] {
            let one = machine(&[("sys/class/dmi/id/product_uuid", junk), ("etc/machine-id", "aaaabbbbccccdddd")]);
            let two = machine(&[("sys/class/dmi/id/product_uuid", junk), ("etc/machine-id", "ddddccccbbbbaaaa")]);
            assert_ne!(fingerprint(one.path()).expect("found"), fingerprint(two.path()).expect("found"), "{junk}");
        }
    }

    #[test]
    fn a_machine_without_any_identity_is_told_what_to_do() {
        let error = fingerprint(machine(&[("etc/machine-id", "\n")]).path()).expect_err("nothing").to_string();
        assert!(error.contains("systemd-machine-id-setup"));
    }
}
