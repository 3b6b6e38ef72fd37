//! Strips comments and string literals from Rust sources, for rules that are about code only.

/// Replaces comments and the content of string literals with spaces. Line numbers do not change.
pub(crate) fn code_only(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = skipped(bytes, at);
        match end {
            Some(end) => {
                for byte in &mut code[at..end] {
                    if *byte != b'\n' {
                        *byte = b' ';
                    }
                }
                at = end;
            }
            None => at += 1,
        }
    }
    String::from_utf8(code).expect("blanking whole characters keeps UTF-8")
}

/// Returns the end of the comment or literal that starts at `at`, if one does.
fn skipped(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = &bytes[at..];
    let follows_a_name = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
    if rest.starts_with(b"//") {
        Some(at + rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()))
    } else if rest.starts_with(b"/*") {
        Some(at + block_comment(rest))
    } else if rest[0] == b'"' {
        Some(at + quoted(rest, b'"'))
    } else if rest[0] == b'r' && (!follows_a_name || bytes[at - 1] == b'b') {
        raw_text(rest).map(|length| at + length)
    } else if rest[0] == b'\'' {
        character(rest).map(|length| at + length)
    } else {
        None
    }
}

fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

fn raw_text(rest: &[u8]) -> Option<usize> {
    let hashes = rest[1..].iter().take_while(|byte| **byte == b'#').count();
    if rest.get(1 + hashes) != Some(&b'"') {
        return None;
    }
    let end: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
    let content = 2 + hashes;
    let length = rest[content..].windows(end.len()).position(|window| window == end);
    Some(length.map_or(rest.len(), |length| content + length + end.len()))
}

/// Distinguishes characters (`'a'`, `'\n'`) from lifetimes (`'a`).
fn character(rest: &[u8]) -> Option<usize> {
    match rest.get(1)? {
        b'\\' => Some(quoted(rest, b'\'')),
        first => {
            let length = match first {
                0..0x80 => 1,
                0x80..0xe0 => 2,
                0xe0..0xf0 => 3,
                0xf0.. => 4,
            };
            (rest.get(1 + length) == Some(&b'\'')).then_some(length + 2)
        }
    }
}

/// Returns whether `word` occurs in `line` as a whole word.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    let part_of_a_name = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(part_of_a_name) && !after.is_some_and(part_of_a_name)
    })
}

#[test]
fn comments_and_texts_are_not_code() {
    for (source, code) in [
        ("let a = 1; // unsafe", "let a = 1;          "),
        ("a /* b /* c */ d */ e", "a                   e"),
        (r#"say("un\"safe", 'x', '\'');"#, "say(          ,    ,     );"),
        ("r#\"raw \" text\"# + r\"x\"", "                +     "),
        ("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)"),
        ("/// doc\nlet url = \"http://x\";", "       \nlet url =           ;"),
        ("'ü' + b\"y\"", "     + b   "),
    ] {
        assert_eq!(code_only(source), code, "{source}");
    }
}

#[test]
fn words_are_whole_words() {
    assert!(has_word("an unsafe block", "unsafe"));
    assert!(!has_word("#![forbid(unsafe_code)]", "unsafe"));
}
