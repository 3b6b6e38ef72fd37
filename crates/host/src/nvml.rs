//! NVIDIA's management library, loaded at run time. It is optional.

use gpuaas_contract::telemetry::{GpuFact, GpuMetrics};
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;

/// The library, if the driver is installed.
pub struct Library(Option<Nvml>);

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Library").field(&self.0.is_some()).finish()
    }
}

impl Library {
    /// Loads the library, if it is installed.
    pub fn load() -> Self {
        match Nvml::init() {
            Ok(nvml) => Self(Some(nvml)),
            Err(error) => {
                tracing::debug!(%error, "no NVML; NVIDIA GPUs are reported from sysfs only");
                Self(None)
            }
        }
    }

    /// Adds names and memory to the GPUs from sysfs.
    pub fn enrich(&self, gpus: &mut [GpuFact]) {
        for device in self.devices() {
            let Some(address) = address_of(&device) else { continue };
            let Some(gpu) = gpus.iter_mut().find(|gpu| gpu.pci_address == address) else { continue };
            gpu.name = device.name().unwrap_or_default();
            gpu.memory_bytes = device.memory_info().map(|memory| memory.total).unwrap_or(gpu.memory_bytes);
            gpu.source = "nvml".to_owned();
        }
    }

    /// Returns one sample of every GPU that answers.
    pub fn metrics(&self) -> Vec<GpuMetrics> {
        let sample = |device: nvml_wrapper::Device<'_>| {
            Some(GpuMetrics {
                pci_address: address_of(&device)?,
                utilization_percent: device.utilization_rates().map(|rates| rates.gpu).unwrap_or(0),
                memory_used_bytes: device.memory_info().map(|memory| memory.used).unwrap_or(0),
                temperature_celsius: device.temperature(TemperatureSensor::Gpu).unwrap_or(0),
                power_milliwatts: device.power_usage().unwrap_or(0),
            })
        };
        self.devices().into_iter().filter_map(sample).collect()
    }

    fn devices(&self) -> Vec<nvml_wrapper::Device<'_>> {
        let Some(nvml) = &self.0 else { return Vec::new() };
        let count = nvml.device_count().unwrap_or(0).min(64);
        (0..count).filter_map(|index| nvml.device_by_index(index).ok()).collect()
    }
}

fn address_of(device: &nvml_wrapper::Device<'_>) -> Option<String> {
    device.pci_info().ok().map(|pci| sysfs_address(&pci.bus_id))
}

/// Converts an address: NVML writes eight digits of domain (`00000000:17:00.0`), sysfs four.
fn sysfs_address(bus_id: &str) -> String {
    let lower = bus_id.to_ascii_lowercase();
    match lower.split_once(':') {
        Some((domain, rest)) if domain.len() == 8 && domain.starts_with("0000") => format!("{}:{rest}", &domain[4..]),
        _ => lower,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_sysfs_does() {
        assert_eq!(sysfs_address("00000000:17:00.0"), "0000:17:00.0");
        assert_eq!(sysfs_address("0000:AF:00.0"), "0000:af:00.0");
    }

    #[test]
    fn a_host_without_the_library_has_no_samples() {
        assert!(Library(None).metrics().is_empty());
    }
}
