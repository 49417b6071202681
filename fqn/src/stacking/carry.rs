//! What is known of a tensor, on the other side: its parts, its padding, its layer or expert, and how it lies on meshes.

use super::{Index, StackError, Stacking};
use crate::{AxisCut, Entry, Fqn, PlacementError, PlacementRule, Shape, StageRule};

impl Stacking {
    /// Whether two tensors can be members of one stack.
    pub(super) fn alike(&self, a: &Entry, b: &Entry) -> bool {
        let place = match self.index {
            Index::Expert => a.layer == b.layer,
            Index::Layer => a.expert == b.expert,
        };
        let content = a.shape == b.shape && a.dtype == b.dtype && a.fusion == b.fusion;
        place && content && a.placement == b.placement && a.padded_rows == b.padded_rows && a.tie == b.tie
    }

    /// `of`, checked, without what its own name alone has: aliases, and the index that members have.
    pub(super) fn known(&self, of: &Entry) -> Result<Entry, StackError> {
        let refuse = |why| Err(StackError::Unfit { id: of.id(), why });
        let rule = of.placement.iter();
        let cut = rule.clone().flat_map(PlacementRule::cuts).map(|cut| cut.dim);
        let stage =
            rule.filter_map(|rule| if let StageRule::Layers(dim) = rule.stage { Some(dim) } else { None });
        let mut dims = cut.chain(stage).chain(of.fusion.iter().map(|part| part.axis));
        if dims.any(|dim| dim >= of.shape.rank()) {
            return refuse("is cut, or has fused parts, along a dimension that it lacks");
        }
        if of.tie.is_some() {
            return refuse("is tied to a tensor of another name");
        }
        let mut known = Entry { aliases: Vec::new(), ..of.clone() };
        match self.index {
            Index::Expert => known.expert = None,
            Index::Layer => known.layer = None,
        }
        Ok(known)
    }

    /// What is known of a scalar of one member, as the one that all of them share: no rank is without it.
    pub(super) fn shared(&self, scalar: &Entry) -> Result<Entry, StackError> {
        let mut entry = self.known(scalar)?;
        let members = |rule: &PlacementRule| match self.index {
            Index::Expert => rule.expert_axis().is_some(),
            Index::Layer => rule.stage == StageRule::Layer,
        };
        if entry.placement.as_ref().is_some_and(members) {
            entry.placement = Some(PlacementRule::default());
        }
        Ok(entry)
    }

    /// What is known of a member, as its stack's.
    pub(super) fn stack_entry(&self, member: &Entry, fqn: Fqn, shape: Shape) -> Result<Entry, StackError> {
        let mut entry = self.known(member)?;
        if self.axis == 0 && entry.padded_rows.is_some() {
            let why = "has padded rows, which a stack of it has along another dimension";
            return Err(StackError::Unfit { id: member.id(), why });
        }
        // No dimension exceeds the rank, which has been checked.
        entry.fusion.iter_mut().filter(|part| part.axis >= self.axis).for_each(|part| part.axis += 1);
        self.place(member, &mut entry, true)?;
        Ok(Entry { fqn, shape, ..entry })
    }

    /// What is known of a stack, as a member's.
    pub(super) fn member_entry(&self, stack: &Entry, fqn: Fqn, shape: Shape) -> Result<Entry, StackError> {
        let mut entry = self.known(stack)?;
        let refuse = |why| Err(StackError::Unfit { id: stack.id(), why });
        if self.axis == 0 && entry.padded_rows.is_some() {
            return refuse("is padded along the dimension of its members");
        }
        if entry.fusion.iter().any(|part| part.axis == self.axis) {
            return refuse("has fused parts along the dimension of its members");
        }
        let stage = entry.placement.as_ref().map(|rule| rule.stage);
        if self.index == Index::Expert && stage == Some(StageRule::Layers(self.axis)) {
            return refuse("stacks layers along the dimension of its experts");
        }
        entry.fusion.iter_mut().filter(|part| part.axis > self.axis).for_each(|part| part.axis -= 1);
        self.place(stack, &mut entry, false)?;
        Ok(Entry { fqn, shape, ..entry })
    }

    fn place(&self, from: &Entry, to: &mut Entry, into: bool) -> Result<(), StackError> {
        let moved = from.placement.as_ref().map(|rule| self.moved(rule, into)).transpose();
        to.placement = moved.map_err(|source| StackError::Placement { id: from.id(), source })?;
        Ok(())
    }

    /// The rule with the dimension put in or taken out: what lies by its expert or layer is cut along the dimension, and the
    /// other way round. Other cuts of the dimension itself have no counterpart on members, and are left out.
    pub(super) fn moved(&self, rule: &PlacementRule, into: bool) -> Result<PlacementRule, PlacementError> {
        let axis = self.axis;
        let shifted = |dim: usize| match into {
            true => Some(if dim >= axis { dim + 1 } else { dim }),
            false if dim == axis => None,
            false => Some(if dim > axis { dim - 1 } else { dim }),
        };
        let cuts = rule.cuts().iter();
        let mut cuts: Vec<AxisCut> =
            cuts.filter_map(|cut| Some(AxisCut { dim: shifted(cut.dim)?, ..cut.clone() })).collect();
        let mut stage = match rule.stage {
            StageRule::Layers(dim) => shifted(dim).map_or(StageRule::Layer, StageRule::Layers),
            other => other,
        };
        let mut expert = rule.expert_axis().cloned();
        match self.index {
            Index::Layer if into && stage == StageRule::Layer => stage = StageRule::Layers(axis),
            Index::Layer => {}
            Index::Expert if into => {
                // Experts are shared out before anything cuts one of them.
                let first = expert.take().map(|name| AxisCut::from((name, axis)));
                cuts.splice(0..0, first);
            }
            Index::Expert => {
                let own = rule.cuts().iter().find(|cut| cut.dim == axis && cut.axes.len() == 1);
                expert = expert.or_else(|| own.and_then(|cut| cut.axes.first().cloned()));
            }
        }
        let rule = PlacementRule::new(cuts, stage)?;
        expert.map_or(Ok(rule.clone()), |axis| rule.of_expert(axis))
    }
}
