//! [`Plan`]: the boxes of one rank. Which rows of each parameter the members of its shard group hold, which pieces
//! the operations see, and where everything lies in the flat buffers of the parts.
//!
//! Invariants: the boxes of a group tile what the group's tensor-parallel column holds, and so do the pieces; every slot
//! of a flat buffer begins at a multiple of [`ALIGNMENT`]; a parameter is kept once, in the first of the rank's parts that
//! uses it, and lent to the others.

use std::collections::{BTreeMap, btree_map::Entry};

use fqn::{AxisName, AxisPlacement, Role, TensorId};
use reshard::{Mesh, Region, StageSplit, TensorLayout, layout::chunk};

use super::state::Setup;
use crate::{
    Error, Result,
    model::{Model, ParamSpec},
    optim::ALIGNMENT,
    parallel::Cut,
};

/// All boxes and buffers of a rank.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) params: Vec<Held>,
    pub(super) units: Vec<Unit>,
    /// Every parameter with several uses, of the whole model, in the model's order.
    pub(super) ties: Vec<Tie>,
}

/// A parameter of this rank.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) spec: ParamSpec,
    /// Its index in the model.
    pub(super) index: usize,
    pub(super) cut: Cut,
    /// What each member of the shard group holds.
    pub(super) regions: Vec<Region>,
    /// What each virtual tensor-parallel rank that this rank plays sees.
    pub(super) pieces: Vec<Region>,
    /// Where it is kept: unit and slot.
    pub(super) home: (usize, usize),
    /// Whether this rank's copy is the one that counts, for norms and in the store.
    pub(super) primary: bool,
}

/// A part of the model: what is gathered at once.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) part: usize,
    /// Kept ones first (with weight decay, then without), then borrowed ones.
    pub(super) slots: Vec<Slot>,
    /// Length of the flat buffer of each member of the shard group.
    pub(super) lengths: Vec<i64>,
    /// How much of this rank's is kept here; the rest is borrowed.
    pub(super) kept: i64,
    /// How much of this rank's has weight decay; it comes first.
    pub(super) decayed: i64,
}

/// A parameter's place in the flat buffers of a unit.
#[derive(Debug)]
pub(super) struct Slot {
    /// Index in [`Plan::params`].
    pub(super) param: usize,
    pub(super) borrowed: bool,
    /// Its offset in the flat buffer of each member.
    pub(super) offsets: Vec<i64>,
}

/// A parameter with several uses.
#[derive(Debug)]
pub(super) struct Tie {
    /// Its index in the model.
    pub(super) index: usize,
    /// Parts that use it, ascending, each with the pipeline rank that runs it.
    pub(super) uses: Vec<(usize, usize)>,
}

/// Length of a region's elements in a flat buffer.
pub(super) fn padded(region: &Region) -> i64 {
    let rest = elements(region) % ALIGNMENT;
    elements(region) + if rest == 0 { 0 } else { ALIGNMENT - rest }
}

/// Number of elements; regions have been checked against shapes of i64 elements.
pub(super) fn elements(region: &Region) -> i64 {
    i64::try_from(region.elements()).unwrap_or(i64::MAX)
}

/// Extents, as tensors have them.
pub(super) fn extents(region: &Region) -> Vec<i64> {
    region.extents().iter().map(|extent| i64::try_from(*extent).unwrap_or(i64::MAX)).collect()
}

impl Plan {
    pub(super) fn new(setup: &Setup<'_>) -> Result<Self> {
        let parts = setup.parts.get(setup.at.pp).map(Vec::as_slice).unwrap_or_default();
        let ties = ties(setup)?;
        let mut params = Vec::new();
        let mut of: BTreeMap<usize, usize> = BTreeMap::new();
        for (unit, part) in parts.iter().enumerate() {
            for index in part_params(setup.model, *part)? {
                if let Entry::Vacant(place) = of.entry(index) {
                    place.insert(params.len());
                    let mut held = held(setup, index)?;
                    held.home.0 = unit;
                    params.push(held);
                }
            }
        }
        for held in &mut params {
            let first = ties.iter().find(|tie| tie.index == held.index).and_then(|tie| tie.uses.first());
            held.primary &= first.is_none_or(|(_, pp)| *pp == setup.at.pp);
        }
        let mut units = Vec::new();
        for (at, part) in parts.iter().enumerate() {
            let used = part_params(setup.model, *part)?;
            let used = used.iter().filter_map(|index| of.get(index).copied()).collect();
            let unit = Unit::new(at, *part, used, &params, setup.data.member(setup.at.dp));
            for (slot, place) in unit.slots.iter().enumerate().filter(|(_, place)| !place.borrowed) {
                if let Some(held) = params.get_mut(place.param) {
                    held.home.1 = slot;
                }
            }
            units.push(unit);
        }
        Ok(Self { params, units, ties })
    }

    /// The unit of a part of this rank.
    pub(super) fn unit(&self, part: usize) -> Result<(usize, &Unit)> {
        let found = self.units.iter().enumerate().find(|(_, unit)| unit.part == part);
        found.ok_or_else(|| Error::internal(format!("part {part} of the model does not run on this rank")))
    }

    /// The parameter with an index in the model, if this rank has it.
    pub(super) fn held(&self, index: usize) -> Option<&Held> {
        self.params.iter().find(|held| held.index == index)
    }

    /// A slot's parameter.
    pub(super) fn of(&self, slot: &Slot) -> Result<&Held> {
        self.params.get(slot.param).ok_or_else(|| Error::internal("a slot of no parameter"))
    }
}

impl Unit {
    fn new(at: usize, part: usize, mut used: Vec<usize>, params: &[Held], member: usize) -> Self {
        let held = |param: &usize| params.get(*param);
        let rank = |param: &usize| {
            held(param).map_or(3, |held| match (held.home.0 == at, held.spec.decay) {
                (true, true) => 0,
                (true, false) => 1,
                (false, _) => 2,
            })
        };
        used.sort_by_key(rank);
        let members = used.first().and_then(held).map_or(1, |held| held.regions.len());
        let mut unit = Self { part, slots: Vec::new(), lengths: vec![0; members], kept: 0, decayed: 0 };
        for param in used {
            let Some(held) = params.get(param) else { continue };
            let offsets = unit.lengths.clone();
            for (length, region) in unit.lengths.iter_mut().zip(&held.regions) {
                *length += padded(region);
            }
            let borrowed = held.home.0 != at;
            let end = unit.lengths.get(member).copied().unwrap_or(0);
            if !borrowed {
                unit.kept = end;
            }
            if !borrowed && held.spec.decay {
                unit.decayed = end;
            }
            unit.slots.push(Slot { param, borrowed, offsets });
        }
        unit
    }
}

/// Parameters that a part uses, each once, in the part's order.
fn part_params(model: &dyn Model, part: usize) -> Result<Vec<usize>> {
    let spec = model.parts().get(part);
    let spec = spec.ok_or_else(|| {
        Error::config(format!("part {part} is in no stage: the model has {}", model.parts().len()))
    })?;
    let mut used: Vec<usize> = Vec::new();
    for index in &spec.params {
        if !used.contains(index) {
            used.push(*index);
        }
    }
    Ok(used)
}

fn ties(setup: &Setup<'_>) -> Result<Vec<Tie>> {
    let mut uses: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
    for (pp, parts) in setup.parts.iter().enumerate() {
        for part in parts {
            for index in part_params(setup.model, *part)? {
                uses.entry(index).or_default().push((*part, pp));
            }
        }
    }
    let tied = uses.into_iter().filter(|(_, uses)| uses.len() > 1).map(|(index, mut uses)| {
        uses.sort_unstable();
        Tie { index, uses }
    });
    Ok(tied.collect())
}

/// Boxes of one parameter.
fn held(setup: &Setup<'_>, index: usize) -> Result<Held> {
    let spec = setup.model.params().get(index);
    let spec = spec.ok_or_else(|| Error::internal(format!("the model has no parameter {index}")))?.clone();
    let entry = entry(setup, &spec)?;
    let misfit = |error: &dyn std::fmt::Display| Error::config(format!("layout of {}: {error}", spec.fqn));
    let mesh = format!("dp={},tp={}", setup.data.shard, setup.mesh.tp);
    let mesh: Mesh = mesh.parse().map_err(|error| misfit(&error))?;
    let stages = StageSplit::Auto.resolve(setup.registry, 1).map_err(|error| misfit(&error))?;
    let layout = TensorLayout::new(entry, &mesh, &stages).map_err(|error| misfit(&error))?;
    let mut regions = Vec::new();
    for member in 0..setup.data.shard {
        let mut found = layout.regions_of(&mesh, &[member as u64, setup.at.tp as u64]);
        match (found.pop(), found.is_empty()) {
            (Some(region), true) => regions.push(region),
            _ => return Err(misfit(&"its fused parts make several boxes; list the parts as parameters")),
        }
    }
    let cut = cut(setup, entry)?;
    let pieces = pieces(setup, entry, cut)?;
    tiles(&regions, &pieces).map_err(|text| misfit(&text))?;
    let first_replica = setup.data.replica(setup.at.dp) == 0;
    let primary = first_replica && (setup.at.tp == 0 || matches!(cut, Cut::Dim(_)));
    Ok(Held { spec, index, cut, regions, pieces, home: (0, 0), primary })
}

fn entry<'a>(setup: &Setup<'a>, spec: &ParamSpec) -> Result<&'a fqn::Entry> {
    let id = TensorId { fqn: spec.fqn.clone(), role: Role::Param };
    let entry = setup.registry.get(&id);
    let entry = entry.ok_or_else(|| Error::config(format!("{} is not in the registry", spec.fqn)))?;
    let same = entry.shape.iter().map(|extent| i64::try_from(*extent).ok());
    if !same.eq(spec.shape.iter().map(|extent| Some(*extent))) {
        let (model, registry) = (&spec.shape, &entry.shape);
        return Err(Error::config(format!(
            "{} is {model:?} in the model, {registry} in the registry",
            spec.fqn
        )));
    }
    Ok(entry)
}

/// How tensor parallelism cuts; data parallelism must cut rows.
fn cut(setup: &Setup<'_>, entry: &fqn::Entry) -> Result<Cut> {
    let rule = entry.placement.as_ref();
    let axis = |name| AxisName::new(name).map_err(|error| Error::internal(error.to_string()));
    let on = |axis: &AxisName| rule.map_or(AxisPlacement::Replicate, |rule| rule.on(axis));
    if setup.data.shard > 1 && on(&axis("dp")?) != AxisPlacement::Shard(0) {
        let rule = rule.map_or_else(|| "none".to_owned(), ToString::to_string);
        return Err(Error::config(format!(
            "placement {rule} of {} does not cut its rows over dp",
            entry.fqn
        ))
        .hint("FSDP shards dimension 0: add dp:0 to the rule"));
    }
    Ok(match on(&axis("tp")?) {
        AxisPlacement::Replicate => Cut::Whole,
        AxisPlacement::Shard(dim) => Cut::Dim(dim),
    })
}

fn pieces(setup: &Setup<'_>, entry: &fqn::Entry, cut: Cut) -> Result<Vec<Region>> {
    let broken = |error: reshard::RegionError| Error::internal(format!("pieces of {}: {error}", entry.fqn));
    let Cut::Dim(dim) = cut else { return Ok(vec![Region::whole(&entry.shape).map_err(broken)?]) };
    let extent = entry.shape.get(dim).copied().unwrap_or(0);
    let padded = entry.padded_rows.filter(|_| dim == 0).map_or(extent, |rows| rows.max(extent));
    let tp = setup.virtual_tp;
    let piece = |at: usize| {
        let (start, length) = chunk(padded, tp.total as u64, at as u64);
        let (start, end) = (start.min(extent), (start + length).min(extent));
        let (mut offsets, mut extents) = (vec![0; entry.shape.rank()], entry.shape.to_vec());
        offsets.get_mut(dim).into_iter().for_each(|offset| *offset = start);
        extents.get_mut(dim).into_iter().for_each(|length| *length = end - start);
        Region::new(&offsets, &extents).map_err(broken)
    };
    (tp.first..tp.first + tp.count).map(piece).collect()
}

/// Checks that shards and pieces are the same elements: each set is disjoint by construction.
fn tiles(regions: &[Region], pieces: &[Region]) -> Result<(), String> {
    let count = |boxes: &[Region]| boxes.iter().map(Region::elements).sum::<u64>();
    let shared = regions.iter().flat_map(|region| pieces.iter().filter_map(|piece| region.intersect(piece)));
    let shared: u64 = shared.map(|region| region.elements()).sum();
    if shared == count(regions) && shared == count(pieces) {
        return Ok(());
    }
    Err("tp and the virtual tensor-parallel ranks cut it at different places; \
         make its extent, or its padded rows, a multiple of exact.virtual_tp"
        .to_owned())
}
