//! [`Whole`]: weights that are whole in this process, for one process, for evaluation and for tests.

use std::{
    cell::{Ref, RefCell},
    collections::BTreeMap,
};

use fqn::Shape;
use reshard::Region;
use tch::Tensor;

use super::{Cut, Params, Pass};
use crate::{
    Error, ErrorKind, Result,
    exact::VirtualTp,
    init,
    model::{Model, Param, ParamSpec},
};

/// Gradients by use and microbatch.
type Gradients = BTreeMap<(Param, usize), Vec<Tensor>>;

/// Weights in memory, cut for the virtual ranks that are played here.
#[derive(Debug)]
pub struct Whole {
    pieces: Vec<Vec<Tensor>>,
    cuts: Vec<Cut>,
    gradients: RefCell<Gradients>,
}

impl Whole {
    /// Whole `weights` of `model`, in its order, to be cut so.
    ///
    /// # Errors
    /// `Incompatible` for weights that are not the model's.
    pub fn new(model: &dyn Model, weights: &[Tensor], cuts: &[Cut], tp: VirtualTp) -> Result<Self> {
        let specs = model.params();
        if weights.len() != specs.len() || cuts.len() != specs.len() {
            let (got, cuts, want) = (weights.len(), cuts.len(), specs.len());
            return Err(Error::internal(format!("{got} weights and {cuts} cuts for {want} parameters")));
        }
        let cut = |((weight, cut), spec): ((&Tensor, &Cut), &ParamSpec)| {
            if weight.size() != spec.shape {
                let (name, got, want) = (&spec.fqn, weight.size(), &spec.shape);
                return Err(Error::new(
                    ErrorKind::Incompatible,
                    format!("{name} has shape {got:?} where the model has {want:?}"),
                ));
            }
            pieces(weight, *cut, tp)
        };
        let pieces = weights.iter().zip(cuts).zip(specs).map(cut).collect::<Result<_>>()?;
        Ok(Self { pieces, cuts: cuts.to_vec(), gradients: RefCell::default() })
    }

    /// The initial weights of `model` under `seed`.
    ///
    /// # Errors
    /// As [`Whole::new`].
    pub fn initial(model: &dyn Model, seed: u64, cuts: &[Cut], tp: VirtualTp) -> Result<Self> {
        let weights = model.params().iter().map(|spec| initial(spec, seed)).collect::<Result<Vec<_>>>()?;
        Self::new(model, &weights, cuts, tp)
    }

    /// What backward gave, by use and microbatch.
    pub fn gradients(&self) -> Ref<'_, BTreeMap<(Param, usize), Vec<Tensor>>> {
        self.gradients.borrow()
    }

    /// Forgets what backward gave.
    pub fn clear_gradients(&self) {
        self.gradients.borrow_mut().clear();
    }
}

fn initial(spec: &ParamSpec, seed: u64) -> Result<Tensor> {
    let refused = || Error::internal(format!("{} has no shape {:?}", spec.fqn, spec.shape));
    let shape = spec.shape.iter().map(|extent| u64::try_from(*extent)).collect::<Result<Vec<_>, _>>();
    let region = Region::whole(&Shape::new(&shape.map_err(|_| refused())?)).map_err(|_| refused())?;
    let values = init::values(seed, &spec.fqn, spec.init, &spec.shape, &region)?;
    Ok(Tensor::from_slice(&values).f_view(spec.shape.as_slice())?)
}

/// `ceil` chunks over the virtual ranks; those that are played here, each in memory of its own.
fn pieces(weight: &Tensor, cut: Cut, tp: VirtualTp) -> Result<Vec<Tensor>> {
    let _untracked = tch::no_grad_guard();
    let Cut::Dim(dim) = cut else { return Ok(vec![weight.f_detach()?.f_contiguous()?]) };
    let extent = weight.size().get(dim).copied();
    let extent =
        extent.ok_or_else(|| Error::config(format!("a cut along dimension {dim} of {:?}", weight.size())))?;
    let (Ok(dim), Ok(total)) = (i64::try_from(dim), i64::try_from(tp.total)) else {
        return Err(Error::config("too many virtual ranks"));
    };
    let chunk = (extent + total - 1) / total;
    let piece = |rank: i64| {
        let (start, end) = ((rank * chunk).min(extent), ((rank + 1) * chunk).min(extent));
        Ok(weight.f_narrow(dim, start, end - start)?.f_detach_copy()?.f_contiguous()?)
    };
    let ranks = tp.first..tp.first + tp.count;
    ranks.map(|rank| piece(i64::try_from(rank).unwrap_or(i64::MAX))).collect()
}

impl Params for Whole {
    fn cut(&self, param: Param) -> Cut {
        self.cuts.get(param.index).copied().unwrap_or(Cut::Whole)
    }

    fn weight(&self, param: Param) -> Result<Vec<Tensor>> {
        let pieces = self.pieces.get(param.index);
        let pieces =
            pieces.ok_or_else(|| Error::internal(format!("the model has no parameter {}", param.index)))?;
        Ok(pieces.iter().map(Tensor::shallow_clone).collect())
    }

    fn gradient(&self, param: Param, microbatch: usize, pieces: Vec<Tensor>) -> Result<()> {
        if self.gradients.borrow_mut().insert((param, microbatch), pieces).is_some() {
            return Err(Error::internal(format!(
                "a second gradient of {param:?} for microbatch {microbatch}"
            )));
        }
        Ok(())
    }

    fn begin(&self, _part: usize, _pass: Pass) -> Result<()> {
        Ok(())
    }

    fn end(&self, _part: usize, _pass: Pass) -> Result<()> {
        Ok(())
    }
}
