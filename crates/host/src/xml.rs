//! A small XML writer: elements nest by closures, and every text is escaped where it is written. Input from outside is never
//! formatted into markup.

use std::fmt::Write as _;

/// A document under construction.
#[derive(Debug, Default)]
pub(crate) struct Xml {
    text: String,
    depth: usize,
}

impl Xml {
    /// Returns the finished document.
    pub(crate) fn finish(self) -> String {
        self.text
    }

    /// Writes an empty element with attributes.
    pub(crate) fn empty(&mut self, name: &'static str, attributes: &[(&'static str, &str)]) {
        self.open(name, attributes);
        self.text.push_str("/>\n");
    }

    /// Writes an element with a text.
    pub(crate) fn text(&mut self, name: &'static str, attributes: &[(&'static str, &str)], text: &str) {
        self.open(name, attributes);
        self.text.push('>');
        escape(&mut self.text, text);
        let _ = writeln!(self.text, "</{name}>");
    }

    /// Writes an element with child elements.
    pub(crate) fn element(&mut self, name: &'static str, attributes: &[(&'static str, &str)], inside: impl FnOnce(&mut Self)) {
        self.open(name, attributes);
        self.text.push_str(">\n");
        self.depth += 1;
        inside(self);
        self.depth -= 1;
        self.indent();
        let _ = writeln!(self.text, "</{name}>");
    }

    fn open(&mut self, name: &'static str, attributes: &[(&'static str, &str)]) {
        self.indent();
        let _ = write!(self.text, "<{name}");
        for (attribute, value) in attributes {
            let _ = write!(self.text, " {attribute}='");
            escape(&mut self.text, value);
            self.text.push('\'');
        }
    }

    fn indent(&mut self) {
        for _ in 0..self.depth {
            self.text.push_str("  ");
        }
    }
}

/// Escapes special characters, and replaces those that XML cannot contain.
fn escape(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '\'' => out.push_str("&apos;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push_str("&#10;"),
            '\r' => out.push_str("&#13;"),
            '\t' => out.push_str("&#9;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_written_becomes_markup() {
        let mut xml = Xml::default();
        xml.element("a", &[("b", "x' onload='y")], |xml| {
            xml.text("c", &[], "</c><script>&\0\n");
            xml.empty("d", &[("e", "<")]);
        });
        let expected =
            "<a b='x&apos; onload=&apos;y'>\n  <c>&lt;/c&gt;&lt;script&gt;&amp;\u{fffd}&#10;</c>\n  <d e='&lt;'/>\n</a>\n";
        assert_eq!(xml.finish(), expected);
    }
}
