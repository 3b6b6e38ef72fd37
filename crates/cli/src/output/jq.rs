//! `--jq`: filters a result with a jq expression before it is printed.
//!
//! The expression runs on a thread of its own, because an evaluation cannot be interrupted: one that takes too long is abandoned,
//! and the program exits with an error. The expression can neither read files nor load modules.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jaq_core::load::{Arena, Error as LoadError, Errors as LoadErrors, File, Loader};
use jaq_core::{Compiler, Ctx, Vars, compile, data};
use jaq_json::{Val, read, write};

use crate::error::CliError;
use crate::exit::Exit;

/// Time limit for one document.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest result for one document, in bytes.
const MAX_OUTPUT: usize = 32 * 1024 * 1024;
/// Stack size of the thread. Expressions may recurse, but no filter of a document needs more than this.
const STACK_BYTES: usize = 64 * 1024 * 1024;
/// Number of characters of an expression that an error message quotes.
const MAX_SHOWN: usize = 40;

/// Formats that jq has and the library lacks.
const FORMATS: &str = r#"
def @csv: [.[] | if type == "string" then "\"" + (split("\"") | join("\"\"")) + "\"" elif . == null then "" else tostring end] | join(",");
def @tsv: [.[] | if . == null then "" else tostring | split("\\") | join("\\\\") | split("\t") | join("\\t") | split("\n") | join("\\n") end] | join("\t");
"#;

/// Why a document has no result.
enum JqError {
    /// The expression cannot be parsed or compiled.
    Expression(String),
    /// The expression does not fit the document.
    Evaluation(String),
    /// The result is too large.
    TooLarge,
}

/// A compiled expression.
#[derive(Debug)]
pub(super) struct Jq {
    worker: Mutex<Worker>,
    timeout: Duration,
}

#[derive(Debug)]
struct Worker {
    documents: SyncSender<Vec<u8>>,
    results: Receiver<Result<Vec<u8>, JqError>>,
}

impl std::fmt::Debug for JqError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JqError")
    }
}

impl Jq {
    /// Compiles an expression. This fails before the first request to a server if the expression is invalid.
    pub(super) fn new(expression: &str) -> Result<Self, CliError> {
        // One document at a time. The first result is that of compiling the expression.
        let (documents, work) = sync_channel::<Vec<u8>>(1);
        let (answer, results) = sync_channel(1);
        let expression = expression.to_owned();
        let thread = std::thread::Builder::new().name("jq".to_owned()).stack_size(STACK_BYTES);
        thread
            .spawn(move || run(&expression, &work, &answer))
            .map_err(|error| CliError::internal(format!("cannot start a thread for --jq: {error}")))?;
        let jq = Self { worker: Mutex::new(Worker { documents, results }), timeout: TIMEOUT };
        // The first result is about the expression itself.
        jq.result()?;
        Ok(jq)
    }

    /// Applies the expression to a document. Returns one line per value: strings without quotes, everything else as JSON.
    pub(super) fn apply(&self, document: Vec<u8>) -> Result<Vec<u8>, CliError> {
        let gone = |_| CliError::internal("the thread of --jq ended");
        self.worker.lock().unwrap_or_else(PoisonError::into_inner).documents.send(document).map_err(gone)?;
        self.result()
    }

    fn result(&self) -> Result<Vec<u8>, CliError> {
        let received = self.worker.lock().unwrap_or_else(PoisonError::into_inner).results.recv_timeout(self.timeout);
        match received {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(JqError::Expression(message))) => Err(CliError::usage("jq_invalid", format!("--jq: {message}"))
                .hint("expressions are those of jq, such as '.[] | select(.state == \"active\") | .name'")),
            Ok(Err(JqError::Evaluation(message))) => Err(CliError::usage("jq_failed", format!("--jq: {message}"))
                .hint("`-o json` without --jq prints the document that the expression gets")),
            Ok(Err(JqError::TooLarge)) => {
                let message = format!("--jq: the result is larger than {} MiB", MAX_OUTPUT / (1024 * 1024));
                Err(CliError::usage("jq_too_large", message).hint("select less, or bound it with limit(N; EXPR)"))
            }
            Err(RecvTimeoutError::Timeout) => {
                let message = format!("--jq: the expression did not finish within {} seconds", self.timeout.as_secs());
                Err(CliError::new(Exit::Usage, "jq_timeout", message).hint("an expression such as `repeat` may never end"))
            }
            Err(RecvTimeoutError::Disconnected) => Err(CliError::internal("the thread of --jq ended")),
        }
    }
}

/// Compiles the expression, then evaluates documents until the channel closes.
fn run(expression: &str, documents: &Receiver<Vec<u8>>, results: &SyncSender<Result<Vec<u8>, JqError>>) {
    let arena = Arena::default();
    let filter = match compiled(&arena, expression) {
        Ok(filter) => filter,
        Err(message) => return drop(results.send(Err(JqError::Expression(message)))),
    };
    let mut answer = Ok(Vec::new());
    loop {
        if results.send(answer).is_err() {
            return;
        }
        let Ok(document) = documents.recv() else { return };
        answer = evaluated(&filter, &document);
    }
}

type Filter = jaq_core::Filter<data::JustLut<Val>>;

fn compiled(arena: &Arena, expression: &str) -> Result<Filter, String> {
    let formats = jaq_core::load::parse(FORMATS, |parser| parser.defs()).unwrap_or_default();
    let defs = jaq_core::defs().chain(jaq_std::defs()).chain(jaq_json::defs()).chain(formats);
    let funs = jaq_core::funs().chain(jaq_std::funs()).chain(jaq_json::funs());
    let modules =
        Loader::new(defs).load(arena, File { code: expression, path: () }).map_err(|errors| unreadable(expression, &errors))?;
    Compiler::default().with_funs(funs).compile(modules).map_err(|errors| undefined(&errors))
}

fn evaluated(filter: &Filter, document: &[u8]) -> Result<Vec<u8>, JqError> {
    let document = read::parse_single(document).map_err(|error| JqError::Evaluation(format!("no JSON document: {error}")))?;
    let context = Ctx::<data::JustLut<Val>>::new(&filter.lut, Vars::new([]));
    let mut output = Vec::new();
    for value in filter.id.run((context, document)) {
        let value = match value {
            Ok(value) => value,
            // An exception that is not an error is `halt`, which ends the evaluation.
            Err(exception) => match exception.get_err() {
                Ok(error) => return Err(JqError::Evaluation(error.to_string())),
                Err(_) => break,
            },
        };
        match &value {
            Val::TStr(text) | Val::BStr(text) => output.extend_from_slice(text),
            Val::Null | Val::Bool(_) | Val::Num(_) | Val::Arr(_) | Val::Obj(_) => {
                write::write(&mut output, &write::Pp::default(), 0, &value)
                    .map_err(|error| JqError::Evaluation(error.to_string()))?;
            }
        }
        output.push(b'\n');
        if output.len() > MAX_OUTPUT {
            return Err(JqError::TooLarge);
        }
    }
    Ok(output)
}

/// Describes why an expression cannot be parsed.
fn unreadable(expression: &str, errors: &LoadErrors<&str, ()>) -> String {
    let found = |expected: &str, rest: &str| {
        if rest.is_empty() {
            format!("expected {expected} at the end of the expression")
        } else {
            let position = expression.len().saturating_sub(rest.len()) + 1;
            let shown: String = rest.chars().take(MAX_SHOWN).collect();
            format!("expected {expected} at character {position}, found `{shown}`")
        }
    };
    let message = errors.iter().find_map(|(_, error)| match error {
        LoadError::Io(missing) => missing.first().map(|(path, _)| format!("modules such as `{path}` cannot be loaded here")),
        LoadError::Lex(faults) => faults.first().map(|(expected, rest)| found(expected.as_str(), rest)),
        LoadError::Parse(faults) => faults.first().map(|(expected, rest)| found(expected.as_str(), rest)),
    });
    message.unwrap_or_else(|| "the expression cannot be read".to_owned())
}

/// Describes the first undefined name in an expression.
#[allow(clippy::wildcard_enum_match_arm, reason = "an enum of the jq compiler that may grow")]
fn undefined(errors: &compile::Errors<&str, ()>) -> String {
    let first = errors.iter().flat_map(|(_, faults)| faults).next();
    first.map_or_else(
        || "the expression cannot be compiled".to_owned(),
        |(name, kind)| match kind {
            compile::Undefined::Filter(arguments) => format!("there is no filter `{name}` with {arguments} arguments"),
            other => format!("there is no {} `{name}`", other.as_str()),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filtered(expression: &str, document: &str) -> Result<String, String> {
        let jq = Jq::new(expression).map_err(|error| error.code)?;
        let output = jq.apply(document.as_bytes().to_vec()).map_err(|error| format!("{}: {}", error.code, error.message))?;
        Ok(String::from_utf8(output).expect("text"))
    }

    #[test]
    fn texts_are_printed_bare_and_everything_else_as_json() {
        let nodes = r#"[{"name":"a","gpus":8,"tags":{"x":null}},{"name":"b","gpus":0,"tags":{}}]"#;
        assert_eq!(filtered(".[].name", nodes), Ok("a\nb\n".to_owned()));
        assert_eq!(filtered("map(.gpus) | add", nodes), Ok("8\n".to_owned()));
        assert_eq!(filtered(".[] | select(.gpus > 0) | .tags", nodes), Ok("{\"x\":null}\n".to_owned()));
        assert_eq!(filtered(".[] | [.name, .gpus] | @csv", nodes), Ok("\"a\",8\n\"b\",0\n".to_owned()));
        assert_eq!(
            filtered("[\"a\\tb\", 1, null, \"c\\\"d\"] | @tsv, @csv", nodes),
            Ok("a\\tb\t1\t\tc\"d\n\"a\tb\",1,,\"c\"\"d\"\n".to_owned())
        );
        assert_eq!(filtered("empty", nodes), Ok(String::new()));
        assert_eq!(filtered(".[0].name, halt, .[1].name", nodes), Ok("a\n".to_owned()), "halt ends the output, not the program");
    }

    #[test]
    fn one_expression_serves_many_documents() {
        let jq = Jq::new(".n + 1").expect("compiles");
        for n in 0..3 {
            let output = jq.apply(format!("{{\"n\":{n}}}").into_bytes()).expect("a number");
            assert_eq!(output, format!("{}\n", n + 1).into_bytes());
        }
    }

    #[test]
    fn a_bad_expression_is_refused_with_its_place() {
        for (expression, expected) in [
            (".[", "end of the expression"),
            (".a | ", "end of the expression"),
            (".a }", "character 4"),
            ("nodes", "no filter `nodes` with 0 arguments"),
            ("$x", "no variable `$x`"),
            ("include \"files\"; .", "cannot be loaded"),
        ] {
            let error = Jq::new(expression).expect_err(expression);
            assert!(error.code == "jq_invalid" && error.exit == Exit::Usage, "{error:?}");
            assert!(error.message.contains(expected), "{expression}: {}", error.message);
        }
    }

    #[test]
    fn an_expression_that_does_not_fit_or_never_ends_is_an_error() {
        assert!(filtered(".a.b", "[1]").is_err_and(|error| error.starts_with("jq_failed: ")));
        assert!(filtered("repeat(\"0123456789\" * 1000)", "1").is_err_and(|error| error.starts_with("jq_too_large: ")));
        // Takes more than a millisecond on any machine, and ends some time after the test.
        let mut long = Jq::new("reduce range(3000000) as $n (0; . + $n)").expect("compiles");
        long.timeout = Duration::from_millis(1);
        assert_eq!(long.apply(b"1".to_vec()).expect_err("no result in time").code, "jq_timeout");
    }
}
