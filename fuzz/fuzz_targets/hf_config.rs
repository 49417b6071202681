#![no_main]
//! See `parsers::hf_config`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    parsers::hf_config(data);
});
