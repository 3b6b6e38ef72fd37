//! Every metric is documented for operators, and every documented metric exists.

use std::collections::BTreeSet;

use crate::expect_none;
use crate::files::FILES;

const PAGE: &str = "docs/metrics-and-health.md";
/// The prefix that the registry adds to every name.
const PREFIX: &str = "gpuaas_";
/// The suffix that the text format adds to the name of a counter.
const COUNTER: &str = "_total";

/// Returns the metric names that a source file registers, as written there.
fn registered(code: &str) -> Vec<&str> {
    let calls = code.match_indices("registry.register(").map(|(at, call)| &code[at + call.len()..]);
    let name = |arguments: &str| -> Option<std::ops::Range<usize>> {
        let begin = arguments.find('"').filter(|at| arguments[..*at].trim().is_empty())? + 1;
        Some(begin..begin + arguments[begin..].find('"')?)
    };
    calls.filter_map(|arguments| name(arguments).map(|range| &arguments[range])).collect()
}

/// Returns the names in the first column of the page's tables.
fn explained(page: &str) -> BTreeSet<&str> {
    page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).filter(|name| name.starts_with(PREFIX)).collect()
}

#[test]
fn the_page_on_metrics_lists_every_metric_and_no_other() {
    let page = FILES.iter().find(|file| file.path == PAGE).unwrap_or_else(|| panic!("{PAGE} is missing"));
    let explained = explained(&page.text);
    let sources = FILES.iter().filter(|file| file.is_rust() && file.path.starts_with("crates/") && file.path.contains("/src/"));
    let mut names = BTreeSet::new();
    let mut broken = Vec::new();
    for file in sources {
        for name in registered(&file.text) {
            let forms = [format!("{PREFIX}{name}"), format!("{PREFIX}{name}{COUNTER}")];
            if !forms.iter().any(|form| explained.contains(form.as_str())) {
                broken.push(format!("{}: `{}` is not explained", file.path, forms[0]));
            }
            names.extend(forms);
        }
    }
    assert!(names.len() >= 2 * 10, "the way in which metrics are registered has changed; this test must learn it");
    broken.extend(explained.iter().filter(|name| !names.contains(**name)).map(|name| format!("{PAGE}: there is no `{name}`")));
    expect_none(&broken, "Operators alert on these names: keep the tables of the page as they are in the code.");
}

#[test]
fn names_of_metrics_are_found() {
    let code = "registry.register(\"links\", \"Open\", x);\n registry.register(\n    \"tasks_ended\",\n \"Ended\", y);\n registry.register(name, z);";
    assert_eq!(registered(code), ["links", "tasks_ended"]);
    let page = "| metric |\n| `gpuaas_links` | gauge |\n| `status` | no |\ntext with `gpuaas_other`\n";
    assert_eq!(explained(page), BTreeSet::from(["gpuaas_links"]));
}
