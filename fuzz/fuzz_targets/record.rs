#![no_main]
//! See `parsers::record`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    parsers::record(data);
});
