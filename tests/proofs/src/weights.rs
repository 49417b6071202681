//! [`Weights`]: the state of a small model at some step, known to the bit, so that whoever finds a checkpoint can tell whether it is right.
//!
//! Everything follows from a seed, the step and a scale: another process makes the same ones again.

use dcp::{
    Cancel, Severity, Silent,
    commit::Label,
    load::Loader,
    ops::verify::{VerifyOptions, verify},
    save::{SavePlan, SaveSpec, Session, WriterDone},
};
use fqn::{Dtype, Entry, Fqn, Registry, Role, Shape};
use reshard::Region;

use crate::chance::mixed;

/// A failure, in words.
pub(crate) type Outcome<T> = Result<T, String>;

/// What something says.
pub(crate) fn text<'e>(error: impl Into<Box<dyn std::error::Error + 'e>>) -> String {
    error.into().to_string()
}

/// The state of a model at some step.
#[derive(Debug, Clone)]
pub(crate) struct Weights {
    pub(crate) step: u64,
    pub(crate) registry: Registry,
    bytes: Vec<Vec<u8>>,
}

/// Name, role, dtype, shape and placement rule of a tensor.
type Tensor = (&'static str, Role, Dtype, Vec<u64>, &'static str);

impl Weights {
    /// A model whose tensors are cut over `tp` and `dp`, with moments and a scalar; `rows` says how large it is.
    pub(crate) fn new(seed: u64, step: u64, rows: u64) -> Outcome<Self> {
        let tensors: [Tensor; 5] = [
            ("embed", Role::Param, Dtype::F32, vec![13, 9], "tp:0,dp:0"),
            ("w", Role::Param, Dtype::BF16, vec![rows, 64], "tp:1,dp:0"),
            ("w", Role::ExpAvg, Dtype::F32, vec![rows, 64], "tp:0,dp:1"),
            ("w", Role::Slot("step".into()), Dtype::F32, vec![], "replicate"),
            ("bias", Role::Param, Dtype::F32, vec![33], "replicate"),
        ];
        Self::of(seed, step, &tensors)
    }

    /// The parameters alone, as a file of others has them.
    pub(crate) fn foreign(seed: u64, step: u64) -> Outcome<Self> {
        let tensors: [Tensor; 2] = [
            ("embed", Role::Param, Dtype::F32, vec![13, 9], ""),
            ("w", Role::Param, Dtype::BF16, vec![40, 64], ""),
        ];
        Self::of(seed, step, &tensors)
    }

    fn of(seed: u64, step: u64, tensors: &[Tensor]) -> Outcome<Self> {
        let (mut registry, mut all) = (Registry::new(), Vec::new());
        for (number, (name, role, dtype, shape, rule)) in (1_u64..).zip(tensors) {
            let mut entry =
                Entry::new(Fqn::new(name).map_err(text)?, role.clone(), *dtype, Shape::new(shape));
            if !rule.is_empty() {
                entry.placement = Some(rule.parse().map_err(|error| format!("{rule}: {error}"))?);
            }
            let len = usize::try_from(entry.bytes().unwrap_or(0)).map_err(text)?;
            all.push(noise(seed ^ step.rotate_left(20) ^ number.rotate_left(50), len));
            registry.push(entry).map_err(text)?;
        }
        Ok(Self { step, registry, bytes: all })
    }

    /// Saved on a mesh, as the newest of a run.
    pub(crate) fn plan(&self, run: &Label, mesh: &str, epoch: Option<u64>) -> Outcome<SavePlan> {
        let mesh = mesh.parse().map_err(|error| format!("{mesh}: {error}"))?;
        let mut spec = SaveSpec::new(run.clone(), self.registry.clone(), mesh, self.step);
        spec.epoch = epoch;
        SavePlan::new(spec).map_err(text)
    }

    /// Writes everything that a rank has to write.
    pub(crate) fn write(&self, session: &Session, rank: u32) -> Outcome<WriterDone> {
        let writer = session.writer(rank).map_err(text)?;
        for (tensor, region) in session.plan().boxes_of(rank) {
            writer.put(tensor, region, &self.region(tensor, region)?).map_err(text)?;
        }
        writer.finish().map_err(text)
    }

    /// The bytes of a box.
    fn region(&self, tensor: usize, region: &Region) -> Outcome<Vec<u8>> {
        let (entry, bytes) =
            self.registry.entries().get(tensor).zip(self.bytes.get(tensor)).ok_or("no such tensor")?;
        cut(entry, bytes, region)
    }

    /// Whether a checkpoint is whole, and holds exactly this: every block against its SHA-256, every tensor bit for bit.
    pub(crate) fn check(&self, loader: &Loader) -> Outcome<()> {
        let options = VerifyOptions { threads: std::num::NonZeroUsize::MIN, ..VerifyOptions::default() };
        let report = verify(loader.source(), &options, &Silent, &Cancel::new()).map_err(text)?;
        if let Some(finding) = report.findings.iter().find(|finding| finding.severity >= Severity::Error) {
            return Err(format!("verify: {}", serde_json::to_string(finding).map_err(text)?));
        }
        if report.checksums.unproven_bytes > 0 {
            return Err(format!("{} bytes are not proven", report.checksums.unproven_bytes));
        }
        let reader = loader.reader();
        for (entry, bytes) in self.registry.entries().iter().zip(&self.bytes) {
            let whole = Region::whole(&entry.shape).map_err(text)?;
            if reader.read_vec(&entry.id(), &whole).map_err(text)? != *bytes {
                return Err(format!("{} has other bytes than step {} had", entry.id(), self.step));
            }
        }
        if loader.catalog().tensors.len() != self.bytes.len() {
            return Err(format!(
                "{} tensors, step {} had {}",
                loader.catalog().tensors.len(),
                self.step,
                self.bytes.len()
            ));
        }
        Ok(())
    }

    /// As a safetensors file.
    pub(crate) fn safetensors(&self) -> Outcome<Vec<u8>> {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        for (entry, bytes) in self.registry.entries().iter().zip(&self.bytes) {
            let start = data.len();
            data.extend_from_slice(bytes);
            let dtype = entry.dtype.safetensors_name().ok_or("a dtype that safetensors lacks")?;
            let shape: Vec<u64> = entry.shape.iter().copied().collect();
            let place =
                serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]});
            header.insert(entry.fqn.as_str().to_owned(), place);
        }
        let mut json = serde_json::to_string(&header).map_err(text)?;
        json.extend(std::iter::repeat_n(' ', json.len().next_multiple_of(8) - json.len()));
        let mut file = (json.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(json.as_bytes());
        file.extend(data);
        Ok(file)
    }
}

/// The bytes of a box of a tensor, packed: element by element, with nothing of the code that is proven.
pub(crate) fn cut(entry: &Entry, bytes: &[u8], region: &Region) -> Outcome<Vec<u8>> {
    let width = entry.dtype.element_bytes().ok_or("elements narrower than a byte")?;
    let mut starts = vec![0_u64];
    for ((extent, offset), len) in entry.shape.iter().zip(region.offsets()).zip(region.extents()) {
        starts = starts.iter().flat_map(|at| (*offset..offset + len).map(move |n| at * extent + n)).collect();
    }
    let mut cut = Vec::with_capacity(starts.len());
    for start in starts {
        let start = usize::try_from(start * width).map_err(text)?;
        let len = usize::try_from(width).map_err(text)?;
        cut.extend_from_slice(bytes.get(start..start + len).ok_or("a box outside of its tensor")?);
    }
    Ok(cut)
}

/// Bytes without a pattern.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    let mut state = mixed(seed);
    while bytes.len() < len {
        state = mixed(state);
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
