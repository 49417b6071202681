#![no_main]
//! See `parsers::chunks`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    parsers::chunks(data);
});
