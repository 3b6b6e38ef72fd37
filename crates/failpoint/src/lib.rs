//! Failpoints: named places in a program where a crash test can freeze it, so that it can be killed at exactly that step.
//!
//! A program calls [`hit`] with the name of the step it has just reached. Without the `failpoints` feature the call is an empty
//! inline function and disappears. With it, and with the environment variable [`DIRECTORY_VARIABLE`] naming a folder, the call
//! looks for `<folder>/<name>.armed`. If the file is there, it is renamed to `<name>.hit` and the calling thread parks for good.
//! The test waits for the `.hit` file and sends SIGKILL. The rename is atomic, so one armed file stops one thread, once.

/// The environment variable that names the folder with the `.armed` files.
pub const DIRECTORY_VARIABLE: &str = "GPUAAS_FAILPOINT_DIR";

/// Marks that the program has reached the step `name`. Stops the calling thread for good if a test armed that name.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn hit(_name: &str) {}

/// Marks that the program has reached the step `name`. Stops the calling thread for good if a test armed that name.
#[cfg(feature = "failpoints")]
pub fn hit(name: &str) {
    let Some(directory) = std::env::var_os(DIRECTORY_VARIABLE) else { return };
    if take(std::path::Path::new(&directory), name) {
        loop {
            // `park` may return spuriously, but this thread must never continue.
            std::thread::park();
        }
    }
}

/// Disarms `name` in `directory`. Returns true for exactly one caller per armed file, because a rename succeeds only once.
#[cfg(feature = "failpoints")]
fn take(directory: &std::path::Path, name: &str) -> bool {
    std::fs::rename(directory.join(format!("{name}.armed")), directory.join(format!("{name}.hit"))).is_ok()
}

#[cfg(all(test, feature = "failpoints"))]
mod tests {
    use super::*;

    #[test]
    fn an_armed_point_fires_once_and_only_under_its_own_name() {
        let directory = std::env::temp_dir().join(format!("gpuaas-failpoint-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("create the folder");
        std::fs::write(directory.join("step.one.armed"), b"").expect("arm the point");

        assert!(!take(&directory, "step.two"), "a point that nobody armed fired");
        assert!(take(&directory, "step.one"), "the armed point did not fire");
        assert!(directory.join("step.one.hit").exists(), "the test that waits for the hit file would wait for ever");
        assert!(!take(&directory, "step.one"), "the point fired twice");

        std::fs::remove_dir_all(&directory).expect("remove the folder");
    }

    #[test]
    fn a_point_without_a_folder_does_nothing() {
        // The variable is not set in unit tests. The test passes if the call returns.
        assert!(std::env::var_os(DIRECTORY_VARIABLE).is_none());
        hit("step.one");
    }
}
