//! How often a fault test repeats: few times in every test run, many times under `cargo xtask prove`.

/// Set to `long` by `cargo xtask prove`.
pub const PROVE_VARIABLE: &str = "GPUAAS_PROVE";
/// The variable that overrides the number of repetitions of the long form.
pub const PROVE_COUNT_VARIABLE: &str = "GPUAAS_PROVE_COUNT";

/// Returns the number of repetitions: `short` in an ordinary run, `long` (or the number from the variable) in a long one.
pub fn proof_count(short: usize, long: usize) -> usize {
    let is_long = std::env::var(PROVE_VARIABLE).is_ok_and(|form| form == "long");
    let wanted = std::env::var(PROVE_COUNT_VARIABLE).ok();
    match wanted {
        _ if !is_long => short,
        None => long,
        Some(text) => text.parse().unwrap_or_else(|_| panic!("{PROVE_COUNT_VARIABLE} is `{text}`, not a number")),
    }
}
