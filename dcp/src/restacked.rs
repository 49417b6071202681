//! [`Restacked`]: a source over a source that shows members as their stack, or a stack as its members.
//!
//! ```text
//!  inner catalog: experts.{0,1,2}.w1  [out, in]        catalog: moe.w1  [3, out, in]
//!     chunks ──────── same files, same bytes, boxes and strides of the other side ───────► chunks
//! ```
//!
//! A member is its stack's slice of extent 1, so nothing is copied: whoever reads this source reads the files of the one below,
//! proven by their block tables and records as ever. Engine, plans, workers and forecasts need to know nothing of stacks, but for
//! one thing: fingerprints were recorded in the coordinates of the source below, so the catalog says of what its tensors are made
//! ([`Lineage`]), and the engine adds up both.
//!
//! Invariants: every chunk holds the elements that one below holds, in the same place; each step changes something; members of a
//! stack that share one scalar (Adam's `step`) have it equal, since a stack has one.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use fqn::{
    Entry, Registry,
    stacking::{Origin, Way},
};
use reshard::{Assembly, AssemblyError, Strand};

use self::{boxes::Boxes, counters::same_counters};
use crate::{Catalog, Chunks, Error, FileId, Finding, Lineage, Recorded, Result, Source, digest::BlockTable};

mod boxes;
mod counters;
mod step;
#[cfg(test)]
mod tests;

pub use step::Step;

/// Shows stacks, or members, of the source below.
#[derive(Debug)]
pub struct Restacked {
    inner: Box<dyn Source>,
    catalog: Catalog,
}

/// Tensors, and of which of the source below each is made.
struct Made {
    registry: Registry,
    of: Vec<Thread>,
}

/// What a tensor is made of.
enum Thread {
    /// One of the source below, as it is.
    Whole(usize),
    /// Boxes of some.
    Boxes(Assembly),
}

impl Restacked {
    /// `inner` with these steps taken one after another, and without what is not `wanted` of it.
    ///
    /// # Errors
    /// `Incompatible` for a step that changes nothing, for members that make no stack (one is missing, shapes or dtypes differ, the
    /// name is taken, their optimizer's scalars differ), and for a stack that can't be taken apart; what reading the scalars says.
    pub fn new(inner: Box<dyn Source>, steps: &[Step], wanted: impl Fn(&Entry) -> bool) -> Result<Self> {
        let mut made = Made { registry: Registry::new(), of: Vec::new() };
        for (at, entry) in inner.catalog().registry.entries().iter().enumerate() {
            if wanted(entry) {
                made.registry.push(entry.clone()).map_err(|e| Error::internal(e.to_string()))?;
                made.of.push(Thread::Whole(at));
            }
        }
        for step in steps {
            made = made.step(&*inner, step)?;
        }
        let catalog = made.catalog(inner.catalog())?;
        Ok(Self { inner, catalog })
    }
}

impl Source for Restacked {
    fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn read_exact_at(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read_exact_at(file, offset, buf)
    }

    fn read_stored_at(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read_stored_at(file, offset, buf)
    }

    fn blocks(&self, file: FileId) -> Result<Option<Arc<BlockTable>>> {
        self.inner.blocks(file)
    }

    fn stamp(&self) -> Result<Option<String>> {
        self.inner.stamp()
    }

    fn waits(&self) -> bool {
        self.inner.waits()
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        self.inner.facts()
    }

    fn audit(&self) -> Result<Vec<Finding>> {
        self.inner.audit()
    }
}

impl Made {
    fn step(self, inner: &dyn Source, step: &Step) -> Result<Self> {
        let (registry, origins) = step.take(&self.registry)?;
        if step.way == Way::Stack {
            same_counters(inner, step, &self)?;
        }
        let each = registry.entries().iter().zip(&origins);
        let of = each.map(|(entry, origin)| self.thread(entry, origin, step)).collect::<Result<_>>()?;
        Ok(Self { registry, of })
    }

    /// What a tensor of the registry after a step is made of.
    fn thread(&self, entry: &Entry, origin: &Origin, step: &Step) -> Result<Thread> {
        let lost = || Error::internal(format!("{} is made of nothing", entry.id()));
        let shape = |at: &usize| self.registry.entries().get(*at).map(|entry| entry.shape.clone());
        let first = origin.sources.first().and_then(shape).ok_or_else(lost)?;
        let assembly = match (&origin.sources[..], origin.slice) {
            ([_], Some(index)) => Assembly::slice(&first, step.pair.axis(), index),
            ([one], None) if first == entry.shape => {
                return match self.of.get(*one).ok_or_else(lost)? {
                    Thread::Whole(at) => Ok(Thread::Whole(*at)),
                    Thread::Boxes(made) => Ok(Thread::Boxes(made.clone())),
                };
            }
            (sources, _) => {
                let shapes = sources.iter().map(shape).collect::<Option<Vec<_>>>().ok_or_else(lost)?;
                Assembly::stack(&shapes, step.pair.axis())
            }
        };
        let strand = |nth: usize| match origin.sources.get(nth).and_then(|at| self.of.get(*at)) {
            Some(Thread::Boxes(made)) => Strand::Made(made),
            Some(Thread::Whole(at)) => Strand::Whole(*at),
            None => Strand::Whole(usize::MAX),
        };
        let made = assembly.and_then(|assembly| assembly.through(strand));
        Ok(Thread::Boxes(made.map_err(|error| unmade(entry, &error))?))
    }

    fn catalog(self, inner: &Catalog) -> Result<Catalog> {
        let mut boxes = Boxes::of_source(inner);
        let (mut tensors, mut of) = (Vec::with_capacity(self.of.len()), Vec::with_capacity(self.of.len()));
        for (entry, thread) in self.registry.entries().iter().zip(self.of) {
            match thread {
                Thread::Whole(at) => {
                    tensors.push(
                        inner.tensors.get(at).cloned().ok_or_else(|| Error::internal("a tensor is gone"))?,
                    );
                    of.push(None);
                }
                Thread::Boxes(made) => {
                    let chunks = boxes.of(entry, &made).map_err(|error| error.at(entry.id()))?;
                    tensors.push(Chunks { chunks, fingerprint: None });
                    of.push(Some(made));
                }
            }
        }
        let lineage = lineage(inner, of)?;
        let catalog = Catalog {
            format: inner.format,
            variant: inner.variant.clone(),
            registry: self.registry,
            tensors,
            files: inner.files.clone(),
            objects: inner.objects.clone(),
            step: inner.step,
            mesh: inner.mesh.clone(),
            split: inner.split.clone(),
            codecs: inner.codecs.clone(),
            lineage,
            extra: inner.extra.clone(),
        };
        catalog.check()?;
        Ok(catalog)
    }
}

/// Only what is made of boxes is in it, and only what is made use of.
fn lineage(inner: &Catalog, of: Vec<Option<Assembly>>) -> Result<Lineage> {
    let used: BTreeSet<usize> =
        of.iter().flatten().flat_map(Assembly::parts).map(|part| part.source).collect();
    let recorded = used.iter().filter_map(|at| {
        let (entry, tensor) = (inner.registry.entries().get(*at)?, inner.tensors.get(*at)?);
        let (dtype, shape, fingerprint) = (entry.dtype, entry.shape.clone(), tensor.fingerprint);
        Some(Recorded { id: entry.id(), dtype, shape, fingerprint })
    });
    let recorded: Vec<Recorded> = recorded.collect();
    let places: HashMap<usize, usize> = used.into_iter().enumerate().map(|(place, at)| (at, place)).collect();
    let own = |made: Assembly| {
        let own = made.through(|at| Strand::Whole(places.get(&at).copied().unwrap_or(usize::MAX)));
        own.map_err(|error| Error::internal(error.to_string()))
    };
    let of = of.into_iter().map(|made| made.map(own).transpose()).collect::<Result<_>>()?;
    Ok(Lineage::new(recorded, of))
}

fn unmade(entry: &Entry, error: &AssemblyError) -> Error {
    Error::incompatible(format!("{}: {error}", entry.id()))
}
