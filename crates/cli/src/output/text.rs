//! Short texts for people: ages, sizes, shortened ids.

use gpuaas_contract::time::Timestamp;

/// Smallest number of hex digits in a shortened id. The first 12 are a time in milliseconds and the 13th is always 7, so fewer
/// would not tell ids apart.
const SHORT_DIGITS: usize = 16;

/// Replaces control characters with visible ones, so that text from a host or server cannot control the terminal.
pub(crate) fn printable(text: &str) -> String {
    let steers = |c: char| {
        // Besides control characters, the invisible ones that change the direction of the text around them.
        (c.is_control() && c != '\t') || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if text.chars().any(steers) {
        text.chars().map(|c| if steers(c) { '\u{fffd}' } else { c }).collect()
    } else {
        text.to_owned()
    }
}

/// Returns how long ago something was, such as `42s`, `7m`, `3h`, `12d`.
pub(crate) fn age(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.since(then).as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Returns a time, and how long ago or ahead it is.
pub(crate) fn moment(then: Timestamp, now: Timestamp) -> String {
    if then > now { format!("{then} (in {})", age(now, then)) } else { format!("{then} ({} ago)", age(then, now)) }
}

/// Formats a number of milliseconds, such as `15ms` or `2.4s`.
pub(crate) fn milliseconds(milliseconds: u64) -> String {
    if milliseconds < 1000 {
        format!("{milliseconds}ms")
    } else {
        format!("{}.{}s", milliseconds / 1000, milliseconds % 1000 / 100)
    }
}

/// Formats a number of bytes, such as `512 MiB` or `1.5 TiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut whole, mut tenth, mut unit) = (bytes, 0, 0);
    while whole >= 1024 && unit < UNITS.len() - 1 {
        tenth = whole % 1024 * 10 / 1024;
        whole /= 1024;
        unit += 1;
    }
    if tenth == 0 || whole >= 100 { format!("{whole} {}", UNITS[unit]) } else { format!("{whole}.{tenth} {}", UNITS[unit]) }
}

/// Shortens ids to the same length, just long enough to tell them apart.
pub(crate) fn short_ids(ids: &[String]) -> Vec<String> {
    let cut = |id: &str, digits: usize| {
        let start = id.find('_').map_or(0, |at| at + 1);
        id.get(..start + digits).unwrap_or(id).to_owned()
    };
    let mut digits = SHORT_DIGITS;
    loop {
        let mut short: Vec<String> = ids.iter().map(|id| cut(id, digits)).collect();
        let result = short.clone();
        short.sort_unstable();
        let clash = short.windows(2).any(|pair| pair[0] == pair[1]);
        if !clash || digits >= 32 {
            return result;
        }
        digits += 4;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn ages_and_sizes_are_short() {
        let now = Timestamp(1_000_000_000_000_000);
        for (seconds, text) in [(0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172_800, "2d")] {
            assert_eq!(age(now.minus(Duration::from_secs(seconds)), now), text);
        }
        assert!(moment(now.plus(Duration::from_secs(60)), now).ends_with("(in 60s)"));
        for (size, text) in [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (85_899_345_920, "80 GiB")] {
            assert_eq!(bytes(size), text);
        }
        assert_eq!((milliseconds(15), milliseconds(2450)), ("15ms".to_owned(), "2.4s".to_owned()));
    }

    #[test]
    fn shortened_ids_stay_apart_and_never_get_too_short() {
        let id = |text: &str| format!("task_{text:0<32}");
        let far = [id("0198c0de0001700012345678"), id("0198c0de0002700012345678")];
        assert_eq!(short_ids(&far), ["task_0198c0de00017000", "task_0198c0de00027000"]);
        let near = [id("0198c0de00017000aaaa0001"), id("0198c0de00017000aaaa0002")];
        assert_eq!(short_ids(&near)[1], "task_0198c0de00017000aaaa0002");
        let same = [id("1"), id("1")];
        assert_eq!(short_ids(&same), same);
    }
}
