#![no_main]
//! See `parsers::dcp_metadata`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    parsers::dcp_metadata(data);
});
