#![no_main]
//! See `parsers::hf_index`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    parsers::hf_index(data);
});
