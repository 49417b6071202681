//! Scalars of an optimizer that a stack has one of: whether all members have the same is read before anything is planned, by the
//! recorded fingerprints where there are some.

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
        let mut first: Option<(&Entry, Value)> = None;
        for at in group {
            let entry = made.registry.entries().get(*at);
            let (Some(entry), Some(Thread::Whole(below))) = (entry, made.of.get(*at)) else { continue };
            let value = counters.value(*below)?;
            match &first {
                Some((one, known)) if *known != value => return Err(differ(step, one, entry)),
                Some(_) => {}
                None => first = Some((entry, value)),
            }
        }
    }
    Ok(())
}

/// What a scalar is: its fingerprint, where it was recorded, or its bytes.
#[derive(Debug, PartialEq, Eq)]
enum Value {
    Recorded(Fingerprint),
    Bytes(Vec<u8>),
}

struct Counters<'a> {
    inner: &'a dyn Source,
    reader: Option<RegionReader<'a>>,
}

impl<'a> Counters<'a> {
    fn value(&mut self, at: usize) -> Result<Value> {
        let catalog = self.inner.catalog();
        if let Some(known) = catalog.tensors.get(at).and_then(|tensor| tensor.fingerprint) {
            return Ok(Value::Recorded(known));
        }
        let shape = catalog.registry.entries().get(at).map(|entry| entry.shape.clone()).unwrap_or_default();
        let whole = Region::whole(&shape).map_err(|error| Error::corrupt(error.to_string()))?;
        let inner: &'a dyn Source = self.inner;
        let reader = self.reader.get_or_insert_with(|| RegionReader::new(inner, Verify::Records));
        let mut bytes = vec![0; usize::try_from(reader.bytes(at, &whole)?).unwrap_or(usize::MAX)];
        reader.read_into(at, &whole, &mut bytes)?;
        Ok(Value::Bytes(bytes))
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
