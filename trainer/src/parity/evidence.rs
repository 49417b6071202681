//! [`Evidence`]: losses and whole gradients of a run, and what differs between two.

use std::collections::BTreeMap;

use reshard::Region;
use sha2::{Digest, Sha256};

use crate::{Error, Result, run::Row};

/// What a run computed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evidence {
    /// Losses by step: the bits of an f32, the same on every rank.
    pub losses: BTreeMap<u64, u32>,
    /// Whole gradients, row-major, by step and FQN.
    pub gradients: BTreeMap<(u64, String), Vec<f32>>,
    /// How the row of each rank went, by step and rank.
    pub rows: BTreeMap<(u64, usize), Row>,
}

impl Evidence {
    /// The SHA-256 of each gradient's bits, by step and FQN.
    #[must_use]
    pub fn digests(&self) -> BTreeMap<(u64, String), String> {
        let digest = |values: &Vec<f32>| {
            let mut hasher = Sha256::new();
            values.iter().for_each(|value| hasher.update(value.to_le_bytes()));
            hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
        };
        self.gradients.iter().map(|(key, values)| (key.clone(), digest(values))).collect()
    }

    /// What `other` has not to the bit: losses by step, gradients by step and FQN. Nothing, if all is the same.
    #[must_use]
    pub fn differs(&self, other: &Self) -> Vec<String> {
        let mut found = Vec::new();
        if self.losses.is_empty() || self.gradients.is_empty() {
            found.push("nothing was computed".to_owned());
        }
        for step in self.losses.keys().chain(other.losses.keys().filter(|it| !self.losses.contains_key(it))) {
            let (mine, theirs) = (self.losses.get(step), other.losses.get(step));
            if mine != theirs {
                let text = |bits: Option<&u32>| {
                    bits.map_or("none".to_owned(), |bits| f32::from_bits(*bits).to_string())
                };
                found.push(format!("loss of step {step}: {} and {}", text(mine), text(theirs)));
            }
        }
        let (mine, theirs) = (self.digests(), other.digests());
        let names = mine.keys().chain(theirs.keys().filter(|key| !mine.contains_key(key)));
        for key in names.filter(|key| mine.get(key) != theirs.get(key)) {
            found.push(format!("gradient of {} in step {}", key.1, key.0));
        }
        found
    }

    /// How far apart losses (relative) and gradients (as a share of the largest of a parameter) are at most.
    ///
    /// # Errors
    /// `Internal` for runs of other steps or models.
    pub fn apart(&self, other: &Self) -> Result<(f64, f64)> {
        let other_run = || Error::internal("evidence of other steps or of another model");
        if !self.losses.keys().eq(other.losses.keys()) || !self.gradients.keys().eq(other.gradients.keys()) {
            return Err(other_run());
        }
        let loss = |(mine, theirs): (&u32, &u32)| {
            let (mine, theirs) = (f64::from(f32::from_bits(*mine)), f64::from(f32::from_bits(*theirs)));
            (mine - theirs).abs() / theirs.abs()
        };
        let gradient = |(mine, theirs): (&Vec<f32>, &Vec<f32>)| {
            let largest = theirs.iter().fold(0.0, |most: f64, value| most.max(f64::from(value.abs())));
            let gaps = mine.iter().zip(theirs).map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs());
            gaps.fold(0.0, f64::max) / largest.max(f64::MIN_POSITIVE)
        };
        let losses = self.losses.values().zip(other.losses.values()).map(loss).fold(0.0, f64::max);
        let gradients =
            self.gradients.values().zip(other.gradients.values()).map(gradient).fold(0.0, f64::max);
        Ok((losses, gradients))
    }
}

/// A tensor that is being put together of boxes.
#[derive(Debug)]
pub(super) struct Whole {
    shape: Vec<usize>,
    values: Vec<Option<f32>>,
}

impl Whole {
    pub(super) fn new(shape: &[i64]) -> Self {
        let shape: Vec<usize> = shape.iter().map(|extent| usize::try_from(*extent).unwrap_or(0)).collect();
        Self { values: vec![None; shape.iter().product()], shape }
    }

    /// Puts a box in its place; what lies there already must have the same bits.
    pub(super) fn put(&mut self, region: &Region, values: &[f32]) -> Result<()> {
        let as_sizes =
            |of: &[u64]| of.iter().map(|it| usize::try_from(*it).unwrap_or(usize::MAX)).collect::<Vec<_>>();
        let (offsets, extents) = (as_sizes(region.offsets()), as_sizes(region.extents()));
        let outside =
            || Error::internal(format!("{region} with {} values in {:?}", values.len(), self.shape));
        if extents.iter().product::<usize>() != values.len() || extents.len() != self.shape.len() {
            return Err(outside());
        }
        for (index, value) in values.iter().enumerate() {
            let (mut left, mut at, mut step) = (index, 0, 1);
            for ((offset, extent), whole) in offsets.iter().zip(&extents).zip(&self.shape).rev() {
                at += (offset + left % extent) * step;
                (left, step) = (left / extent, step * whole);
            }
            let slot = self.values.get_mut(at).ok_or_else(outside)?;
            if let Some(known) = slot.replace(*value).filter(|known| known.to_bits() != value.to_bits()) {
                return Err(Error::internal(format!("copies of element {at} differ: {known} and {value}")));
            }
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Vec<f32>> {
        let count = self.values.len();
        let values: Vec<f32> = self.values.into_iter().flatten().collect();
        match count - values.len() {
            0 => Ok(values),
            missing => Err(Error::internal(format!("{missing} of {count} elements are nowhere"))),
        }
    }
}
