//! The other operations of the simulated host for guests: packages, memory, images, seed disks, addresses.

use gpuaas_contract::Digest;
use gpuaas_contract::guest::ImageFormat;
use gpuaas_contract::id::AllocationId;

use super::machine::{Machine, Reserved};
use super::{Operation, SimHost};
use crate::guests::{FreeMemory, ImageStored, ImageWanted, InstanceFile, Reservation};
use crate::{HostError, instance};

/// The programs in packages.
const PROGRAMS: [(&str, &str); 7] = [
    ("cloud-image-utils", "cloud-localds"),
    ("dnsmasq-base", "dnsmasq"),
    ("libvirt-clients", "virsh"),
    ("nftables", "nft"),
    ("openvswitch-switch", "ovs-vsctl"),
    ("qemu-utils", "qemu-img"),
    ("openssh-client", "ssh"),
];
/// Memory that the host needs for itself.
const HOST_MEMORY_MIB: u64 = 6 * 1024;
/// Size of the disk in a cloud image.
const IMAGE_DISK_BYTES: u64 = 3_758_096_384;

/// Returns the size of an image's file: like a cloud image, and the same for the same image.
fn image_bytes(sha256: &Digest) -> u64 {
    let digits = sha256.as_str().get(7..11).and_then(|digits| u64::from_str_radix(digits, 16).ok());
    (600 << 20) + digits.unwrap_or(0) * 4096
}

impl SimHost {
    pub(crate) async fn packages_install(&self, names: &[&'static str]) -> Result<(), HostError> {
        let effect = |machine: &mut Machine| {
            for name in names {
                machine.packages.insert((*name).to_owned());
                for (_, program) in PROGRAMS.iter().filter(|(package, _)| package == name) {
                    machine.missing_commands.remove(*program);
                }
            }
            Ok(())
        };
        self.operate(Operation::PackagesInstall, names.join(" "), effect).await
    }

    pub(crate) async fn vfio_load(&self) -> Result<(), HostError> {
        let effect = |machine: &mut Machine| {
            machine.load_vfio();
            Ok(())
        };
        self.operate(Operation::VfioLoad, String::new(), effect).await
    }

    pub(crate) async fn memory_free(&self) -> Result<FreeMemory, HostError> {
        let effect = |machine: &mut Machine| {
            let all = self.hardware().prerequisites.memory_mib;
            let taken = machine.guests_memory_mib().saturating_add(HOST_MEMORY_MIB);
            Ok(FreeMemory { available_mib: all.saturating_sub(taken), huge_pages_mib: 0 })
        };
        self.operate(Operation::MemoryFree, String::new(), effect).await
    }

    pub(crate) async fn image_fetch(&self, wanted: &ImageWanted) -> Result<ImageStored, HostError> {
        let effect = |machine: &mut Machine| {
            let was_cached = machine.images.contains(&wanted.sha256);
            if !was_cached && wanted.path.is_none() && wanted.url.is_none() {
                return Err(HostError::new("image_missing", format!("the image {} has neither a path nor a URL", wanted.sha256)));
            }
            machine.images.insert(wanted.sha256.clone());
            Ok(ImageStored { bytes: image_bytes(&wanted.sha256), was_cached })
        };
        self.operate(Operation::ImageFetch, wanted.sha256.to_string(), effect).await
    }

    pub(crate) async fn image_verify(&self, sha256: &Digest, _format: ImageFormat) -> Result<u64, HostError> {
        let effect = |machine: &mut Machine| {
            if !machine.images.contains(sha256) {
                return Err(HostError::new("image_missing", format!("the host does not have the image {sha256}")));
            }
            if machine.wrong_images.contains(sha256) {
                return Err(HostError::new(
                    "image_digest_mismatch",
                    format!("the stored image does not have the digest {sha256}"),
                ));
            }
            Ok(IMAGE_DISK_BYTES)
        };
        self.operate(Operation::ImageVerify, sha256.to_string(), effect).await
    }

    pub(crate) async fn seed_build(&self, id: AllocationId) -> Result<(), HostError> {
        let effect = |_: &mut Machine| {
            let folder = &self.layout().instances;
            let mut seed = b"simulated seed disk\n".to_vec();
            for file in [InstanceFile::UserData, InstanceFile::MetaData] {
                let Some(bytes) = instance::read(folder, id, file)? else {
                    return Err(HostError::new("seed_failed", format!("{id} has no {}", file.name())));
                };
                seed.extend_from_slice(format!("{} {}\n", file.name(), Digest::of(&bytes)).as_bytes());
            }
            instance::write(folder, id, InstanceFile::Seed, &seed)
        };
        self.operate(Operation::SeedBuild, id.to_string(), effect).await
    }

    pub(crate) async fn reservation_add(&self, reservation: &Reservation) -> Result<(), HostError> {
        let (id, address) = (reservation.allocation_id, reservation.private_ip);
        let effect = |machine: &mut Machine| {
            let new = Reserved { mac_address: reservation.mac_address.clone(), private_ip: address };
            let clashes = |other: &Reserved| other.private_ip == new.private_ip || other.mac_address == new.mac_address;
            if let Some((other, _)) = machine.reservations.iter().find(|(other, taken)| **other != id && clashes(taken)) {
                return Err(HostError::new("address_reserved", format!("{address} is reserved for {other}")));
            }
            machine.reservations.insert(id, new);
            Ok(())
        };
        self.operate(Operation::ReservationAdd, id.to_string(), effect).await
    }

    pub(crate) async fn reservation_remove(&self, id: AllocationId) -> Result<(), HostError> {
        let effect = |machine: &mut Machine| {
            machine.reservations.remove(&id);
            Ok(())
        };
        self.operate(Operation::ReservationRemove, id.to_string(), effect).await
    }

    pub(crate) async fn reservations(&self) -> Result<Vec<AllocationId>, HostError> {
        let effect = |machine: &mut Machine| Ok(machine.reservations.keys().copied().collect());
        self.operate(Operation::Reservations, String::new(), effect).await
    }
}
