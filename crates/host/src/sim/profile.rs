//! Profiles of simulated servers.

use gpuaas_contract::task::package_list::Package;
use gpuaas_contract::telemetry::{DiskFact, GpuFact, HostFacts, NetworkFact};

/// The kind of a simulated server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// 8 × NVIDIA H100 80GB HBM3.
    H100,
    /// 8 × AMD Instinct MI300X.
    Mi300x,
}

/// PCI buses of the eight GPUs of a two-socket server, four per socket.
const BUSES: [u8; 8] = [0x19, 0x3b, 0x4c, 0x5d, 0x9b, 0xbb, 0xcb, 0xdb];

impl Profile {
    /// Every profile.
    pub const ALL: [Self; 2] = [Self::H100, Self::Mi300x];

    /// Returns its name in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::H100 => "h100",
            Self::Mi300x => "mi300x",
        }
    }

    /// Returns the profile with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.as_str() == name)
    }

    pub(super) fn facts(self, hostname: &str, hardware_id: &str) -> HostFacts {
        let (cpu_model, cpu_threads) = match self {
            Self::H100 => ("Intel(R) Xeon(R) Platinum 8480C", 224),
            Self::Mi300x => ("AMD EPYC 9654 96-Core Processor", 384),
        };
        HostFacts {
            simulated: true,
            hostname: hostname.to_owned(),
            os: "Ubuntu 22.04.4 LTS (simulated)".to_owned(),
            kernel: "5.15.0-105-generic".to_owned(),
            architecture: "x86_64".to_owned(),
            agent_version: String::new(),
            cpu_model: cpu_model.to_owned(),
            cpu_threads,
            memory_bytes: 2 << 40,
            gpus: BUSES.iter().enumerate().map(|(index, bus)| self.gpu(index, *bus)).collect(),
            disks: disks(hardware_id),
            networks: networks(hardware_id),
            allowed_tasks: None,
        }
    }

    fn gpu(self, index: usize, bus: u8) -> GpuFact {
        let (vendor_id, device_id, name, memory_bytes, driver) = match self {
            Self::H100 => ("10de", "2330", "NVIDIA H100 80GB HBM3", 80 << 30, "nvidia"),
            Self::Mi300x => ("1002", "74a1", "AMD Instinct MI300X", 192 << 30, "amdgpu"),
        };
        GpuFact {
            pci_address: format!("0000:{bus:02x}:00.0"),
            vendor_id: vendor_id.to_owned(),
            device_id: device_id.to_owned(),
            name: name.to_owned(),
            memory_bytes,
            driver: driver.to_owned(),
            numa_node: i32::from(index >= 4),
            source: "simulated".to_owned(),
        }
    }

    pub(super) fn packages(self) -> Vec<Package> {
        let common = [
            ("bash", "5.1-6ubuntu1.1"),
            ("cloud-image-utils", "0.32-22-g45fe84a5-0ubuntu1"),
            ("libvirt-daemon-system", "8.0.0-1ubuntu7.8"),
            ("linux-image-5.15.0-105-generic", "5.15.0-105.115"),
            ("openvswitch-switch", "2.17.9-0ubuntu0.22.04.1"),
            ("qemu-system-x86", "1:6.2+dfsg-2ubuntu6.17"),
            ("qemu-utils", "1:6.2+dfsg-2ubuntu6.17"),
            ("systemd", "249.11-0ubuntu3.12"),
        ];
        let own: &[(&str, &str)] = match self {
            Self::H100 => {
                &[("nvidia-driver-535-server", "535.161.08-0ubuntu2.22.04.1"), ("nvidia-fabricmanager-535", "535.161.08-1")]
            }
            Self::Mi300x => &[("amdgpu-dkms", "1:6.3.6.60002-1718217.22.04"), ("rocm-smi-lib", "6.0.2.60002-115~22.04")],
        };
        common.iter().chain(own).map(|(name, version)| package(name, version)).collect()
    }
}

pub(super) fn package(name: &str, version: &str) -> Package {
    Package { name: name.to_owned(), version: version.to_owned(), architecture: "amd64".to_owned() }
}

impl std::fmt::Display for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Builds serials and addresses from the host's own id, so that two simulated hosts never share one.
fn disks(hardware_id: &str) -> Vec<DiskFact> {
    let serial = |index: usize| format!("SIM{}{index:02}", hardware_id[..8].to_ascii_uppercase());
    (0..8)
        .map(|index| DiskFact {
            name: format!("nvme{index}n1"),
            model: "Simulated NVMe 3.84TB".to_owned(),
            serial: serial(index),
            size_bytes: 3_840_755_982_336,
        })
        .chain([DiskFact {
            name: "sda".to_owned(),
            model: "Simulated boot SSD 960GB".to_owned(),
            serial: serial(99),
            size_bytes: 960_197_124_096,
        }])
        .collect()
}

fn networks(hardware_id: &str) -> Vec<NetworkFact> {
    let mac = |index: usize| {
        format!("02:{}:{}:{}:{}:{index:02x}", &hardware_id[..2], &hardware_id[2..4], &hardware_id[4..6], &hardware_id[6..8])
    };
    let fabric =
        (0..8).map(|index| NetworkFact { name: format!("ib{index}"), mac: mac(index + 16), up: true, speed_mbit: 400_000 });
    let management = NetworkFact { name: "eno1".to_owned(), mac: mac(0), up: true, speed_mbit: 25_000 };
    [management].into_iter().chain(fabric).collect()
}
