#![no_main]
//! See `parsers::plan`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    parsers::plan(data);
});
