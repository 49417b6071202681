#![no_main]
//! See `parsers::dialect`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    parsers::dialect(data);
});
