//! [`evidence()`]: runs a job with its ranks as threads, and keeps what they computed.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use super::{Evidence, evidence::Whole};
use crate::{
    Error, Place, Result,
    run::{Job, NamedGradients, Observer, StepDone, Terms, run_threads},
    transport::Limits,
};

/// Runs `job`, all its ranks as threads of this process, and gives what they computed.
///
/// # Errors
/// Whatever ends the run; ranks whose losses or copies of a gradient differ.
pub fn evidence(job: &Job, limits: &Limits) -> Result<Evidence> {
    let found = Arc::new(Mutex::new(Found::default()));
    let shapes = job.shapes();
    let terms = Terms { stop: Arc::default(), restart: 0 };
    run_threads(job, limits, &terms, |rank| {
        Ok(Witness { rank, shapes: shapes.clone(), found: Arc::clone(&found) })
    })?;
    let Found { mut evidence, gradients } =
        std::mem::take(&mut *found.lock().unwrap_or_else(PoisonError::into_inner));
    for ((step, name), whole) in gradients {
        let values = whole.finish().place(format!("{name} in step {step}"))?;
        evidence.gradients.insert((step, name), values);
    }
    Ok(evidence)
}

#[derive(Debug, Default)]
struct Found {
    evidence: Evidence,
    gradients: BTreeMap<(u64, String), Whole>,
}

/// Sees what one rank computes.
#[derive(Debug)]
struct Witness {
    rank: usize,
    shapes: BTreeMap<String, Vec<i64>>,
    found: Arc<Mutex<Found>>,
}

impl Observer for Witness {
    fn step(&mut self, step: &StepDone) -> Result<()> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let bits = step.loss.to_bits();
        if let Some(known) = found.evidence.losses.insert(step.step, bits).filter(|known| *known != bits) {
            let known = f32::from_bits(known);
            return Err(Error::internal(format!(
                "rank {} has loss {}, others {known}",
                self.rank, step.loss
            )));
        }
        found.evidence.rows.insert((step.step, self.rank), step.row.clone());
        Ok(())
    }

    fn gradients(&mut self, step: u64, named: &dyn Fn() -> Result<NamedGradients>) -> Result<()> {
        for (name, region, tensor) in named()? {
            let values = Vec::<f32>::try_from(tensor.f_contiguous()?.f_reshape([-1])?)?;
            let shape = self.shapes.get(name.as_str());
            let shape =
                shape.ok_or_else(|| Error::internal(format!("{name} is no parameter of the model")))?;
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            let whole = found.gradients.entry((step, name.to_string())).or_insert_with(|| Whole::new(shape));
            whole.put(&region, &values).place(format!("rank {}, {name} in step {step}", self.rank))?;
        }
        Ok(())
    }
}
