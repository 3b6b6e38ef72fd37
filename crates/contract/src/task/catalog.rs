//! Everything that is derived from the table of tasks.

/// Declares the kinds of tasks: a variant, its module with `Params` and `Output`, and the fields of its [`Facts`](super::Facts). All code
/// that has to enumerate the kinds is generated here.
macro_rules! tasks {
    ($($variant:ident($module:ident) { name: $name:literal, summary: $summary:literal, $($fact:ident: $value:expr,)+ })+) => {
        /// A task for a node, with its parameters.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Task {
            $(#[doc = concat!("`", $name, "`: ", $summary)] $variant($module::Params),)+
        }

        /// The kind of a task, without its parameters.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum TaskType {
            $(#[doc = concat!("`", $name, "`")] $variant,)+
        }

        /// The output of a task that succeeded.
        #[derive(Clone, Debug, PartialEq, serde::Serialize)]
        #[serde(untagged)]
        pub enum Output {
            $(#[doc = concat!("Answer to `", $name, "`.")] $variant($module::Output),)+
        }

        impl TaskType {
            /// All kinds, in the order of the catalog.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// The kind's row of the table.
            pub const fn facts(self) -> &'static Facts {
                match self {
                    $(Self::$variant => const { &Facts { name: $name, summary: $summary, $($fact: $value),+ } },)+
                }
            }

            /// Example parameters and outputs of this kind, as JSON.
            pub const fn examples(self) -> &'static Examples {
                match self {
                    $(Self::$variant => &$module::EXAMPLES,)+
                }
            }

            /// JSON Schemas of the parameters and of the output.
            pub(crate) fn schemas(self) -> (schemars::Schema, schemars::Schema) {
                match self {
                    $(Self::$variant => (schemars::schema_for!($module::Params), schemars::schema_for!($module::Output)),)+
                }
            }
        }

        impl Task {
            /// The kind of the task.
            pub const fn task_type(&self) -> TaskType {
                match self {
                    $(Self::$variant(_) => TaskType::$variant,)+
                }
            }

            /// Parses the parameters of a task of this kind, strictly.
            pub fn parse(task_type: TaskType, params: &str) -> Result<Self, BadParams> {
                match task_type {
                    $(TaskType::$variant => params_of(task_type, params).map(Self::$variant),)+
                }
            }

            /// The parameters as JSON, as they go into the envelope.
            pub fn params_json(&self) -> Box<RawValue> {
                let raw = match self {
                    $(Self::$variant(params) => serde_json::value::to_raw_value(params),)+
                };
                // Serializing plain structs of strings and numbers cannot fail.
                raw.unwrap_or_else(|_| RawValue::NULL.to_owned())
            }

            fn parameters(&self) -> &dyn Parameters {
                match self {
                    $(Self::$variant(params) => params,)+
                }
            }
        }

        impl Output {
            /// The kind of task that produces this output.
            pub const fn task_type(&self) -> TaskType {
                match self {
                    $(Self::$variant(_) => TaskType::$variant,)+
                }
            }

            /// Parses the output of a task of this kind, strictly.
            pub fn parse(task_type: TaskType, output: &str) -> Result<Self, serde_json::Error> {
                match task_type {
                    $(TaskType::$variant => serde_json::from_str(output).map(Self::$variant),)+
                }
            }
        }
    };
}
pub(super) use tasks;
