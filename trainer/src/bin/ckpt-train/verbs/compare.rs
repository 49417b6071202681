//! `ckpt-train compare`: two curves, bit for bit.

use std::path::Path;

use trainer::{
    Error, ErrorKind, Result,
    metrics::{curve, first_difference},
};

use crate::exit;

pub(super) fn run(first: &Path, second: &Path, name: &str) -> Result<u8> {
    let read = |path: &Path| {
        let found = curve(path, name)?;
        if found.is_empty() {
            let said = format!("{} has no values of {name}", path.display());
            return Err(Error::new(ErrorKind::NotFound, said).hint("give another --name"));
        }
        Ok(found)
    };
    let (a, b) = (read(first)?, read(second)?);
    let Some(apart) = first_difference(&a, &b) else {
        return super::print(&format!("same  {} steps of {name}, to the bit\n", a.len()));
    };
    let value = |bits: Option<u32>| {
        bits.map_or_else(|| "nothing".to_owned(), |bits| format!("{} ({bits:08x})", f32::from_bits(bits)))
    };
    super::print(&format!(
        "different  {name} at step {}: {} and {}\n",
        apart.step,
        value(apart.first),
        value(apart.second)
    ))?;
    Ok(exit::DIFFERENT.number)
}
