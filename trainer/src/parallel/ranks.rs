//! [`Ranks`]: the virtual tensor-parallel ranks that are played here: their weights, and sums over all of them.
//!
//! Invariants: what comes back from a sum is whole and the same on every rank of the group; in exact mode it is the tree
//! sum over virtual ranks, whatever the number of real ones. Sums and gathers by tokens are in [`super::tokens`].

use std::{cell::Cell, rc::Rc};

use tch::Tensor;

use super::{Params, Precision, Products, Tokens, wide};
use crate::{
    Error, Result,
    exact::{self, Sums, VirtualTp},
    model::{Model, Param},
    transport::{Group, Purpose},
};

/// Weights, group and virtual ranks.
pub(super) struct Ranks {
    params: Rc<dyn Params>,
    tp: Option<Rc<dyn Group>>,
    virtual_tp: VirtualTp,
    sums: Sums,
    tokens: Tokens,
    products: Products,
    names: Vec<(String, Vec<i64>)>,
    collectives: Cell<u64>,
}

impl Ranks {
    pub(super) fn new(
        model: &dyn Model,
        params: Rc<dyn Params>,
        tp: Option<Rc<dyn Group>>,
        virtual_tp: VirtualTp,
        (sums, tokens): (Sums, Tokens),
    ) -> Result<Self> {
        let (index, size) = tp.as_ref().map_or((0, 1), |group| (group.index(), group.size()));
        if virtual_tp != VirtualTp::of(index, size, virtual_tp.total)? {
            return Err(Error::internal(format!("{virtual_tp:?} on tensor-parallel rank {index} of {size}")));
        }
        let names = model.params().iter().map(|spec| (spec.fqn.to_string(), spec.shape.clone())).collect();
        let alone = size == 1 && virtual_tp.total == 1;
        let products = Products::chosen(params.precision(), sums, alone);
        Ok(Self { params, tp, virtual_tp, sums, tokens, products, names, collectives: Cell::new(0) })
    }

    /// The weights.
    pub(super) fn params(&self) -> &Rc<dyn Params> {
        &self.params
    }

    /// The virtual ranks that are played here.
    pub(super) const fn virtual_tp(&self) -> VirtualTp {
        self.virtual_tp
    }

    /// How tokens lie between the regions of tensor parallelism.
    pub(super) const fn tokens(&self) -> Tokens {
        self.tokens
    }

    /// Name of a parameter, for messages.
    pub(super) fn name(&self, param: Param) -> &str {
        self.names.get(param.index).map_or("?", |(name, _)| name)
    }

    /// Where the rows of virtual rank `first + at` begin, for a parameter that is cut along its first dimension into
    /// `ceil` chunks.
    pub(super) fn first_row(&self, param: Param, at: usize) -> Result<i64> {
        let (total, ranks) = (self.entries(param)?, self.virtual_tp.total);
        let (rank, ranks) = (i64::try_from(self.virtual_tp.first + at), i64::try_from(ranks));
        let (Ok(rank), Ok(ranks)) = (rank, ranks) else {
            return Err(Error::internal("too many virtual ranks"));
        };
        Ok(total.min(rank * ((total + ranks - 1) / ranks)))
    }

    /// Rows of the whole parameter.
    pub(super) fn entries(&self, param: Param) -> Result<i64> {
        let rows = self.names.get(param.index).and_then(|(_, shape)| shape.first().copied());
        rows.ok_or_else(|| Error::internal(format!("no rows in {}", self.name(param))))
    }

    /// What products are computed on.
    pub(super) fn precision(&self) -> Precision {
        self.params.precision()
    }

    /// How they are computed.
    pub(super) const fn products(&self) -> Products {
        self.products
    }

    /// The weight in f32, in as many pieces as its cut says.
    pub(super) fn weight(&self, param: Param, pieces: usize) -> Result<Vec<Tensor>> {
        self.stored_weight(param, pieces)?.iter().map(wide).collect()
    }

    /// The weight as it is stored while it is gathered.
    pub(super) fn stored_weight(&self, param: Param, pieces: usize) -> Result<Vec<Tensor>> {
        let found = self.params.weight(param).map_err(|error| error.at(self.name(param)))?;
        if found.len() != pieces {
            let (name, got) = (self.name(param), found.len());
            return Err(Error::internal(format!("{name} comes in {got} pieces where {pieces} are played")));
        }
        Ok(found)
    }

    /// The weight of a parameter that is not cut.
    pub(super) fn whole_weight(&self, param: Param) -> Result<Tensor> {
        let mut pieces = self.weight(param, 1)?;
        pieces.pop().ok_or_else(|| Error::internal("no weight"))
    }

    /// Sums what the virtual ranks played here gave, with what those of the other ranks did.
    pub(super) fn sum(&self, partials: Vec<Tensor>, what: &str) -> Result<Tensor> {
        let mine = exact::sum(partials)?;
        let Some(group) = self.group() else { return Ok(mine) };
        match self.sums {
            Sums::Fast => group.all_reduce(&self.purpose(what), mine),
            Sums::Exact => exact::sum(self.gather(&mine.contiguous(), what)?),
        }
    }

    /// Everyone's tensor, of one shape; this rank's alone without a group.
    pub(super) fn gather(&self, mine: &Tensor, what: &str) -> Result<Vec<Tensor>> {
        let Some(group) = self.group() else { return Ok(vec![mine.shallow_clone()]) };
        group.all_gather(&self.purpose(what), mine, &vec![mine.size(); group.size()])
    }

    /// The pieces of all ranks side by side.
    pub(super) fn side_by_side(&self, pieces: &[Tensor]) -> Result<Tensor> {
        let mine = Tensor::f_cat(pieces, 1)?.contiguous();
        let Some(group) = self.group() else { return Ok(mine) };
        let size = mine.size();
        let widths = self.gather(&Tensor::from_slice(&size), "shape")?;
        let shapes = widths.iter().map(|it| Ok(Vec::<i64>::try_from(it)?)).collect::<Result<Vec<_>>>()?;
        Ok(Tensor::f_cat(&group.all_gather(&self.purpose("assemble"), &mine, &shapes)?, 1)?)
    }

    /// This rank's place in the group.
    pub(super) fn index(&self) -> usize {
        self.group().map_or(0, |group| group.index())
    }

    /// The real ranks, if there are several.
    pub(super) fn group(&self) -> Option<&Rc<dyn Group>> {
        self.tp.as_ref().filter(|group| group.size() > 1)
    }

    /// Numbered, so that ranks which are at different places find out.
    pub(super) fn purpose(&self, what: &str) -> Purpose {
        let number = self.collectives.get();
        self.collectives.set(number + 1);
        Purpose(format!("tp {what} #{number}"))
    }
}
