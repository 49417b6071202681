#![no_main]
//! See `parsers::mesh`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    parsers::mesh(data);
});
