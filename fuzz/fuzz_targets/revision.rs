#![no_main]
//! See `parsers::revision`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    parsers::revision(data);
});
