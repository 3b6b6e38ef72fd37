//! The closed catalogue of tasks.
//!
//! A task that is not a variant of [`Task`] does not exist: the control plane cannot ask for it and the agent cannot
//! run it. Every variant has a handler in the agent. See `docs/adding-a-task.md`.

pub mod diag_health_probe;
pub mod diag_ping;
pub mod package_list;
pub mod slice_topology_discover;

use serde_json::value::RawValue;

/// Everything that can be asked of a node, with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum Task {
    /// `diag.ping`: leave a mark on the host and answer, to prove the whole path.
    DiagPing(diag_ping::Params),
    /// `diag.health_probe`: report what state the host is in.
    DiagHealthProbe(diag_health_probe::Params),
    /// `package.list`: list installed packages.
    PackageList(package_list::Params),
    /// `slice.topology_discover`: report what of the host could become slots.
    SliceTopologyDiscover(slice_topology_discover::Params),
}

/// The kind of a task, without its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TaskType {
    /// `diag.ping`
    DiagPing,
    /// `diag.health_probe`
    DiagHealthProbe,
    /// `package.list`
    PackageList,
    /// `slice.topology_discover`
    SliceTopologyDiscover,
}

/// What a successful task answers.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(untagged)]
pub enum Output {
    /// Answer to `diag.ping`.
    DiagPing(diag_ping::Output),
    /// Answer to `diag.health_probe`.
    DiagHealthProbe(diag_health_probe::Output),
    /// Answer to `package.list`.
    PackageList(package_list::Output),
    /// Answer to `slice.topology_discover`.
    SliceTopologyDiscover(slice_topology_discover::Output),
}

/// Why parameters were not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadParams {
    /// A field that this task does not have.
    #[error("params of {task_type}: {detail}")]
    UnknownField {
        /// The task.
        task_type: TaskType,
        /// What the parser said.
        detail: String,
    },
    /// Wrong type, missing field or a value outside its limits.
    #[error("params of {task_type}: {detail}")]
    Invalid {
        /// The task.
        task_type: TaskType,
        /// What is wrong with it.
        detail: String,
    },
}

impl TaskType {
    /// Every kind there is, in the order of the catalogue.
    pub const ALL: [Self; 4] = [Self::DiagPing, Self::DiagHealthProbe, Self::PackageList, Self::SliceTopologyDiscover];

    /// Name on the wire, in policies and in the CLI.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DiagPing => "diag.ping",
            Self::DiagHealthProbe => "diag.health_probe",
            Self::PackageList => "package.list",
            Self::SliceTopologyDiscover => "slice.topology_discover",
        }
    }

    /// One sentence for people.
    pub const fn summary(self) -> &'static str {
        match self {
            Self::DiagPing => "Leave one line in the host's ping log and answer: proves the whole path.",
            Self::DiagHealthProbe => "Report kernel, memory, disks, KVM, VFIO, IOMMU, GPUs and fabric links of the host.",
            Self::PackageList => "List the packages installed on the host (dpkg or rpm).",
            Self::SliceTopologyDiscover => "Report GPUs, drives, fabric and what of them could become slots. Changes nothing.",
        }
    }

    /// Whether running it changes anything on the host.
    pub const fn changes_host(self) -> bool {
        match self {
            Self::DiagPing => true,
            Self::DiagHealthProbe | Self::PackageList | Self::SliceTopologyDiscover => false,
        }
    }

    /// The kind with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

impl std::fmt::Display for TaskType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl serde::Serialize for TaskType {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> serde::Deserialize<'de> for TaskType {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(deserializer)?;
        Self::parse(&name).ok_or_else(|| serde::de::Error::custom(format!("unknown task type `{name}`")))
    }
}

impl Task {
    /// Its kind.
    pub const fn task_type(&self) -> TaskType {
        match self {
            Self::DiagPing(_) => TaskType::DiagPing,
            Self::DiagHealthProbe(_) => TaskType::DiagHealthProbe,
            Self::PackageList(_) => TaskType::PackageList,
            Self::SliceTopologyDiscover(_) => TaskType::SliceTopologyDiscover,
        }
    }

    /// Strict parse of the parameters of a task of this kind.
    pub fn parse(task_type: TaskType, params: &str) -> Result<Self, BadParams> {
        match task_type {
            TaskType::DiagPing => params_of(task_type, params, diag_ping::Params::check).map(Self::DiagPing),
            TaskType::DiagHealthProbe => params_of(task_type, params, |_| Ok(())).map(Self::DiagHealthProbe),
            TaskType::PackageList => params_of(task_type, params, package_list::Params::check).map(Self::PackageList),
            TaskType::SliceTopologyDiscover => {
                params_of(task_type, params, slice_topology_discover::Params::check).map(Self::SliceTopologyDiscover)
            }
        }
    }

    /// The parameters as the JSON that goes into the envelope.
    pub fn params_json(&self) -> Box<RawValue> {
        let raw = match self {
            Self::DiagPing(params) => serde_json::value::to_raw_value(params),
            Self::DiagHealthProbe(params) => serde_json::value::to_raw_value(params),
            Self::PackageList(params) => serde_json::value::to_raw_value(params),
            Self::SliceTopologyDiscover(params) => serde_json::value::to_raw_value(params),
        };
        // Plain structs of strings and numbers always serialise.
        raw.unwrap_or_else(|_| RawValue::NULL.to_owned())
    }
}

impl Output {
    /// Strict parse of the output of a task of this kind.
    pub fn parse(task_type: TaskType, output: &str) -> Result<Self, serde_json::Error> {
        match task_type {
            TaskType::DiagPing => serde_json::from_str(output).map(Self::DiagPing),
            TaskType::DiagHealthProbe => serde_json::from_str(output).map(Self::DiagHealthProbe),
            TaskType::PackageList => serde_json::from_str(output).map(Self::PackageList),
            TaskType::SliceTopologyDiscover => serde_json::from_str(output).map(Self::SliceTopologyDiscover),
        }
    }
}

fn params_of<P: serde::de::DeserializeOwned>(
    task_type: TaskType,
    params: &str,
    check: impl FnOnce(&P) -> Result<(), String>,
) -> Result<P, BadParams> {
    let parsed: P = serde_json::from_str(params).map_err(|error| {
        let detail = error.to_string();
        if is_unknown_field(&error) {
            BadParams::UnknownField { task_type, detail }
        } else {
            BadParams::Invalid { task_type, detail }
        }
    })?;
    check(&parsed).map_err(|detail| BadParams::Invalid { task_type, detail })?;
    Ok(parsed)
}

/// serde reports an unknown field only through its message; a test holds it to that wording.
pub(crate) fn is_unknown_field(error: &serde_json::Error) -> bool {
    error.to_string().starts_with("unknown field ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_as_their_kind() {
        for kind in TaskType::ALL {
            assert_eq!(TaskType::parse(kind.as_str()), Some(kind));
        }
        assert_eq!(TaskType::parse("shell.exec"), None);
    }

    #[test]
    fn unknown_fields_and_bad_values_are_told_apart() {
        assert!(matches!(Task::parse(TaskType::DiagPing, r#"{"shell":"rm"}"#), Err(BadParams::UnknownField { .. })));
        assert!(matches!(Task::parse(TaskType::DiagPing, r#"{"hold_ms":-1}"#), Err(BadParams::Invalid { .. })));
        assert!(matches!(Task::parse(TaskType::DiagPing, r#"{"hold_ms":99999999}"#), Err(BadParams::Invalid { .. })));
        assert!(matches!(Task::parse(TaskType::PackageList, r#"{"limit":0}"#), Err(BadParams::Invalid { .. })));
        assert!(matches!(Task::parse(TaskType::DiagHealthProbe, r#"{"x":1}"#), Err(BadParams::UnknownField { .. })));
    }

    #[test]
    fn params_survive_the_envelope() {
        let task = Task::parse(TaskType::DiagPing, r#"{"message":"hi"}"#).expect("parses");
        assert_eq!(Task::parse(task.task_type(), task.params_json().get()).expect("parses again"), task);
    }
}
