#![no_main]
//! See `parsers::pattern`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    parsers::pattern(data);
});
