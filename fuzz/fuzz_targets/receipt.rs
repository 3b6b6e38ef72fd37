#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    gpuaas_fuzz::receipt(data);
});
