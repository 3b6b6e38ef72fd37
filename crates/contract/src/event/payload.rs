//! Declares the data of events: each field states who sees it.

/// The data of an event.
pub trait Payload {
    /// Adds the names of the fields that tenants see. All other fields are for operators only.
    fn tenant_fields(fields: &mut Vec<&'static str>);
}

/// An absent payload has no fields to show; a present one shows its own.
impl<T: Payload> Payload for Option<T> {
    fn tenant_fields(fields: &mut Vec<&'static str>) {
        T::tenant_fields(fields);
    }
}

/// Declares payloads. Each field is preceded by who sees it: `tenant` for everyone, `operator` for operators only, and `flat` (with
/// `#[serde(flatten)]`) for a nested payload, whose own fields state it. A field that names a node, a task or something inside a node is
/// for operators.
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
