//! GPUs by vendor, model and PCI id.

/// A GPU model.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Gpu {
    /// Name of the vendor, such as `NVIDIA` or `AMD`; of an unknown vendor, its PCI id.
    pub vendor: String,
    /// Model name as nodes report it; empty if none does.
    pub model: String,
    /// PCI id: vendor and device in hex, such as `10de:2330`; empty if no node reports it.
    pub pci_id: String,
}

impl Gpu {
    /// The model with this name and these PCI vendor and device ids.
    pub fn new(model: &str, vendor_id: &str, device_id: &str) -> Self {
        let vendor = match vendor_id {
            "10de" => "NVIDIA",
            "1002" => "AMD",
            "8086" => "Intel",
            other => other,
        };
        let pci_id = if vendor_id.is_empty() { String::new() } else { format!("{vendor_id}:{device_id}") };
        Self { vendor: vendor.to_owned(), model: model.to_owned(), pci_id }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_has_vendor_model_and_pci_id() {
        let gpu = Gpu::new("NVIDIA H100 80GB HBM3", "10de", "2330");
        assert_eq!((gpu.vendor.as_str(), gpu.pci_id.as_str()), ("NVIDIA", "10de:2330"));
        assert_eq!(Gpu::new("", "1d0f", "1").vendor, "1d0f");
        assert_eq!(Gpu::new("some GPU", "", "").pci_id, "");
    }
}
