#![no_main]
//! See `parsers::names`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    parsers::names(data);
});
