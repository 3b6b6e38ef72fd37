//! Enums that are serialized by name: each name is declared once, and readers tolerate names that they do not know.

use std::fmt;

/// An enum whose values have a name on the wire and in the store. [`named!`] implements it.
pub trait Named: Copy + PartialEq + 'static {
    /// All values, in order of declaration.
    const VALUES: &'static [Self];

    /// Name on the wire and in the store.
    fn name(self) -> &'static str;

    /// Looks a value up by name.
    fn from_name(name: &str) -> Option<Self> {
        Self::VALUES.iter().copied().find(|value| value.name() == name)
    }
}

/// Declares an enum with a name for each value, and derives the rest: `ALL`, `as_str`, `parse`, `Display`, `FromStr`, serde, and a JSON
/// Schema that lists the names.
macro_rules! named {
    ($(#[$meta:meta])* pub enum $type:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
        )]
        pub enum $type {
            $($(#[$doc])* #[serde(rename = $name)] $variant,)+
        }

        impl $type {
            /// All values, in order of declaration.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// Name on the wire and in the store.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// Looks a value up by name.
            pub fn parse(name: &str) -> Option<Self> {
                <Self as $crate::names::Named>::from_name(name)
            }
        }

        impl $crate::names::Named for $type {
            const VALUES: &'static [Self] = &Self::ALL;

            fn name(self) -> &'static str {
                self.as_str()
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::names::UnknownName;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                Self::parse(name).ok_or_else(|| $crate::names::UnknownName::of::<Self>(name))
            }
        }
    };
}
pub(crate) use named;

/// Maximum number of characters of an unknown name that an error repeats.
const MAX_SHOWN: usize = 40;

/// No value has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is none of {}", .known.join(", "))]
pub struct UnknownName {
    name: String,
    known: Vec<&'static str>,
}

impl UnknownName {
    /// The error for `name`, listing the names of `T`.
    pub fn of<T: Named>(name: &str) -> Self {
        let name = name.chars().filter(|character| !character.is_control()).take(MAX_SHOWN).collect();
        Self { name, known: T::VALUES.iter().map(|value| value.name()).collect() }
    }
}

/// A value received from a server that may be newer than this client. An unknown value keeps its name, so that the client can still show
/// it; it is never mistaken for a known one.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Open<T> {
    /// A value that this version knows.
    Known(T),
    /// The name of a value that this version does not know.
    Unknown(String),
}

impl<T: Named> Open<T> {
    /// Looks a value up by name, and keeps the name if there is none.
    pub fn read(name: &str) -> Self {
        T::from_name(name).map_or_else(|| Self::Unknown(name.to_owned()), Self::Known)
    }

    /// Name on the wire, known or not.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Known(value) => value.name(),
            Self::Unknown(name) => name,
        }
    }

    /// The value, if this version knows it.
    pub fn known(&self) -> Option<T> {
        match self {
            Self::Known(value) => Some(*value),
            Self::Unknown(_) => None,
        }
    }
}

impl<T> From<T> for Open<T> {
    fn from(value: T) -> Self {
        Self::Known(value)
    }
}

impl<T: PartialEq> PartialEq<T> for Open<T> {
    fn eq(&self, other: &T) -> bool {
        match self {
            Self::Known(value) => value == other,
            Self::Unknown(_) => false,
        }
    }
}

impl<T: Named> fmt::Display for Open<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl<T: Named> fmt::Debug for Open<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl<T: Named> serde::Serialize for Open<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de, T: Named> serde::Deserialize<'de> for Open<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Ok(T::from_name(&name).map_or(Self::Unknown(name), Self::Known))
    }
}

impl<T: schemars::JsonSchema> schemars::JsonSchema for Open<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> std::borrow::Cow<'static, str> {
        T::schema_id()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        T::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(unreachable_pub, reason = "the macro is for public types")]
    mod color {

        named! {
            /// For the tests.
            pub enum Color {
                /// One.
                Red = "red",
                /// Two.
                DeepBlue = "deep_blue",
            }
        }
    }
    use color::Color;

    #[test]
    fn a_value_is_written_as_its_name_and_found_by_it() {
        for color in Color::ALL {
            assert_eq!(Color::parse(color.as_str()), Some(color));
            assert_eq!(serde_json::to_value(color).expect("serializes"), color.as_str());
            assert_eq!(color.as_str().parse::<Color>(), Ok(color));
        }
        assert_eq!(
            "green\u{7}".parse::<Color>().map_err(|error| error.to_string()),
            Err("`green` is none of red, deep_blue".to_owned())
        );
    }

    #[test]
    fn an_open_value_keeps_a_name_it_does_not_know() {
        let read = |text: &str| serde_json::from_str::<Open<Color>>(text).expect("any name");
        assert_eq!(read("\"red\""), Color::Red);
        let other = read("\"green\"");
        assert_eq!((other.known(), other.as_str()), (None, "green"));
        assert!(Color::ALL.into_iter().all(|color| other != color));
        assert_eq!(serde_json::to_string(&other).expect("serializes"), "\"green\"");
        assert!(serde_json::from_str::<Open<Color>>("7").is_err());
    }
}
