//! Tied parameters: several uses, one tensor. Each use has its own sum; the reduced shards are swapped between the stages
//! that use the parameter and added once, in the order of their parts, in one process too.
//!
//! Invariants: all copies see the same additions in the same order, so that they stay equal to the bit; every member of the
//! pipeline group takes part in the exchanges, with nothing where it has no use.

use fqn::Role;
use sha2::{Digest, Sha256};
use tch::{Device, Kind, Tensor};

use super::{
    plan::{Held, Tie, padded},
    state::State,
};
use crate::{Error, ErrorKind, Result, transport::Purpose};

impl Tie {
    fn spans_stages(&self) -> bool {
        self.uses.iter().any(|(_, pp)| self.uses.first().is_some_and(|(_, first)| first != pp))
    }

    /// Number of uses on a pipeline rank.
    fn on(&self, pp: usize) -> usize {
        self.uses.iter().filter(|(_, on)| *on == pp).count()
    }
}

impl State {
    /// Adds up the uses of every tied parameter, in the place where it is kept.
    pub(super) fn add_ties(&self) -> Result<()> {
        for tie in &self.plan.ties {
            let held = self.plan.held(tie.index);
            let all = if tie.spans_stages() { self.swapped(tie, held)? } else { self.own_uses(tie, held)? };
            let Some(held) = held else { continue };
            let mut all = all.into_iter();
            let first = all.next().ok_or_else(|| Error::internal("a tie of no uses"))?;
            let sum = all.try_fold(first, |sum, next| sum.f_add(&next))?;
            let mut target = self.reduced_slot(held, self.home_part(held)?)?;
            target.f_copy_(&sum)?;
        }
        Ok(())
    }

    /// Checks that every stage has the same copy of what it shares. Collective over the pipeline group; cheap, for saves.
    ///
    /// # Errors
    /// `Corrupt` that names the parameter and the ranks; the transport's.
    pub fn check_ties(&self) -> Result<()> {
        for tie in self.plan.ties.iter().filter(|tie| tie.spans_stages()) {
            let mine = self.plan.held(tie.index).map(|held| self.digest(held)).transpose()?;
            let name = self.names.get(tie.index).map_or("?", |name| name.as_str());
            let purpose = Purpose(format!("copies of {name}"));
            let all = self.groups.pp.all_gather_bytes(&purpose, mine.as_deref().unwrap_or_default())?;
            let mut copies = all.iter().enumerate().filter(|(_, digest)| !digest.is_empty());
            let first = copies.next();
            let other = copies.find(|(_, digest)| first.is_some_and(|(_, first)| first != *digest));
            if let (Some((first, _)), Some((other, _))) = (first, other) {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    format!("{}: {name} on pipeline ranks {first} and {other} has drifted apart", self.at),
                )
                .hint("do not save this state; resume from the last checkpoint"));
            }
        }
        Ok(())
    }

    fn digest(&self, held: &Held) -> Result<Vec<u8>> {
        let kept = self.kept(held)?;
        let mut hasher = Sha256::new();
        for role in [Role::Param, Role::ExpAvg, Role::ExpAvgSq] {
            let tensor = kept.tensor(&role)?.f_contiguous()?;
            let mut bytes = vec![0; tensor.numel() * 4];
            tensor.f_copy_data_u8(&mut bytes, tensor.numel())?;
            hasher.update(&bytes);
        }
        Ok(hasher.finalize().to_vec())
    }

    /// The reduced gradients of this rank's uses, in the order of their parts.
    fn own_uses(&self, tie: &Tie, held: Option<&Held>) -> Result<Vec<Tensor>> {
        let Some(held) = held else { return Ok(Vec::new()) };
        let own = tie.uses.iter().filter(|(_, pp)| *pp == self.at.pp);
        own.map(|(part, _)| self.reduced_slot(held, *part)).collect()
    }

    /// The reduced gradients of all uses on all stages, in the order of their parts; nothing where there is no use.
    fn swapped(&self, tie: &Tie, held: Option<&Held>) -> Result<Vec<Tensor>> {
        let own = self.own_uses(tie, held)?;
        let length = held.and_then(|held| held.regions.get(self.member)).map_or(0, padded);
        let device = own.first().map_or(Device::Cpu, Tensor::device);
        let nothing = || Tensor::f_zeros([0], (Kind::Float, device));
        let mine = if own.is_empty() { nothing()? } else { Tensor::f_cat(&own, 0)? };
        let shares = |pp: usize| held.is_some() && tie.on(pp) > 0;
        let give = |pp| if shares(pp) { Ok(mine.shallow_clone()) } else { nothing() };
        let parts = (0..self.mesh.pp).map(give).collect::<Result<Vec<_>, _>>()?;
        let count = |pp: usize| if shares(pp) { i64::try_from(tie.on(pp)).unwrap_or(0) } else { 0 };
        let shapes: Vec<Vec<i64>> = (0..self.mesh.pp).map(|pp| vec![count(pp) * length]).collect();
        let name = self.names.get(tie.index).map_or("?", |name| name.as_str());
        let all = self.groups.pp.exchange(&Purpose(format!("gradients of {name}")), parts, &shapes)?;
        if held.is_none() {
            return Ok(Vec::new());
        }
        let mut taken = vec![0_i64; self.mesh.pp];
        let uses = tie.uses.iter().map(|(_, pp)| {
            let place = all.get(*pp).zip(taken.get_mut(*pp));
            let (flat, taken) = place.ok_or_else(|| Error::internal("a use on no stage"))?;
            *taken += 1;
            Ok(flat.f_narrow(0, (*taken - 1) * length, length)?)
        });
        uses.collect()
    }

    fn home_part(&self, held: &Held) -> Result<usize> {
        let unit = self.plan.units.get(held.home.0);
        Ok(unit.ok_or_else(|| Error::internal(format!("{} is kept nowhere", held.spec.fqn)))?.part)
    }

    /// The padded gradient of a use, where it lies.
    fn reduced_slot(&self, held: &Held, part: usize) -> Result<Tensor> {
        let (_, unit) = self.plan.unit(part)?;
        let (at, _) = self.slot(unit, crate::model::Param { part, index: held.index })?;
        let offset = unit.slots.get(at).and_then(|slot| slot.offsets.get(self.member)).copied();
        let place = offset.zip(held.regions.get(self.member).map(padded));
        let (offset, length) = place.ok_or_else(|| Error::internal("a slot without a place"))?;
        let reduced = self.reduced.borrow();
        let flat =
            reduced.get(&part).ok_or_else(|| Error::internal(format!("part {part} was not reduced")))?;
        Ok(flat.f_narrow(0, offset, length)?)
    }
}
