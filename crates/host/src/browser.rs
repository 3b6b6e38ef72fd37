//! Opens a page in the user's browser.

use std::path::Path;

/// Programs that open an address in the user's browser.
const OPENERS: [&str; 3] = ["/usr/bin/xdg-open", "/usr/local/bin/xdg-open", "/usr/bin/open"];

/// Opens the user's browser, if there is a display. The result is not checked.
#[expect(
    clippy::disallowed_types,
    reason = "the browser is the user's own: it needs their environment and outlives this command"
)]
pub fn open_browser(url: &str) -> bool {
    let has_screen =
        ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()));
    if !has_screen && !cfg!(target_os = "macos") {
        return false;
    }
    let Some(opener) = OPENERS.iter().find(|path| Path::new(path).exists()) else { return false };
    let quiet = std::process::Stdio::null;
    std::process::Command::new(opener).arg(url).stdin(quiet()).stdout(quiet()).stderr(quiet()).spawn().is_ok()
}
