#![no_main]
//! See `parsers::head_hint`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    parsers::head_hint(data);
});
