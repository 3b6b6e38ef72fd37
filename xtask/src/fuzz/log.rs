//! Parses the output of libFuzzer.

/// The figures of a run. A figure that is missing from the output is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    /// Time spent fuzzing, without the build.
    pub(super) seconds: u64,
    /// Number of inputs executed.
    pub(super) executions: u64,
    /// Number of edges reached.
    pub(super) edges: u64,
    pub(super) peak_mib: u64,
    /// Time that the slowest input took.
    pub(super) slowest_seconds: u64,
}

/// Extracts the figures from the output of a run, whether it used one process or several.
pub(super) fn figures(output: &str) -> Figures {
    let mut figures = Figures::default();
    for line in output.lines() {
        // A single process prints `#1234	NEW    cov: 56 ft: …`, several print `#1234: cov: 56 ft: …`.
        if let Some(progress) = line.strip_prefix('#') {
            let digits: String = progress.chars().take_while(char::is_ascii_digit).collect();
            figures.executions = digits.parse().unwrap_or(figures.executions);
            figures.edges = number_behind(line, " cov: ").unwrap_or(figures.edges);
            figures.peak_mib = number_behind(line, " rss: ").unwrap_or(0).max(figures.peak_mib);
        }
        if line.starts_with("Done ") && line.ends_with(" second(s)") {
            figures.seconds = number_behind(line, " runs in ").unwrap_or(figures.seconds);
        }
        figures.seconds = number_behind(line, " time: ").unwrap_or(figures.seconds);
        figures.executions = number_behind(line, "stat::number_of_executed_units:").unwrap_or(figures.executions);
        figures.peak_mib = number_behind(line, "stat::peak_rss_mb:").unwrap_or(figures.peak_mib);
        figures.slowest_seconds = number_behind(line, "stat::slowest_unit_time_sec:").unwrap_or(figures.slowest_seconds);
    }
    figures
}

fn number_behind(line: &str, words: &str) -> Option<u64> {
    let (_, rest) = line.split_once(words)?;
    let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[test]
fn the_figures_of_one_process_and_of_several_are_found() {
    let one = "INFO: seed corpus: files: 102\n#103\tINITED cov: 2000 ft: 1 corp: 1/1b exec/s: 0 rss: 80Mb\n\
               #4096\tNEW    cov: 2156 ft: 5798 corp: 73/263b lim: 6 exec/s: 491 rss: 88Mb L: 4/6 MS: 5 CopyPart-\n\
               Done 5000 runs in 11 second(s)\nstat::number_of_executed_units: 5000\nstat::average_exec_per_sec:     454\n\
               stat::slowest_unit_time_sec:     1\nstat::peak_rss_mb:                90\n";
    assert_eq!(figures(one), Figures { seconds: 11, executions: 5000, edges: 2156, peak_mib: 90, slowest_seconds: 1 });
    let several = "#20480: cov: 300 ft: 400 corp: 50 exec/s 1000 oom/timeout/crash: 0/0/0 time: 10s job: 1 dft_time: 0\n";
    assert_eq!(figures(several), Figures { seconds: 10, executions: 20480, edges: 300, ..Figures::default() });
}
