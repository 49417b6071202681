#![no_main]
//! See `parsers::block_table`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    parsers::block_table(data);
});
