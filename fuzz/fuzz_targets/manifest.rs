#![no_main]
//! See `parsers::manifest`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    parsers::manifest(data);
});
