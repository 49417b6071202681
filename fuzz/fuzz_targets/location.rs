#![no_main]
//! See `parsers::location`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    parsers::location(data);
});
