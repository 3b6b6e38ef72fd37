//! Replays the corpora of the fuzz targets with the stable compiler in every test run.

use std::path::{Path, PathBuf};

use gpuaas_fuzz::corpus::unpack;
use gpuaas_fuzz::{TARGETS, Target, seeds};

fn fuzz_folder() -> PathBuf {
    // Cargo sets this to the current location; the path compiled in at build time may be another copy of the repository.
    let here = std::env::var_os("CARGO_MANIFEST_DIR").expect("run this test with cargo");
    Path::new(&here).join("../../fuzz")
}

/// Returns the files of a folder; none if the folder does not exist.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}

/// Runs a target over its inputs. Returns how many inputs there are, and how many of them the code under test accepted.
fn replay((name, target): Target, inputs: impl IntoIterator<Item = (String, Vec<u8>)>) -> (usize, usize) {
    let (mut count, mut deep) = (0, 0);
    for (what, input) in inputs {
        let result = std::panic::catch_unwind(|| target(&input));
        let passed = result.unwrap_or_else(|_| panic!("the target {name} fails on {what}; the message is above"));
        count += 1;
        deep += usize::from(passed);
    }
    (count, deep)
}

fn read(files: Vec<PathBuf>) -> impl Iterator<Item = (String, Vec<u8>)> {
    files.into_iter().map(|path| (path.display().to_string(), std::fs::read(&path).expect("a readable input")))
}

#[test]
fn every_committed_input_keeps_every_promise() {
    for target in TARGETS {
        let path = fuzz_folder().join("corpus").join(target.0).with_extension("bin");
        let file = std::fs::read(&path)
            .unwrap_or_else(|error| panic!("{}: {error}; run: cargo xtask fuzz {}", path.display(), target.0));
        let inputs = unpack(&file).unwrap_or_else(|| panic!("{} is no corpus file", path.display()));
        let inputs = inputs.into_iter().enumerate().map(|(index, input)| (format!("input {index} of {}", path.display()), input));
        let (count, deep) = replay(target, inputs);
        println!("{}: {count} inputs, {deep} past the checks", target.0);
        assert!(count > 0, "{} has no corpus; run: cargo xtask fuzz {}", target.0, target.0);
        assert!(deep > 0, "no input of {} reaches the code behind its checks", target.0);
    }
}

#[test]
fn every_input_that_once_broke_a_promise_keeps_it_now() {
    for target in TARGETS {
        let (count, _) = replay(target, read(files(&fuzz_folder().join("regressions").join(target.0))));
        println!("{}: {count} inputs", target.0);
    }
}

#[test]
fn every_seed_keeps_every_promise_and_some_get_past_the_checks() {
    for target in TARGETS {
        let seeds = seeds(target.0).into_iter().enumerate().map(|(index, seed)| (format!("seed {index}"), seed));
        let (count, deep) = replay(target, seeds);
        assert!(0 < deep && deep < count, "{}: {deep} of {count} seeds get past the checks", target.0);
    }
}

#[test]
fn every_target_has_its_shim_and_every_folder_its_target() {
    let names: Vec<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let stem = |path: &PathBuf| path.file_stem().expect("a name").to_string_lossy().into_owned();
    let shims: Vec<String> = files(&fuzz_folder().join("fuzz_targets")).iter().map(stem).collect();
    assert_eq!(shims, names, "fuzz/fuzz_targets and TARGETS must list the same, in the order of their names");
    for folder in ["corpus", "regressions"] {
        for path in files(&fuzz_folder().join(folder)) {
            assert!(names.contains(&stem(&path)), "{} belongs to no target", path.display());
        }
    }
}
