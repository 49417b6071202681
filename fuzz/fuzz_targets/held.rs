#![no_main]
//! See `parsers::held`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    parsers::held(data);
});
