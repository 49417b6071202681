#![no_main]
//! See `parsers::rules`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    parsers::rules(data);
});
