#![no_main]
//! See `parsers::safetensors_header`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    parsers::safetensors_header(data);
});
