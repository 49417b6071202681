//! [`Trained`]: the model of a checkpoint, its weights whole in memory.

use std::{fmt, rc::Rc, sync::Arc};

use dcp::{
    formats::native::Revision,
    load::{BoxReader, Loader},
    store::Root,
};
use fqn::{Dtype, Registry, Role, Shape, TensorId};
use reshard::Region;
use tch::{Kind, Tensor};

use crate::{
    Error, ErrorKind, Place, Result,
    checkpoint::CONFIG,
    config::{Config, Mode},
    exact::{Sums, VirtualTp},
    model::{Batch, Family, Model, Ops, Output, ParamSpec},
    parallel::{Params, Pass, Runtime, Tokens, TpOps, Whole},
    placement,
};

/// The model of a checkpoint.
pub struct Trained {
    model: Arc<dyn Model>,
    params: Rc<Whole>,
    ops: TpOps,
    step: u64,
    longest: usize,
}

impl Trained {
    /// Reads the checkpoint of `root` that `revision` means.
    ///
    /// # Errors
    /// `NotFound` for a checkpoint that is not there, `Incompatible` for one that this trainer did not write or that holds
    /// no such model, `Corrupt` where its bytes are damaged; the store's.
    pub fn open(root: &Root, revision: &Revision) -> Result<Self> {
        let loader = Loader::open(root, revision)?;
        let config = config(&loader).place(root.display_name())?;
        let family: Family = config.model.kind.parse()?;
        let model = family.build(config.model.keys.clone())?;
        let registry = placement::registry(family, &*model)?;
        let (virtual_tp, sums) = geometry(&config)?;
        // Of one process, and without a way back, cut tokens would be the same computation.
        let how = (sums, Tokens::Whole);
        placement::check_tp(family, &*model, &registry, virtual_tp.total)?;
        let weights = weights(&loader, &*model).place(root.display_name())?;
        let params = Rc::new(Whole::new(&*model, &weights, &placement::cuts(&registry)?, virtual_tp)?);
        let ops = TpOps::new(&*model, Rc::clone(&params) as Rc<dyn Params>, None, virtual_tp, how)?;
        Ok(Self { step: loader.commit()?.step, longest: longest(&config)?, model, params, ops })
    }

    /// Steps that it was trained.
    #[must_use]
    pub const fn step(&self) -> u64 {
        self.step
    }

    /// Tokens of the longest text that it can read.
    #[must_use]
    pub const fn longest(&self) -> usize {
        self.longest
    }

    /// What it expects behind each token of a text: `[tokens, vocabulary]`.
    ///
    /// # Errors
    /// `Config` for an empty text or one that is too long, `Data` for an id that the vocabulary lacks.
    pub fn logits(&self, ids: &[i64]) -> Result<Tensor> {
        self.check(ids.len())?;
        tch::no_grad(|| self.forward(ids))
    }

    pub(super) fn check(&self, tokens: usize) -> Result<()> {
        if tokens == 0 {
            return Err(Error::config("a text without tokens has no continuation").hint("give a prompt"));
        }
        if tokens > self.longest {
            let said = format!("{tokens} tokens, where the model reads at most {}", self.longest);
            return Err(Error::config(said)
                .hint("shorten the prompt, ask for fewer tokens, or train with a larger model.max_length"));
        }
        Ok(())
    }

    fn forward(&self, ids: &[i64]) -> Result<Tensor> {
        let length = i64::try_from(ids.len()).map_err(|_| Error::config("a text larger than memory"))?;
        let tokens = Some(Tensor::f_from_slice(ids)?.f_reshape([1, length])?);
        let batch = Batch { rows: 1, length, tokens, targets: None };
        let mut carry = Vec::new();
        for part in 0..self.model.parts().len() {
            self.params.begin(part, Pass::Forward)?;
            let output = self.model.forward(part, self.ops.ops(0), &batch, &carry)?;
            self.params.end(part, Pass::Forward)?;
            match output {
                Output::Carry(next) => carry = next,
                Output::Logits(logits) => return self.ops.assemble(&logits),
            }
        }
        Err(Error::internal("a model without a head"))
    }
}

impl fmt::Debug for Trained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trained").field("step", &self.step).field("ops", &self.ops).finish_non_exhaustive()
    }
}

fn config(loader: &Loader) -> Result<Config> {
    let refused = |why: String| {
        Error::new(ErrorKind::Incompatible, why)
            .hint("only checkpoints that this trainer wrote say which model they are of")
    };
    let stored = loader.catalog().extra.get(CONFIG);
    let stored = stored.ok_or_else(|| refused(format!("the checkpoint has no {CONFIG}")))?;
    serde_json::from_value(stored.clone()).map_err(|error| refused(format!("{CONFIG}: {error}")))
}

/// The virtual mesh, so that products have the shapes that they had in training.
fn geometry(config: &Config) -> Result<(VirtualTp, Sums)> {
    let (total, sums) = match config.training.mode {
        Mode::Exact => (config.exact.virtual_tp.max(1), Sums::Exact),
        Mode::Fast => (1, Sums::Fast),
    };
    let total = usize::try_from(total).map_err(|_| Error::config("exact.virtual_tp is too large"))?;
    Ok((VirtualTp::of(0, 1, total)?, sums))
}

fn longest(config: &Config) -> Result<usize> {
    let stated = config.model.keys.get("max_length").and_then(toml::Value::as_integer);
    stated
        .and_then(|length| usize::try_from(length).ok())
        .ok_or_else(|| Error::new(ErrorKind::Incompatible, format!("{CONFIG} has no model.max_length")))
}

fn weights(loader: &Loader, model: &dyn Model) -> Result<Vec<Tensor>> {
    let reader = loader.reader();
    let registry = &loader.catalog().registry;
    model.params().iter().map(|spec| weight(&reader, registry, spec)).collect()
}

fn weight(reader: &BoxReader<'_>, registry: &Registry, spec: &ParamSpec) -> Result<Tensor> {
    let id = TensorId { fqn: spec.fqn.clone(), role: Role::Param };
    let shape = spec.shape.iter().map(|extent| u64::try_from(*extent).unwrap_or(0)).collect::<Vec<_>>();
    let shape = Shape::new(&shape);
    let stored = registry.position(&id).and_then(|at| registry.entries().get(at));
    if let Some(entry) = stored.filter(|entry| entry.dtype != Dtype::F32 || entry.shape != shape) {
        let said = format!("{id} is {} {} there, f32 {shape} in the model", entry.dtype, entry.shape);
        return Err(Error::new(ErrorKind::Incompatible, said));
    }
    let region = Region::whole(&shape).map_err(|error| Error::internal(format!("{id}: {error}")))?;
    let bytes = reader.read_vec(&id, &region)?;
    Ok(Tensor::f_from_data_size(&bytes, &spec.shape, Kind::Float)?)
}
