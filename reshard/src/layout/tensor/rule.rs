//! A placement rule on a mesh: which axes cut which dimension and how, what there is to cut, and which axes hold whole
//! tensors at some of their coordinates only.

use fqn::{AxisCut, AxisName, Dims, Entry, PlacementRule, Shape, StageRule};
use smallvec::{SmallVec, smallvec};

use super::{Choice, Cut, How, LayoutError, Stages, Stretches};
use crate::{Mesh, Region};

/// A rule and what it is resolved for.
pub(super) struct Resolve<'a> {
    pub(super) rule: &'a PlacementRule,
    pub(super) entry: &'a Entry,
    pub(super) mesh: &'a Mesh,
    pub(super) stages: &'a Stages,
}

impl Resolve<'_> {
    /// The cuts, in cutting order: that of stacked layers over stages comes first.
    pub(super) fn cuts(&self) -> Result<SmallVec<[Cut; 2]>, LayoutError> {
        let mut cuts: SmallVec<[Cut; 2]> = self.layers()?.into_iter().collect();
        for cut in self.rule.cuts() {
            self.check_dim(cut.dim)?;
            cuts.extend(self.cut(cut, &cuts)?);
        }
        Ok(cuts)
    }

    fn cut(&self, cut: &AxisCut, before: &[Cut]) -> Result<Option<Cut>, LayoutError> {
        let mut axes: SmallVec<[(usize, u64); 1]> = SmallVec::new();
        for axis in &cut.axes {
            let Some(at) = self.mesh.cutting(axis) else { continue };
            let taken =
                axes.iter().chain(before.iter().flat_map(|cut| &cut.axes)).any(|(other, _)| *other == at);
            if taken || self.expert_position() == Some(at) {
                return Err(self.twice(axis));
            }
            axes.push((at, self.extent(at)));
        }
        let extent = axes.iter().map(|(_, extent)| extent).product();
        let fused = self.entry.fusion.iter().any(|part| part.axis == cut.dim);
        let within = fused && cut.axes.iter().any(|axis| axis.as_str() == "tp");
        let how = if within { How::Within } else { How::Across };
        Ok((!axes.is_empty()).then_some(Cut { axes, extent, dim: cut.dim, how }))
    }

    /// The cut of stacked layers: each stage takes its own.
    fn layers(&self) -> Result<Option<Cut>, LayoutError> {
        let StageRule::Layers(dim) = self.rule.stage else { return Ok(None) };
        self.check_dim(dim)?;
        let Some(at) = self.mesh.position("pp") else { return Ok(None) };
        let layers = self.entry.shape.get(dim).copied().unwrap_or(0);
        let spans = (0..self.mesh.stages()).map(|stage| self.stages.span(stage, layers)).collect();
        let extent = self.mesh.stages();
        Ok(Some(Cut { axes: smallvec![(at, extent)], extent, dim, how: How::At(spans) }))
    }

    /// What there is to cut, per dimension: whole ones, padding included, or fused parts one after another.
    pub(super) fn uncut(&self) -> Result<SmallVec<[Stretches; 4]>, LayoutError> {
        let entry = self.entry;
        let mut dims: SmallVec<[Stretches; 4]> =
            entry.shape.iter().map(|extent| smallvec![(0, *extent)]).collect();
        let mut padded = Dims::from_slice(&entry.shape);
        for (dim, whole) in self.padding()? {
            padded.get_mut(dim).into_iter().for_each(|extent| *extent = whole);
            dims.get_mut(dim).into_iter().for_each(|dim| *dim = smallvec![(0, whole)]);
            Region::whole(&Shape::new(&padded)).map_err(|_| self.wrong(dim, "then exceeds 64 bits"))?;
        }
        self.fuse(&mut dims)?;
        Ok(dims)
    }

    /// Dimensions that are padded, each with the extent that it then has: by the rule, or, where it says nothing of rows,
    /// by the registry.
    fn padding(&self) -> Result<SmallVec<[(usize, u64); 1]>, LayoutError> {
        let mut found: SmallVec<[(usize, u64); 1]> = SmallVec::new();
        for (cut, pad) in self.rule.cuts().iter().filter_map(|cut| Some((cut, cut.pad?))) {
            if found.iter().any(|(dim, _)| *dim == cut.dim) {
                return Err(self.wrong(cut.dim, "another cut pads too"));
            }
            found.push((cut.dim, self.padded(cut, pad)?));
        }
        let rows = self.entry.shape.first().copied().unwrap_or(u64::MAX);
        let fixed = self.entry.padded_rows.filter(|padded| *padded > rows);
        found.extend(fixed.filter(|_| !found.iter().any(|(dim, _)| *dim == 0)).map(|padded| (0, padded)));
        for (dim, _) in &found {
            if self.entry.fusion.iter().any(|part| part.axis == *dim) {
                return Err(self.wrong(*dim, "consists of fused parts"));
            }
            // No stage holds layers that aren't there.
            if self.rule.stage == StageRule::Layers(*dim) {
                return Err(self.wrong(*dim, "stacks layers"));
            }
        }
        Ok(found)
    }

    /// The extent of a dimension that is padded to a multiple of `pad` times the parts that it is cut into.
    fn padded(&self, cut: &AxisCut, pad: u64) -> Result<u64, LayoutError> {
        let positions = cut.axes.iter().filter_map(|axis| self.mesh.cutting(axis));
        let parts: u64 = positions.map(|at| self.extent(at)).product();
        let extent = self.entry.shape.get(cut.dim).copied().unwrap_or(0);
        let whole = pad.checked_mul(parts).and_then(|step| extent.checked_next_multiple_of(step));
        whole.ok_or_else(|| self.wrong(cut.dim, "then exceeds 64 bits"))
    }

    fn wrong(&self, dim: usize, why: &'static str) -> LayoutError {
        let (tensor, rule, shape) = (self.entry.id(), self.rule.clone(), self.entry.shape.clone());
        LayoutError::Padding { tensor, rule, dim, shape, why }
    }

    fn fuse(&self, dims: &mut [Stretches]) -> Result<(), LayoutError> {
        let entry = self.entry;
        let Some(axis) = entry.fusion.first().map(|part| part.axis) else { return Ok(()) };
        let mut parts = Stretches::new();
        let end = entry.fusion.iter().try_fold(0_u64, |start, part| {
            parts.push((start, part.extent));
            start.checked_add(part.extent).filter(|_| part.axis == axis)
        });
        match dims.get_mut(axis) {
            Some(whole) if end.is_some() && end == entry.shape.get(axis).copied() => *whole = parts,
            _ => return Err(LayoutError::Fusion { tensor: entry.id(), axis, shape: entry.shape.clone() }),
        }
        Ok(())
    }

    /// Axes that hold the whole tensor at some coordinates only, by position.
    pub(super) fn choices(&self) -> Result<SmallVec<[(usize, Choice); 2]>, LayoutError> {
        let (mut choices, (first, last)) = (SmallVec::new(), self.stages.ends());
        let pipeline = match self.rule.stage {
            StageRule::All | StageRule::Layers(_) => Choice::Any,
            StageRule::First => Choice::At(first),
            StageRule::Last => Choice::At(last),
            StageRule::FirstAndLast => Choice::both(first, last),
            StageRule::Layer if self.mesh.stages() == 1 => Choice::Any,
            StageRule::Layer => Choice::At(self.stage_of_layer()?),
        };
        choices.extend(self.mesh.position("pp").map(|at| (at, pipeline)).filter(|_| pipeline != Choice::Any));
        if let Some(at) = self.expert_position() {
            choices.push((at, Choice::At(self.expert_coordinate(self.extent(at))?)));
        }
        Ok(choices)
    }

    fn stage_of_layer(&self) -> Result<u64, LayoutError> {
        let stage = self.entry.layer.and_then(|layer| self.stages.of(layer));
        stage.ok_or_else(|| LayoutError::NoLayer { tensor: self.entry.id(), rule: self.rule.clone() })
    }

    fn expert_position(&self) -> Option<usize> {
        self.mesh.cutting(self.rule.expert_axis()?)
    }

    /// Experts are shared out as rows of a stacked tensor would be.
    fn expert_coordinate(&self, extent: u64) -> Result<u64, LayoutError> {
        let missing = || LayoutError::NoExpert { tensor: self.entry.id(), rule: self.rule.clone() };
        let expert = self.entry.expert.ok_or_else(missing)?;
        let share = self.stages.experts(self.entry.layer).max(u64::from(expert) + 1).div_ceil(extent.max(1));
        Ok(u64::from(expert) / share)
    }

    fn extent(&self, at: usize) -> u64 {
        self.mesh.axes().get(at).map_or(1, |&(_, extent)| extent)
    }

    fn check_dim(&self, dim: usize) -> Result<(), LayoutError> {
        if dim < self.entry.shape.rank() {
            return Ok(());
        }
        let (tensor, rule, shape) = (self.entry.id(), self.rule.clone(), self.entry.shape.clone());
        Err(LayoutError::NoDimension { tensor, rule, dim, shape })
    }

    fn twice(&self, axis: &AxisName) -> LayoutError {
        LayoutError::AxisTwice { tensor: self.entry.id(), rule: self.rule.clone(), axis: axis.clone() }
    }
}
