//! Every task type of the catalog is complete: it has a handler, schemas and descriptions.

use gpuaas_contract::task::TaskType;

use crate::expect_none;
use crate::files::{FILES, exists};

#[test]
fn every_task_has_its_parameters_its_handler_and_its_schemas() {
    let mut broken = vec![];
    for kind in TaskType::ALL {
        let module = kind.as_str().replace('.', "_");
        let mut wanted =
            vec![format!("crates/contract/src/task/{module}.rs"), format!("crates/contract/testdata/schema/{kind}.json")];
        if exists("crates/agent") {
            wanted.push(format!("crates/agent/src/handler/{module}.rs"));
        }
        broken.extend(wanted.into_iter().filter(|path| !exists(path)).map(|path| format!("{kind}: {path} is missing")));
    }
    expect_none(&broken, "docs/adding-a-task.md lists the steps.");
}

#[test]
fn every_task_is_described_in_the_documents() {
    let described = |kind: &TaskType| {
        let name = format!("`{kind}`");
        FILES.iter().any(|file| file.path.starts_with("docs/") && file.path.ends_with(".md") && file.text.contains(&name))
    };
    let broken: Vec<String> =
        TaskType::ALL.iter().filter(|kind| !described(kind)).map(|kind| format!("`{kind}` is in no document")).collect();
    expect_none(&broken, "Add a line to the table in docs/adding-a-task.md.");
}

#[test]
fn every_handler_belongs_to_a_task() {
    let folder = "crates/agent/src/handler/";
    let known: Vec<String> = TaskType::ALL.iter().map(|kind| format!("{folder}{}.rs", kind.as_str().replace('.', "_"))).collect();
    let broken: Vec<String> = FILES
        .iter()
        .filter(|file| file.path.strip_prefix(folder).is_some_and(|name| !name.contains('/') && name.contains('_')))
        .filter(|file| !known.contains(&file.path))
        .map(|file| file.path.clone())
        .collect();
    expect_none(
        &broken,
        "Name the file after its task (`a.b_c` becomes a_b_c.rs), or move what handlers share out of the folder.",
    );
}
