//! The `gpuaas` program. Everything is in the library.

fn main() -> std::process::ExitCode {
    gpuaas_cli::main()
}
