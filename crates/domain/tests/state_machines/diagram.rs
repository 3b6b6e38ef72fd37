//! Reads a diagram from the page and compares it with the observed transitions.

use std::collections::{BTreeMap, BTreeSet};

use crate::observed::{Observed, Transition};

const PAGE: &str = include_str!("../../../../docs/state-machines.md");
/// A Mermaid pseudo-state that splits one transition into several.
const CHOICE: &str = "<<choice>>";

/// What the page shows about one state machine.
#[derive(Debug, Default)]
struct Drawn {
    /// All transitions, with the line or lines that draw them.
    transitions: BTreeMap<Transition, String>,
    /// The rows of the table: a state and the events that report it.
    events: BTreeSet<(String, String)>,
    /// The first column of the table.
    states: BTreeSet<String>,
}

/// Fails with the lines to add and to remove if the section with this heading does not match the observations.
pub(crate) fn assert_drawn(heading: &str, states: &[&str], observed: &Observed) {
    let differences = differences(&drawn(section(PAGE, heading)), states, observed);
    assert!(
        differences.is_empty(),
        "\n\ndocs/state-machines.md, section `{heading}`, does not show what the code decides:\n\n  {}\n",
        differences.join("\n  ")
    );
}

fn differences(drawn: &Drawn, states: &[&str], observed: &Observed) -> Vec<String> {
    let mut lines = Vec::new();
    for missing in observed.transitions.iter().filter(|seen| !drawn.transitions.contains_key(seen)) {
        lines.push(format!("add to the diagram:       {missing}"));
    }
    for (never, line) in drawn.transitions.iter().filter(|(drawn, _)| !observed.transitions.contains(drawn)) {
        lines.push(format!("remove from the diagram:  {line}  (the code never decides `{never}`)"));
    }
    for (state, event) in observed.events.difference(&drawn.events) {
        lines.push(format!("add to the table:         `{event}` in the row of `{state}`"));
    }
    for (state, event) in drawn.events.difference(&observed.events) {
        lines.push(format!("remove from the table:    `{event}` in the row of `{state}`"));
    }
    let known: BTreeSet<String> = states.iter().map(|state| (*state).to_owned()).collect();
    for state in known.difference(&drawn.states) {
        lines.push(format!("add to the table:         a row for `{state}`"));
    }
    for state in drawn.states.difference(&known) {
        lines.push(format!("remove from the table:    the row of `{state}`"));
    }
    lines
}

/// The text under a heading, up to the next heading of the same level.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let start = page.find(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("the page has no section `{heading}`"));
    let text = &page[start + 4..];
    text.find("\n## ").map_or(text, |end| &text[..end])
}

fn drawn(section: &str) -> Drawn {
    let (_, after) = section.split_once("```mermaid\n").expect("the section has a diagram");
    let (diagram, table) = after.split_once("```").expect("the diagram ends");
    let (states, events) = rows(table);
    Drawn { transitions: transitions(diagram), events, states }
}

fn transitions(diagram: &str) -> BTreeMap<Transition, String> {
    let lines: Vec<&str> = diagram.lines().map(str::trim).collect();
    let choices: BTreeSet<&str> =
        lines.iter().filter_map(|line| line.strip_prefix("state ")?.strip_suffix(CHOICE)).map(str::trim).collect();
    let arrows: Vec<(&str, &str, &str, &str)> = lines.iter().filter_map(|line| arrow(line)).collect();
    let mut transitions = BTreeMap::new();
    let mut draw = |from: &str, to: &str, by: &str, line: String| {
        // A choice may lead back to the state it came from; that is not a transition.
        if from != to || !line.contains(" and ") {
            for by in by.split(", ") {
                let transition = Transition { from: from.to_owned(), to: to.to_owned(), by: by.to_owned() };
                assert!(transitions.insert(transition, line.clone()).is_none(), "drawn twice: {line}");
            }
        }
    };
    for (from, to, by, line) in arrows.iter().filter(|(from, ..)| !choices.contains(from)) {
        if choices.contains(to) {
            for (_, to, _, end) in arrows.iter().filter(|(from, ..)| from == to) {
                draw(from, to, by, format!("{line} and {end}"));
            }
        } else {
            draw(from, to, by, (*line).to_owned());
        }
    }
    transitions
}

/// Parses `from --> to : label`. Arrows that leave a choice have no label.
fn arrow(line: &str) -> Option<(&str, &str, &str, &str)> {
    let (from, rest) = line.split_once(" --> ")?;
    let (to, by) = rest.split_once(" : ").unwrap_or((rest, ""));
    Some((from, to, by, line))
}

/// States and events of a table that has them in its first two columns.
fn rows(text: &str) -> (BTreeSet<String>, BTreeSet<(String, String)>) {
    let (mut states, mut events) = (BTreeSet::new(), BTreeSet::new());
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let state = cells[1].trim_matches('`').to_owned();
        for event in cells[2].split('`').skip(1).step_by(2) {
            events.insert((state.clone(), event.to_owned()));
        }
        states.insert(state);
    }
    (states, events)
}

#[test]
fn a_difference_is_told_as_the_lines_to_change() {
    let page = "\n## Lamp\n\n```mermaid\nstateDiagram-v2\n    state switch <<choice>>\n    [*] --> off : make\n    off --> switch : press\n    \
                on --> switch : press\n    switch --> on\n    switch --> broken\n```\n\n| state | event |\n|---|---|\n| `on` | `lamp.on` |\n\n## Next\n";
    let mut observed = Observed::default();
    for (from, to, by) in [("[*]", "off", "make"), ("off", "on", "press"), ("on", "broken", "drop")] {
        observed.transitions.insert(Transition { from: from.to_owned(), to: to.to_owned(), by: by.to_owned() });
    }
    observed.events.insert(("on".to_owned(), "lamp.lit".to_owned()));
    let lines = differences(&drawn(section(page, "Lamp")), &["on", "off"], &observed);
    assert_eq!(
        lines,
        [
            "add to the diagram:       on --> broken : drop",
            "remove from the diagram:  off --> switch : press and switch --> broken  (the code never decides `off --> broken : press`)",
            "remove from the diagram:  on --> switch : press and switch --> broken  (the code never decides `on --> broken : press`)",
            "add to the table:         `lamp.lit` in the row of `on`",
            "remove from the table:    `lamp.on` in the row of `on`",
            "add to the table:         a row for `off`",
        ]
    );
}
