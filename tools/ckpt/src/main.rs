//! ckpt.
fn main() {}
