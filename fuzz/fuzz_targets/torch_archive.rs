#![no_main]
//! See `parsers::torch_archive`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    parsers::torch_archive(data);
});
