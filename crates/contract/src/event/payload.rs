//! How the data of an event is declared: each field with who sees it.

/// The data of an event.
pub trait Payload {
    /// Adds the names of the fields that tenants see. What is not among them is shown to those who run the platform only.
    fn tenant_fields(fields: &mut Vec<&'static str>);
}

/// What is absent shows nothing, and what is there shows its own fields.
impl<T: Payload> Payload for Option<T> {
    fn tenant_fields(fields: &mut Vec<&'static str>) {
        T::tenant_fields(fields);
    }
}

/// Declares payloads. Before each field stands who sees it: `tenant` for everybody, `operator` for those who run the platform, and `flat`
/// (with `#[serde(flatten)]`) for fields of another payload, which say it themselves. A field that names a node, a task or something that
/// happened inside of one is for operators.
macro_rules! payloads {
    ($($(#[$meta:meta])* pub struct $name:ident { $($(#[$attribute:meta])* $seen:ident $field:ident: $type:ty,)* })+) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        pub struct $name {
            $($(#[$attribute])* pub $field: $type,)*
        }

        impl $crate::event::Payload for $name {
            fn tenant_fields(fields: &mut Vec<&'static str>) {
                let _ = &fields;
                $($crate::event::payload::seen_by!($seen, fields, $field, $type);)*
            }
        }
    )+};
}
pub(super) use payloads;

macro_rules! seen_by {
    (operator, $fields:ident, $field:ident, $type:ty) => {};
    (tenant, $fields:ident, $field:ident, $type:ty) => {
        $fields.push(stringify!($field).trim_start_matches("r#"))
    };
    (flat, $fields:ident, $field:ident, $type:ty) => {
        <$type as $crate::event::Payload>::tenant_fields($fields)
    };
}
pub(super) use seen_by;
