//! Translation of a registry: names by rules, element order by region maps, slots after their parameters.

use std::collections::{HashMap, HashSet};

use super::{Family, HeadKind, Row, TranslateError, rope_map};
use crate::{Entry, Fqn, RegionMap, Registry, Role, TensorId, preset::ModelFacts};

/// One tensor under its new name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Translation {
    /// In the input.
    pub from: TensorId,
    /// In the target dialect.
    pub to: TensorId,
    /// From the input's indices to the target's.
    pub map: RegionMap,
}

/// A registry in another dialect.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Translated {
    /// One per tensor that the target has, in input order.
    pub translations: Vec<Translation>,
    /// Tensors that the target computes for itself (rotary tables): left out.
    pub derived: Vec<TensorId>,
    /// The input's entries under their new names, with shapes, ties and placement rules carried over. Placement is
    /// kept only where the element order is the same or the rule does not cut reordered rows within a head, which
    /// it never does: head counts are checked when a mesh is resolved.
    pub registry: Registry,
}

impl Family {
    /// Translates `registry` from dialect `from` to dialect `to`. Tensors of no parameter ([`Role::Other`]) pass
    /// through under their own names.
    ///
    /// # Errors
    /// Names that no rule covers (all of them are listed), head counts that are needed and not known or do not fit.
    pub fn translate(
        &self,
        registry: &Registry,
        from: &str,
        to: &str,
        facts: &ModelFacts,
    ) -> Result<Translated, TranslateError> {
        let at = |name: &str| self.position(name).ok_or_else(|| self.unknown(name));
        let work = Work { family: self, from: at(from)?, to: at(to)?, facts, registry };
        work.check_head_size()?;
        work.run(from)
    }
}

struct Work<'a> {
    family: &'a Family,
    from: usize,
    to: usize,
    facts: &'a ModelFacts,
    registry: &'a Registry,
}

impl Work<'_> {
    fn run(&self, dialect: &str) -> Result<Translated, TranslateError> {
        let rows: HashMap<&str, &Row> = self.rows();
        let (mut done, mut unmatched, mut taken) = (Translated::default(), Vec::new(), HashSet::new());
        for entry in self.registry.entries() {
            if entry.role == Role::Other {
                done.add(entry, &entry.fqn, RegionMap::identity(&entry.shape), entry.tie.clone())?;
                continue;
            }
            let Some(row) = rows.get(entry.fqn.as_str()) else {
                unmatched.push(entry.id());
                continue;
            };
            let Some(name) = row.rename(entry.fqn.as_str(), self.from, self.to).filter(|_| !row.derived)
            else {
                done.derived.push(entry.id());
                continue;
            };
            let bad = |why: String| TranslateError::Target { from: entry.id(), to: name.clone(), why };
            let fqn = Fqn::new(&name).map_err(|e| bad(e.to_string()))?;
            if !taken.insert((fqn.clone(), entry.role.clone())) {
                return Err(bad("another tensor translates to as well".to_owned()));
            }
            let tie = entry.tie.as_ref().and_then(|tie| self.rename(&rows, tie));
            done.add(entry, &fqn, self.map(entry, row)?, tie)?;
        }
        if !unmatched.is_empty() {
            let (dialect, family) = (dialect.to_owned(), self.family.name.clone());
            return Err(TranslateError::Unmatched { names: unmatched, dialect, family });
        }
        Ok(done)
    }

    /// The row of every name, looked up once for a parameter and its slots.
    fn rows(&self) -> HashMap<&str, &Row> {
        let mut rows: HashMap<&str, &Row> = HashMap::new();
        for entry in self.registry.entries() {
            let name = entry.fqn.as_str();
            if !rows.contains_key(name)
                && let Some(row) = self.family.rows.iter().find(|row| row.captures(name, self.from).is_some())
            {
                rows.insert(name, row);
            }
        }
        rows
    }

    fn rename(&self, rows: &HashMap<&str, &Row>, name: &Fqn) -> Option<Fqn> {
        Fqn::new(rows.get(name.as_str())?.rename(name.as_str(), self.from, self.to)?).ok()
    }

    fn map(&self, entry: &Entry, row: &Row) -> Result<RegionMap, TranslateError> {
        let order = |at: usize| self.family.dialects.get(at).map(|d| d.rope);
        let (Some(kind), Some(from), Some(to)) = (row.rope, order(self.from), order(self.to)) else {
            return Ok(RegionMap::identity(&entry.shape));
        };
        if from == to || entry.shape.rank() == 0 {
            return Ok(RegionMap::identity(&entry.shape));
        }
        let parameter = self.parameter_shape(entry);
        if *parameter != entry.shape {
            // A one-element slot (a step counter kept as a vector) has nothing to reorder.
            if entry.shape.elements() == Some(1) {
                return Ok(RegionMap::identity(&entry.shape));
            }
            let (shape, parameter) = (Box::new(entry.shape.clone()), Box::new(parameter.clone()));
            return Err(TranslateError::Slot { id: entry.id(), shape, parameter });
        }
        let heads = self.heads(kind, entry)?;
        rope_map(&entry.shape, heads, from, to)
            .map_err(|source| TranslateError::Region { fqn: entry.fqn.clone(), source: Box::new(source) })
    }

    fn parameter_shape<'e>(&'e self, entry: &'e Entry) -> &'e crate::Shape {
        let id = TensorId { fqn: entry.fqn.clone(), role: Role::Param };
        self.registry.get(&id).map_or(&entry.shape, |parameter| &parameter.shape)
    }

    fn heads(&self, kind: HeadKind, entry: &Entry) -> Result<u64, TranslateError> {
        let rows = entry.shape.first().copied().unwrap_or(0);
        let (fqn, flag, what) = (entry.fqn.clone(), kind.flag(), kind.what());
        let by_size =
            self.facts.head_dim.filter(|&size| size > 0 && rows.is_multiple_of(size)).map(|size| rows / size);
        let given = match kind {
            HeadKind::Heads => self.facts.heads,
            HeadKind::KvHeads => self.facts.kv_heads,
        };
        let Some(heads) = given.or(by_size) else {
            return Err(TranslateError::HeadCount { fqn, rows, flag });
        };
        if heads == 0 || !rows.is_multiple_of(heads) || !(rows / heads).is_multiple_of(2) {
            return Err(TranslateError::Heads { fqn, rows, heads, what, flag });
        }
        Ok(heads)
    }

    /// Query and key heads have one size: the cheapest sign of a wrong count.
    fn check_head_size(&self) -> Result<(), TranslateError> {
        let rows_of = |kind: HeadKind| {
            let row = self.family.rows.iter().find(|row| row.rope == Some(kind))?;
            let entries = self.registry.entries().iter().filter(|e| e.role == Role::Param);
            entries
                .filter(|e| row.captures(e.fqn.as_str(), self.from).is_some())
                .find_map(|e| e.shape.first().copied())
        };
        let (Some(heads), Some(kv_heads)) = (self.facts.heads, self.facts.kv_heads) else { return Ok(()) };
        let (Some(q_rows), Some(k_rows)) = (rows_of(HeadKind::Heads), rows_of(HeadKind::KvHeads)) else {
            return Ok(());
        };
        let whole =
            heads > 0 && kv_heads > 0 && q_rows.is_multiple_of(heads) && k_rows.is_multiple_of(kv_heads);
        if whole && q_rows / heads != k_rows / kv_heads {
            return Err(TranslateError::HeadSize { heads, q_rows, kv_heads, k_rows });
        }
        Ok(())
    }
}

impl Translated {
    fn add(
        &mut self,
        entry: &Entry,
        fqn: &Fqn,
        map: RegionMap,
        tie: Option<Fqn>,
    ) -> Result<(), TranslateError> {
        let next = Entry {
            fqn: fqn.clone(),
            shape: map.target().clone(),
            tie,
            aliases: Vec::new(),
            ..entry.clone()
        };
        let (from, to) = (entry.id(), next.id());
        self.registry.push(next).map_err(|_| TranslateError::Target {
            from: from.clone(),
            to: fqn.to_string(),
            why: "another tensor translates to as well".to_owned(),
        })?;
        self.translations.push(Translation { from, to, map });
        Ok(())
    }
}
