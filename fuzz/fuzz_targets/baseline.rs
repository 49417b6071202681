#![no_main]
//! See `parsers::baseline`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    parsers::baseline(data);
});
