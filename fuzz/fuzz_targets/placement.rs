#![no_main]
//! See `parsers::placement`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    parsers::placement(data);
});
