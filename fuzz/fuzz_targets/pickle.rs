#![no_main]
//! See `parsers::pickle`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    parsers::pickle(data);
});
