//! Checks of a model's sizes, and the list of its parameters while it is put together.

use fqn::Fqn;

use super::{Init, ParamSpec};
use crate::{Error, Result};

/// Refuses a size that is not positive.
pub(super) fn positive(sizes: &[(&str, i64)]) -> Result<()> {
    match sizes.iter().find(|(_, size)| *size < 1) {
        Some((name, size)) => Err(Error::config(format!("model.{name} is {size}; it must be at least 1"))),
        None => Ok(()),
    }
}

/// Refuses `whole` that `part` does not divide.
pub(super) fn divides(part: (&str, i64), whole: (&str, i64)) -> Result<()> {
    if whole.1 % part.1 == 0 {
        return Ok(());
    }
    Err(Error::config(format!(
        "model.{} = {} does not divide model.{} = {}",
        part.0, part.1, whole.0, whole.1
    )))
}

/// Refuses a number that is not finite and positive.
pub(super) fn positive_number(name: &str, value: f64) -> Result<()> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(Error::config(format!("model.{name} is {value}; it must be finite and above 0")))
}

/// Parameters in order.
#[derive(Debug, Default)]
pub(super) struct ParamList(pub(super) Vec<ParamSpec>);

impl ParamList {
    /// A matrix or a table, with weight decay; its index.
    pub(super) fn matrix(&mut self, name: &str, shape: [i64; 2], std: f64) -> Result<usize> {
        self.add(name, shape.to_vec(), Init::Normal(std), true)
    }

    /// A vector that begins constant, without weight decay; its index.
    pub(super) fn vector(&mut self, name: &str, length: i64, value: f64) -> Result<usize> {
        self.add(name, vec![length], Init::Constant(value), false)
    }

    fn add(&mut self, name: &str, shape: Vec<i64>, init: Init, decay: bool) -> Result<usize> {
        let fqn = Fqn::new(name).map_err(|error| Error::internal(format!("parameter {name:?}: {error}")))?;
        self.0.push(ParamSpec { fqn, shape, init, decay });
        Ok(self.0.len() - 1)
    }
}
