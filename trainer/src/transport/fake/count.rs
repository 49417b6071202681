//! [`Flows`]: what a rank sends in a record, by group and operation, and by direction of messages.

use std::collections::BTreeMap;

use super::{
    record::{Event, Record},
    words::Words,
};
use crate::transport::{Header, Kind};

/// Operations of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flow {
    /// How many.
    pub count: u64,
    /// Bytes that this rank sends for them; collectives as a ring does them: a gather sends on all parts but one, a sum twice
    /// (N-1)/N of its tensor.
    pub bytes: u64,
}

/// All of a rank.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Flows {
    /// Activations sent.
    pub forward: Flow,
    /// Gradients of them sent.
    pub backward: Flow,
    /// Collectives, by the group's name and the operation; groups of one left out.
    pub collectives: BTreeMap<(String, &'static str), Flow>,
}

impl Flow {
    const fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }

    const fn and(self, other: Self) -> Self {
        Self { count: self.count + other.count, bytes: self.bytes + other.bytes }
    }
}

impl Flows {
    /// Those of a record.
    #[must_use]
    pub fn of(record: &Record, words: &Words) -> Self {
        let mut flows = Self::default();
        for (_, event) in &record.events {
            match event {
                Event::Send(message) => {
                    let Some(header) = words.header_of(message.header) else { continue };
                    let flow = match header.kind {
                        Kind::Forward => &mut flows.forward,
                        Kind::Backward => &mut flows.backward,
                    };
                    flow.add(bytes(&header));
                }
                Event::Collective(it) => {
                    let (Some(place), Some(act)) = (words.group_of(it.group), words.act_of(it.act)) else {
                        continue;
                    };
                    if place.members.len() > 1 {
                        let key = (place.name.clone(), act.operation);
                        flows.collectives.entry(key).or_default().add(it.bytes);
                    }
                }
                Event::Open(_) | Event::Receive(_) | Event::Flush => {}
            }
        }
        flows
    }

    /// All operations of the groups of that name, or those of one kind.
    #[must_use]
    pub fn of_group(&self, name: &str, operation: Option<&str>) -> Flow {
        let wanted = self
            .collectives
            .iter()
            .filter(|((group, it), _)| group == name && operation.is_none_or(|operation| operation == *it));
        wanted.map(|(_, flow)| *flow).fold(Flow::default(), Flow::and)
    }
}

fn bytes(header: &Header) -> u64 {
    let elements = |shape: &Vec<i64>| shape.iter().map(|extent| extent.unsigned_abs()).product::<u64>();
    header.shapes.iter().map(elements).sum::<u64>() * header.dtype.elt_size_in_bytes() as u64
}
