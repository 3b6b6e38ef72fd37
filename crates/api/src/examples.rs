//! A request and its response for every operation, for the OpenAPI document and the reference page.
//!
//! `examples.json` lists them in an order in which they can be sent: what a request refers to was created by an earlier one. A test of the
//! command line (`cli/tests/cli/examples`) sends them all to a real server and compares each response with the one here.

use std::sync::LazyLock;

use serde_json::Value;

use crate::endpoints::Endpoint;

/// One request and its response.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Example {
    /// The name of the endpoint.
    pub operation: String,
    /// The path, with the query after a `?`.
    pub path: String,
    /// The body of the request, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
    /// The response. For a stream, its first document; for text, its first lines. Long lists are truncated.
    #[serde(default)]
    pub response: Value,
}

/// All examples, in an order in which they can be sent.
pub fn all() -> &'static [Example] {
    static EXAMPLES: LazyLock<Vec<Example>> =
        LazyLock::new(|| serde_json::from_str(include_str!("examples.json")).unwrap_or_default());
    &EXAMPLES
}

/// The example of one operation. A test checks that every operation has one.
pub fn of(operation: &str) -> Option<&'static Example> {
    all().iter().find(|example| example.operation == operation)
}

impl Example {
    /// The value of a variable segment of the endpoint's path.
    pub fn segment(&self, endpoint: &Endpoint, name: &str) -> Option<&str> {
        let wanted = format!("{{{name}}}");
        let place = endpoint.path.split('/').position(|segment| segment == wanted)?;
        self.path.split('?').next()?.split('/').nth(place)
    }

    /// The value of a field of the query.
    pub fn query(&self, name: &str) -> Option<&str> {
        let (_, query) = self.path.split_once('?')?;
        query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::endpoints::ENDPOINTS;

    #[test]
    fn every_operation_has_one_example() {
        let parsed: Vec<Example> = serde_json::from_str(include_str!("examples.json")).expect("examples.json");
        let names: BTreeSet<&str> = parsed.iter().map(|example| example.operation.as_str()).collect();
        assert_eq!(names.len(), parsed.len(), "an operation has two examples");
        for endpoint in ENDPOINTS {
            assert!(
                names.contains(endpoint.name),
                "`{}` has no example: write its request into crates/api/src/examples.json where it can be sent, and run \
                 `UPDATE_EXAMPLES=1 cargo test -p gpuaas --test cli examples`, which adds the response",
                endpoint.name
            );
        }
        for example in &parsed {
            assert!(ENDPOINTS.iter().any(|endpoint| endpoint.name == example.operation), "no operation `{}`", example.operation);
        }
    }

    #[test]
    fn an_example_has_the_path_and_the_documents_of_its_operation() {
        for endpoint in ENDPOINTS {
            let example = of(endpoint.name).expect("an example");
            let path = example.path.split('?').next().unwrap_or_default();
            let fits = |(wanted, found): (&str, &str)| wanted == found || (wanted.starts_with('{') && !found.is_empty());
            assert_eq!(path.split('/').count(), endpoint.path.split('/').count(), "{}", endpoint.name);
            assert!(endpoint.path.split('/').zip(path.split('/')).all(fits), "{}: {path}", endpoint.name);
            assert_eq!(example.body.is_some(), endpoint.body.is_some(), "{}", endpoint.name);
            let query = example.path.split_once('?').map(|(_, query)| query).unwrap_or_default();
            let query: serde_json::Map<String, Value> = query
                .split('&')
                .filter(|pair| !pair.is_empty())
                .filter_map(|pair| pair.split_once('='))
                .map(|(name, value)| (name.to_owned(), serde_json::from_str(value).unwrap_or_else(|_| value.into())))
                .collect();
            let documents = [
                (endpoint.query, Some(Value::Object(query))),
                (endpoint.body, example.body.clone()),
                (endpoint.answer, Some(example.response.clone())),
            ];
            for (kind, document) in documents {
                if let (Some(kind), Some(document)) = (kind, document) {
                    (kind.check)(document).unwrap_or_else(|error| panic!("{}: {error}", endpoint.name));
                }
            }
        }
    }
}
