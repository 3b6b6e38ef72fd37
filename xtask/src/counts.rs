//! Counts tests in the output of `cargo test`.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

impl Counts {
    /// Adds the numbers of a `test result:` line. Other lines are ignored.
    pub(crate) fn add_line(&mut self, line: &str) {
        let Some((_, result)) = line.split_once("test result: ") else { return };
        let Some((_, numbers)) = result.split_once(". ") else { return };
        for part in numbers.split(';') {
            let mut words = part.split_whitespace();
            let Some(Ok(number)) = words.next().map(str::parse::<u64>) else { continue };
            match words.next() {
                Some("passed") => self.passed += number,
                Some("failed") => self.failed += number,
                Some("ignored") => self.ignored += number,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_all_result_lines_are_added() {
        let mut counts = Counts::default();
        for line in [
            "running 3 tests",
            "test a ... ok",
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            "test result: FAILED. 10 passed; 2 failed; 1 ignored; 0 measured; 7 filtered out; finished in 1.50s",
            "a test prints: 9 passed; 9 failed",
        ] {
            counts.add_line(line);
        }
        assert_eq!(counts, Counts { passed: 13, failed: 2, ignored: 1 });
    }
}
