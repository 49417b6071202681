//! A group whose other members are imagined.

use std::rc::Rc;

use tch::{Device, Kind as Dtype, Tensor};

use super::{
    Log,
    record::{Collective, Event},
};
use crate::{
    Result,
    transport::{
        Group, Purpose, check,
        failure::{Failure, Outcome},
    },
};

pub(super) struct FakeGroup {
    log: Rc<Log>,
    key: u32,
    name: String,
    size: usize,
    index: usize,
}

/// What is recorded of a collective.
struct Said<'a> {
    operation: &'static str,
    purpose: &'a Purpose,
    dtype: Option<Dtype>,
    given: &'a [Vec<i64>],
    expected: &'a [Vec<i64>],
    bytes: u64,
}

impl FakeGroup {
    pub(super) fn new(log: Rc<Log>, key: u32, name: &str, size: usize, index: usize) -> Self {
        Self { log, key, name: name.to_owned(), size, index }
    }

    fn put(&self, said: &Said<'_>) {
        let Said { operation, purpose, dtype, given, expected, bytes } = *said;
        self.log.put(|words| {
            Event::Collective(Collective {
                group: self.key,
                act: words.act(operation, purpose, dtype),
                given: words.shapes(given),
                expected: words.shapes(expected),
                bytes,
            })
        });
    }

    fn what(&self, operation: &str, purpose: &Purpose) -> String {
        format!("{operation} ({purpose}) of group {}", self.name)
    }

    fn gathered(&self, purpose: &Purpose, mine: &Tensor, shapes: &[Vec<i64>]) -> Outcome<Vec<Tensor>> {
        let what = self.what("all_gather", purpose);
        let dtype = check::dtype(&what, mine)?;
        check::placed(&what, mine, Device::Cpu)?;
        check::shapes(&what, self.size, shapes)?;
        check::own(&what, mine, shapes.get(self.index))?;
        let bytes = others(shapes, self.index, dtype)?;
        self.put(&Said {
            operation: "all_gather",
            purpose,
            dtype: Some(dtype),
            given: &[mine.size()],
            expected: shapes,
            bytes,
        });
        let mine = mine.f_detach()?;
        let part = |(at, shape): (usize, &Vec<i64>)| match at == self.index {
            true => Ok(mine.shallow_clone()),
            false if *shape == mine.size() => Ok(mine.f_detach_copy()?),
            false => Ok(Tensor::f_zeros(shape, (dtype, Device::Cpu))?),
        };
        shapes.iter().enumerate().map(part).collect()
    }

    fn exchanged(&self, purpose: &Purpose, parts: &[Tensor], shapes: &[Vec<i64>]) -> Outcome<Vec<Tensor>> {
        let what = self.what("exchange", purpose);
        check::shapes(&what, self.size, shapes)?;
        let mine = parts.get(self.index).filter(|_| parts.len() == self.size).ok_or_else(|| {
            Failure::Misuse(format!("{what}: {} parts for {} members", parts.len(), self.size))
        })?;
        let dtype = check::dtype(&what, mine)?;
        if parts.iter().any(|part| part.kind() != dtype) {
            return Err(Failure::Misuse(format!("{what}: its parts are of several dtypes")));
        }
        parts.iter().try_for_each(|part| check::placed(&what, part, Device::Cpu))?;
        check::own(&what, mine, shapes.get(self.index))?;
        let given: Vec<_> = parts.iter().map(Tensor::size).collect();
        let bytes = others(&given, self.index, dtype)?;
        self.put(&Said {
            operation: "exchange",
            purpose,
            dtype: Some(dtype),
            given: &given,
            expected: shapes,
            bytes,
        });
        let part = |(at, shape): (usize, &Vec<i64>)| match at == self.index {
            true => Ok(mine.f_detach()?),
            false => Ok(Tensor::f_zeros(shape, (dtype, Device::Cpu))?),
        };
        shapes.iter().enumerate().map(part).collect()
    }

    fn reduced(&self, purpose: &Purpose, mine: &Tensor) -> Outcome<Tensor> {
        let what = self.what("all_reduce", purpose);
        let dtype = check::dtype(&what, mine)?;
        check::placed(&what, mine, Device::Cpu)?;
        let shape = mine.size();
        // Twice what (N-1)/N of it takes: once to add it up, once to spread it.
        let once = bytes_of(&shape, dtype)?;
        let members = self.size.max(1) as u64;
        self.put(&Said {
            operation: "all_reduce",
            purpose,
            dtype: Some(dtype),
            given: std::slice::from_ref(&shape),
            expected: &[],
            bytes: 2 * once * (members - 1) / members,
        });
        Ok(mine.f_detach()?.f_contiguous()?.f_detach_copy()?)
    }

    fn told(&self, purpose: &Purpose, mine: &[u8]) -> Vec<Vec<u8>> {
        let bytes = if self.size > 1 { mine.len() as u64 } else { 0 };
        let operation = "all_gather_bytes";
        self.put(&Said { operation, purpose, dtype: None, given: &[], expected: &[], bytes });
        vec![mine.to_vec(); self.size]
    }
}

/// Bytes of all parts but one.
fn others(shapes: &[Vec<i64>], own: usize, dtype: Dtype) -> Outcome<u64> {
    let parts = shapes.iter().enumerate().filter(|(at, _)| *at != own);
    parts.map(|(_, shape)| bytes_of(shape, dtype)).sum()
}

fn bytes_of(shape: &[i64], dtype: Dtype) -> Outcome<u64> {
    Ok(check::elements(shape)?.unsigned_abs().saturating_mul(dtype.elt_size_in_bytes() as u64))
}

impl Group for FakeGroup {
    fn index(&self) -> usize {
        self.index
    }

    fn size(&self) -> usize {
        self.size
    }

    fn imagined(&self) -> bool {
        self.size > 1
    }

    fn all_gather(&self, purpose: &Purpose, mine: &Tensor, shapes: &[Vec<i64>]) -> Result<Vec<Tensor>> {
        Ok(self.gathered(purpose, mine, shapes)?)
    }

    fn exchange(&self, purpose: &Purpose, parts: Vec<Tensor>, shapes: &[Vec<i64>]) -> Result<Vec<Tensor>> {
        Ok(self.exchanged(purpose, &parts, shapes)?)
    }

    fn all_reduce(&self, purpose: &Purpose, mine: Tensor) -> Result<Tensor> {
        Ok(self.reduced(purpose, &mine)?)
    }

    fn all_gather_bytes(&self, purpose: &Purpose, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(self.told(purpose, mine))
    }
}
