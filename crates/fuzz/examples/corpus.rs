//! Unpacks a corpus file into a folder for libFuzzer, and packs such a folder again, for `cargo xtask fuzz`.

use std::path::Path;

use gpuaas_contract::Digest;
use gpuaas_fuzz::corpus::{pack, unpack};

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["unpack", file, folder] => {
            std::fs::create_dir_all(folder)?;
            let broken = || std::io::Error::other(format!("{file} is no corpus file"));
            for input in unpack(&std::fs::read(file)?).ok_or_else(broken)? {
                let digest = Digest::of(&input);
                std::fs::write(Path::new(folder).join(digest.as_str().trim_start_matches("sha256:")), input)?;
            }
            Ok(())
        }
        ["pack", folder, file] => {
            let inputs: Result<Vec<Vec<u8>>, _> = std::fs::read_dir(folder)?.map(|entry| std::fs::read(entry?.path())).collect();
            std::fs::write(file, pack(inputs?))
        }
        _ => Err(std::io::Error::other("usage: corpus unpack FILE FOLDER, or corpus pack FOLDER FILE")),
    }
}
