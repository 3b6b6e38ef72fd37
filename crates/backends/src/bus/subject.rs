//! The names of events on NATS.
//!
//! An event of kind `gpuaas.allocation.requested.v1` about `alloc_7` has the subject `gpuaas.allocation.requested.v1.alloc_7`:
//! the kind with the configured prefix in place of `gpuaas`, its dots kept, and the aggregate as the last token. With the `nats`
//! tool you can subscribe to `gpuaas.allocation.>`, or to `gpuaas.>` for everything.
//!
//! In every token, all characters except letters, digits, `-` and `_` become `_`, because some have a meaning for NATS. The
//! subject is only for filtering: the exact kind and aggregate are in the headers `Gpuaas-Kind` and `Gpuaas-Subject`.

/// The start of every kind, which the prefix replaces.
const OURS: &str = "gpuaas.";

/// Returns the subject of one event.
pub(super) fn of_event(prefix: &str, kind: &str, aggregate: &str) -> String {
    format!("{}.{}", of_kind(prefix, kind), token(aggregate))
}

/// Returns the filter of a consumer of one kind.
pub(super) fn filter(prefix: &str, kind: &str) -> String {
    format!("{}.*", of_kind(prefix, kind))
}

/// Returns the subjects of the stream, which are also the filter of a consumer of all kinds.
pub(super) fn all(prefix: &str) -> String {
    format!("{prefix}.>")
}

fn of_kind(prefix: &str, kind: &str) -> String {
    let tokens: Vec<String> = kind.strip_prefix(OURS).unwrap_or(kind).split('.').map(token).collect();
    format!("{prefix}.{}", tokens.join("."))
}

fn token(text: &str) -> String {
    if text.is_empty() {
        return "_".to_owned();
    }
    text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_keeps_its_dots_and_the_aggregate_comes_last() {
        assert_eq!(of_event("gpuaas", "gpuaas.allocation.requested.v1", "alloc_7"), "gpuaas.allocation.requested.v1.alloc_7");
        assert_eq!(of_event("site-a", "gpuaas.node.enrolled.v1", "node_1"), "site-a.node.enrolled.v1.node_1");
        assert_eq!(filter("gpuaas", "gpuaas.node.enrolled.v1"), "gpuaas.node.enrolled.v1.*");
        assert_eq!(of_event("gpuaas", "other.kind", "x"), "gpuaas.other.kind.x");
    }

    #[test]
    fn nothing_in_a_name_means_anything_to_nats() {
        assert_eq!(of_event("gpuaas", "gpuaas.a.>.*", "b.c *>\r\n$"), "gpuaas.a._._.b_c______");
        assert_eq!(of_event("gpuaas", "gpuaas..x.", ""), "gpuaas._.x._._");
        assert_eq!(of_event("gpuaas", "ä", "ö"), "gpuaas._._");
    }
}
