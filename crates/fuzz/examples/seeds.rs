//! Writes the seeds of every target to `<folder>/<target>/`, for `cargo xtask fuzz`.

use std::path::Path;

use gpuaas_contract::Digest;
use gpuaas_fuzz::{TARGETS, seeds};

fn main() -> std::io::Result<()> {
    let folder = std::env::args_os().nth(1).expect("usage: seeds <folder>");
    for (target, _) in TARGETS {
        let folder = Path::new(&folder).join(target);
        std::fs::create_dir_all(&folder)?;
        for seed in seeds(target) {
            let digest = Digest::of(&seed);
            std::fs::write(folder.join(digest.as_str().trim_start_matches("sha256:")), seed)?;
        }
    }
    Ok(())
}
