//! Scalars of an optimizer that a stack has one of: whether all members have the same is read before anything is planned, by the
//! recorded fingerprints where all have some.

use fqn::Entry;
use reshard::Region;

use super::{Made, Step, Thread};
use crate::{
    Error, Result, Source,
    engine::{RegionReader, Verify},
    fingerprint::Fingerprint,
};

/// Refuses members whose scalars differ: their stack would have one of them, and the others would be lost.
pub(super) fn same_counters(inner: &dyn Source, step: &Step, made: &Made) -> Result<()> {
    let groups = step.pair.counters(&made.registry).map_err(|error| step.refused(error))?;
    let mut counters = Counters { inner, reader: None };
    for group in groups.iter().filter(|group| group.len() > 1) {
        let member = |at: &usize| Some((made.registry.entries().get(*at)?, made.of.get(*at)?));
        let members: Vec<(&Entry, &Thread)> = group.iter().filter_map(member).collect();
        let Some(((one, first), others)) = members.split_first() else { continue };
        let prints = |thread: &Thread| counters.recorded(thread);
        let recorded: Option<Vec<Fingerprint>> = members.iter().map(|(_, thread)| prints(thread)).collect();
        if let Some((first, rest)) = recorded.as_deref().and_then(<[_]>::split_first) {
            match rest.iter().zip(others).find(|(print, _)| *print != first) {
                Some((_, (other, _))) => return Err(differ(step, one, other)),
                None => continue,
            }
        }
        let first = counters.bytes(first)?;
        for (other, thread) in others {
            if counters.bytes(thread)? != first {
                return Err(differ(step, one, other));
            }
        }
    }
    Ok(())
}

struct Counters<'a> {
    inner: &'a dyn Source,
    reader: Option<RegionReader<'a>>,
}

impl<'a> Counters<'a> {
    /// The fingerprint that is recorded of one as it is; none of a part of another, which an earlier step took out of it.
    fn recorded(&self, thread: &Thread) -> Option<Fingerprint> {
        let Thread::Whole(at) = thread else { return None };
        self.inner.catalog().tensors.get(*at)?.fingerprint
    }

    fn bytes(&mut self, thread: &Thread) -> Result<Vec<u8>> {
        match thread {
            Thread::Whole(at) => {
                let entry = self.inner.catalog().registry.entries().get(*at);
                let shape = entry.map(|entry| entry.shape.clone()).unwrap_or_default();
                self.read(*at, &Region::whole(&shape).map_err(|error| Error::corrupt(error.to_string()))?)
            }
            Thread::Boxes(made) => {
                let parts = made.parts().iter().map(|part| self.read(part.source, &part.from));
                Ok(parts.collect::<Result<Vec<_>>>()?.concat())
            }
        }
    }

    fn read(&mut self, at: usize, region: &Region) -> Result<Vec<u8>> {
        let inner: &'a dyn Source = self.inner;
        let reader = self.reader.get_or_insert_with(|| RegionReader::new(inner, Verify::Records));
        let mut bytes = vec![0; usize::try_from(reader.bytes(at, region)?).unwrap_or(usize::MAX)];
        reader.read_into(at, region, &mut bytes)?;
        Ok(bytes)
    }
}

fn differ(step: &Step, one: &Entry, other: &Entry) -> Error {
    let text = format!(
        "--stack {}: {} and {} have different values, and their stack would have one",
        step.pair,
        one.id(),
        other.id()
    );
    Error::incompatible(text).hint("--only model leaves the optimizer's state behind")
}
