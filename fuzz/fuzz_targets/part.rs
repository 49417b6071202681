#![no_main]
//! See `parsers::part`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    parsers::part(data);
});
