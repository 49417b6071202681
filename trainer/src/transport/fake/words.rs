//! [`Words`]: what ranks say, each once, by number: records of a thousand ranks repeat themselves, and equal numbers are equal
//! words.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
};

use tch::Kind as Dtype;

use crate::transport::{Header, Purpose};

/// What a collective is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Act {
    pub(super) operation: &'static str,
    pub(super) purpose: Purpose,
    pub(super) dtype: Option<Dtype>,
}

/// A group of the run: its name, its members, and which of those of that name and members it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) name: String,
    pub(super) members: Vec<usize>,
    pub(super) count: usize,
}

/// Words of a run. Ranks of several threads may add to them.
#[derive(Debug, Default)]
pub struct Words {
    headers: Known<Header>,
    acts: Known<Act>,
    shapes: Known<Vec<Vec<i64>>>,
    groups: Known<Place>,
    notes: Known<String>,
}

/// Values of one kind, by number.
#[derive(Debug)]
struct Known<T>(Mutex<Table<T>>);

#[derive(Debug)]
struct Table<T> {
    numbers: HashMap<Arc<T>, u32>,
    values: Vec<Arc<T>>,
}

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self(Mutex::new(Table { numbers: HashMap::new(), values: Vec::new() }))
    }
}

impl<T: Eq + Hash + Clone> Known<T> {
    /// The number of a value, which is its own from now on.
    fn number(&self, value: &T) -> u32 {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = table.numbers.get(value) {
            return *number;
        }
        let (value, number) =
            (Arc::new(value.clone()), u32::try_from(table.values.len()).unwrap_or(u32::MAX));
        table.numbers.insert(Arc::clone(&value), number);
        table.values.push(value);
        number
    }

    fn value(&self, number: u32) -> Option<Arc<T>> {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.values.get(usize::try_from(number).ok()?).cloned()
    }
}

impl Words {
    pub(super) fn header(&self, header: &Header) -> u32 {
        self.headers.number(header)
    }

    pub(super) fn header_of(&self, number: u32) -> Option<Arc<Header>> {
        self.headers.value(number)
    }

    pub(super) fn act(&self, operation: &'static str, purpose: &Purpose, dtype: Option<Dtype>) -> u32 {
        self.acts.number(&Act { operation, purpose: purpose.clone(), dtype })
    }

    pub(super) fn act_of(&self, number: u32) -> Option<Arc<Act>> {
        self.acts.value(number)
    }

    pub(super) fn shapes(&self, shapes: &[Vec<i64>]) -> u32 {
        self.shapes.number(&shapes.to_vec())
    }

    pub(super) fn shapes_of(&self, number: u32) -> Option<Arc<Vec<Vec<i64>>>> {
        self.shapes.value(number)
    }

    pub(super) fn group(&self, name: &str, members: &[usize], count: usize) -> u32 {
        self.groups.number(&Place { name: name.to_owned(), members: members.to_vec(), count })
    }

    pub(super) fn group_of(&self, number: u32) -> Option<Arc<Place>> {
        self.groups.value(number)
    }

    pub(super) fn note(&self, text: &str) -> u32 {
        self.notes.number(&text.to_owned())
    }

    pub(super) fn note_of(&self, number: u32) -> String {
        self.notes.value(number).map_or_else(String::new, |text| (*text).clone())
    }
}

impl std::fmt::Display for Act {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.dtype {
            Some(dtype) => write!(f, "{} of {dtype:?} ({})", self.operation, self.purpose),
            None => write!(f, "{} ({})", self.operation, self.purpose),
        }
    }
}
