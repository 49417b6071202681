//! Weights held whole, and operations whose backward are nodes that hold handles: as the real ones, without any cut.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    ops::Range,
    rc::Rc,
};

use tch::{Kind, Reduction, Tensor};

use crate::{
    Error, Result,
    model::{Linear, Lookup, Model, Norm, Ops, Param, Value},
    parallel::{Cut, Params, Pass, Runtime},
    stage::GradReduce,
    torch::node,
};

/// A gradient of one use and microbatch, as bits.
pub(super) type Grads = BTreeMap<(Param, usize), Vec<u32>>;

pub(super) fn bits(tensor: &Tensor) -> Vec<u32> {
    let flat = Vec::<f32>::try_from(tensor.reshape([-1])).unwrap();
    flat.into_iter().map(f32::to_bits).collect()
}

/// Values that depend on the parameter and the element alone.
pub(super) fn initial(model: &dyn Model) -> Vec<Tensor> {
    let value = |index: usize, at: i64| {
        let seed = i64::try_from(index).unwrap() * 7919 + at * 104_729 + 17;
        f64::from(i32::try_from(seed % 1999).unwrap()) / 1999.0 - 0.5
    };
    let tensor = |(index, spec): (usize, &crate::model::ParamSpec)| {
        let count: i64 = spec.shape.iter().product();
        let values: Vec<f64> = (0..count).map(|at| value(index, at)).collect();
        Tensor::from_slice(&values).to_kind(Kind::Float).reshape(spec.shape.as_slice())
    };
    model.params().iter().enumerate().map(tensor).collect()
}

/// Weights, which parts may use them now, and gradients.
pub(super) struct Weights {
    values: Vec<Tensor>,
    open: RefCell<BTreeMap<usize, usize>>,
    pub(super) grads: RefCell<Grads>,
    pub(super) reduced: RefCell<Vec<Range<usize>>>,
    pub(super) passes: RefCell<Vec<(usize, Pass)>>,
    pub(super) version: Cell<u64>,
}

impl Weights {
    pub(super) fn new(model: &dyn Model) -> Rc<Self> {
        Rc::new(Self {
            values: initial(model),
            open: RefCell::default(),
            grads: RefCell::default(),
            reduced: RefCell::default(),
            passes: RefCell::default(),
            version: Cell::new(0),
        })
    }
}

impl Params for Weights {
    fn version(&self) -> u64 {
        self.version.get()
    }

    fn cut(&self, _: Param) -> Cut {
        Cut::Whole
    }

    fn weight(&self, param: Param) -> Result<Vec<Tensor>> {
        if self.open.borrow().get(&param.part).is_none_or(|holders| *holders == 0) {
            return Err(Error::internal(format!("part {} has not begun", param.part)));
        }
        Ok(vec![self.values[param.index].shallow_clone()])
    }

    /// Uses of one weight twice in a part add up, as a stack of layers that share it would.
    fn gradient(&self, param: Param, microbatch: usize, pieces: Vec<Tensor>) -> Result<()> {
        let [piece] = pieces.as_slice() else { return Err(Error::internal("one piece is given")) };
        let mut grads = self.grads.borrow_mut();
        match grads.insert((param, microbatch), bits(piece)) {
            None => Ok(()),
            Some(_) => Err(Error::internal(format!("{param:?} has its gradient of {microbatch} already"))),
        }
    }

    fn begin(&self, part: usize, pass: Pass) -> Result<()> {
        *self.open.borrow_mut().entry(part).or_default() += 1;
        self.passes.borrow_mut().push((part, pass));
        Ok(())
    }

    fn end(&self, part: usize, _: Pass) -> Result<()> {
        let mut open = self.open.borrow_mut();
        let holders = open.entry(part).or_default();
        *holders = holders.checked_sub(1).ok_or_else(|| Error::internal("ended twice"))?;
        Ok(())
    }
}

impl GradReduce for Weights {
    fn reduce(&self, parts: Range<usize>) -> Result<()> {
        self.reduced.borrow_mut().push(parts);
        Ok(())
    }
}

type Queue = Rc<RefCell<Vec<(usize, Queued)>>>;

/// What a weight gradient is made of.
enum Queued {
    /// Products of x and dY, for all uses in one call: the weight's, and the bias'.
    Linear(Vec<Linear>, Tensor, Vec<Tensor>),
    Embedding(Param, Tensor, Tensor),
}

/// Operations on [`Weights`].
pub(super) struct Whole {
    weights: Rc<Weights>,
    microbatch: Cell<usize>,
    queue: Queue,
}

impl Whole {
    pub(super) fn new(weights: &Rc<Weights>) -> Self {
        Self { weights: Rc::clone(weights), microbatch: Cell::new(0), queue: Queue::default() }
    }

    pub(super) fn queued(&self) -> usize {
        self.queue.borrow().len()
    }

    fn compute(&self, microbatch: usize, queued: Queued) -> Result<()> {
        match queued {
            Queued::Embedding(table, ids, grad) => {
                let [entries, width] = self.weights.values[table.index].size()[..] else { panic!("a table") };
                let sum = Tensor::zeros([entries, width], (Kind::Float, ids.device()));
                let sum = sum.f_index_add(0, &ids, &grad)?;
                self.weights.gradient(table, microbatch, vec![sum])
            }
            Queued::Linear(layers, x, grads) => {
                let sum = grads.iter().skip(1).try_fold(grads[0].shallow_clone(), |sum, it| sum.f_add(it))?;
                if let Some(bias) = layers[0].bias {
                    let total = sum.f_sum_dim_intlist(&[0_i64][..], false, Kind::Float)?;
                    self.weights.gradient(bias, microbatch, vec![total])?;
                }
                let product = sum.f_transpose(0, 1)?.f_matmul(&x)?;
                self.weights.gradient(layers[0].weight, microbatch, vec![product])
            }
        }
    }
}

impl Runtime for Whole {
    fn ops(&self, microbatch: usize) -> &dyn Ops {
        self.microbatch.set(microbatch);
        self
    }

    fn weight_gradients(&self, parts: Range<usize>, microbatch: usize) -> Result<()> {
        let mine = |(of, queued): &mut (usize, Queued)| {
            let part = match queued {
                Queued::Linear(layers, ..) => layers[0].weight.part,
                Queued::Embedding(table, ..) => table.part,
            };
            *of == microbatch && parts.contains(&part)
        };
        let due: Vec<_> = self.queue.borrow_mut().extract_if(.., mine).collect();
        due.into_iter().try_for_each(|(microbatch, queued)| self.compute(microbatch, queued))
    }
}

impl Ops for Whole {
    fn linear(&self, x: &Value, layers: &[Linear]) -> Result<Vec<Value>> {
        let x = x.tensor()?;
        let outputs = tch::no_grad(|| -> Result<Vec<Tensor>> {
            let one = |layer: &Linear| {
                let product = x.f_matmul(&self.weights.weight(layer.weight)?[0].f_transpose(0, 1)?)?;
                let Some(bias) = layer.bias else { return Ok(product) };
                Ok(product.f_add(&self.weights.weight(bias)?[0])?)
            };
            layers.iter().map(one).collect()
        })?;
        let (weights, queue, layers) = (Rc::clone(&self.weights), Rc::clone(&self.queue), layers.to_vec());
        let (saved, microbatch) = (x.detach(), self.microbatch.get());
        let backward: node::Backward = Box::new(move |grads| {
            let grads: Vec<Tensor> = grads.into_iter().map(|grad| grad.expect("used")).collect();
            let mut sum: Option<Tensor> = None;
            for (layer, grad) in layers.iter().zip(&grads) {
                let product = grad.f_matmul(&weights.weight(layer.weight)?[0])?;
                sum = Some(match sum {
                    Some(sum) => sum.f_add(&product)?,
                    None => product,
                });
            }
            queue.borrow_mut().push((microbatch, Queued::Linear(layers, saved, grads)));
            Ok(vec![sum])
        });
        node::attach(&outputs.iter().collect::<Vec<_>>(), &[x], backward)?;
        Ok(outputs.into_iter().map(Value::whole).collect())
    }

    fn embed(&self, lookups: &[Lookup<'_>]) -> Result<Value> {
        let [Lookup { ids, table }] = *lookups else { return Err(Error::internal("one table")) };
        let rows = tch::no_grad(|| -> Result<Tensor> {
            Ok(self.weights.weight(table)?[0].f_index_select(0, ids)?)
        })?;
        let (queue, microbatch, ids) = (Rc::clone(&self.queue), self.microbatch.get(), ids.shallow_clone());
        let backward: node::Backward = Box::new(move |mut grads| {
            let grad = grads.remove(0).expect("used");
            queue.borrow_mut().push((microbatch, Queued::Embedding(table, ids, grad)));
            Ok(Vec::new())
        });
        node::attach(&[&rows], &[], backward)?;
        Ok(Value::whole(rows))
    }

    fn norm(&self, _: &Value, _: Norm, _: Param, _: Option<Param>) -> Result<Value> {
        Err(Error::internal("the tiny model has no norm"))
    }

    fn loss(&self, logits: &Value, targets: &Tensor) -> Result<Tensor> {
        let logits = logits.tensor()?;
        Ok(logits.f_cross_entropy_loss(targets, None::<Tensor>, Reduction::Sum, -100, 0.0)?)
    }

    fn assemble(&self, value: &Value) -> Result<Tensor> {
        Ok(value.tensor()?.shallow_clone())
    }
}
