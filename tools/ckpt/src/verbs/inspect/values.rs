//! `--value FQN[SLICE]`: reads just the asked-for elements and prints them.
//!
//! A slice has one part per leading dimension, comma-separated: `5` (one index), `0:10` (a range), `:` (all). Missing
//! parts mean all. `@role` after the name picks an optimizer's tensor: `layers.0.wq.weight@exp_avg[0,:]`.

use dcp::{Error, ErrorKind, Result, Source, engine};
use fqn::{Dtype, Fqn, Role, Shape, TensorId};
use reshard::Region;
use serde::Serialize;

use crate::output::Render;

/// Elements of a tensor.
#[derive(Debug, Serialize)]
pub(super) struct Values {
    tensor: String,
    dtype: &'static str,
    shape: Vec<u64>,
    region: Region,
    /// Bytes of the region.
    bytes: usize,
    /// Bytes that were read for it: whole blocks where their digests prove it.
    bytes_read: u64,
    /// Row-major over the region.
    values: Vec<serde_json::Value>,
}

/// Most elements that are printed.
const MOST: u64 = 1 << 20;

/// Reads what `text` asks for.
pub(super) fn read(source: &dyn Source, text: &str, verify: engine::Verify) -> Result<Values> {
    let (name, slice) = match text.split_once('[') {
        Some((name, rest)) => {
            (name, rest.strip_suffix(']').ok_or_else(|| bad_slice(text, "the closing ] is missing"))?)
        }
        None => (text, ""),
    };
    let id = id_of(name)?;
    let catalog = source.catalog();
    let at = catalog.registry.position(&id).ok_or_else(|| {
        Error::new(ErrorKind::NotFound, format!("no tensor {id}"))
            .hint("`ckpt inspect PATH --tensors` lists all; optimizer tensors are named FQN@exp_avg")
    })?;
    let entry = catalog.registry.entries().get(at).ok_or_else(|| Error::internal("registry position"))?;
    let region = region_of(slice, &entry.shape).map_err(|why| bad_slice(text, &why))?;
    if region.elements() > MOST {
        return Err(Error::incompatible(format!(
            "{region} of {id} has {} elements; at most {MOST} are printed",
            region.elements()
        )));
    }
    let reader = engine::RegionReader::new(source, verify);
    let mut bytes = vec![0; usize::try_from(reader.bytes(at, &region)?).unwrap_or(usize::MAX)];
    reader.read_into(at, &region, &mut bytes)?;
    let (bytes_read, _) = reader.counts();
    let values = decode(entry.dtype, &bytes)?;
    let (tensor, dtype, shape) = (id.to_string(), entry.dtype.name(), entry.shape.to_vec());
    Ok(Values { tensor, dtype, shape, region, bytes: bytes.len(), bytes_read, values })
}

fn bad_slice(text: &str, why: &str) -> Error {
    Error::incompatible(format!("{text:?} is not FQN[SLICE]: {why}"))
        .hint("for example w[0:10, 5], or w for all of it")
}

fn id_of(name: &str) -> Result<TensorId> {
    let (fqn, role) = match name.rsplit_once('@') {
        Some((fqn, role)) => (fqn, role.parse::<Role>().map_err(|e| Error::incompatible(e.to_string()))?),
        None => (name, Role::Param),
    };
    Ok(TensorId { fqn: Fqn::new(fqn).map_err(|e| Error::incompatible(e.to_string()))?, role })
}

fn region_of(slice: &str, shape: &Shape) -> Result<Region, String> {
    let parts: Vec<&str> =
        if slice.trim().is_empty() { Vec::new() } else { slice.split(',').map(str::trim).collect() };
    if parts.len() > shape.rank() {
        return Err(format!("{} parts for the {} dimensions of {shape}", parts.len(), shape.rank()));
    }
    let (mut offsets, mut extents) = (Vec::new(), Vec::new());
    for (at, &extent) in shape.iter().enumerate() {
        let (start, end) = part_of(parts.get(at).copied().unwrap_or(":"), extent)?;
        if start > end || end > extent {
            return Err(format!("{start}:{end} leaves dimension {at} of {extent}"));
        }
        offsets.push(start);
        extents.push(end - start);
    }
    Region::new(&offsets, &extents).map_err(|e| e.to_string())
}

fn part_of(part: &str, extent: u64) -> Result<(u64, u64), String> {
    let number = |text: &str, or: u64| match text.trim() {
        "" => Ok(or),
        text => text.parse::<u64>().map_err(|_| format!("{text:?} is not a number")),
    };
    match part.split_once(':') {
        Some((start, end)) => Ok((number(start, 0)?, number(end, extent)?)),
        None => {
            let at = number(part, extent)?;
            Ok((at, at.checked_add(1).ok_or("an index beyond 64 bits")?))
        }
    }
}

/// Little-endian elements as JSON: numbers where JSON has them, text for NaN, infinities and other types.
fn decode(dtype: Dtype, bytes: &[u8]) -> Result<Vec<serde_json::Value>> {
    dcp::element::decode(dtype, bytes)
        .ok_or_else(|| Error::unsupported(format!("elements of {dtype} are packed and are not printed")))
        .map(|values| values.into_iter().map(|value| value.to_json()).collect())
}

impl Render for Values {
    fn schema(&self) -> &'static str {
        "ckpt.inspect.value/1"
    }

    fn human(&self, _width: Option<usize>) -> String {
        format!(
            "{}  {}  {} of {}\n{}",
            self.tensor,
            self.dtype,
            self.region,
            Shape::new(&self.shape),
            self.plain()
        )
    }

    fn plain(&self) -> String {
        let row = self.region.extents().last().copied().unwrap_or(1).max(1);
        let row = usize::try_from(row).unwrap_or(usize::MAX);
        let text =
            |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let line = |row: &[serde_json::Value]| row.iter().map(text).collect::<Vec<_>>().join("\t") + "\n";
        self.values.chunks(row).map(line).collect()
    }

    fn quiet(&self) -> String {
        self.plain()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_picks_indices_ranges_and_everything_else() {
        let shape = Shape::new(&[100, 8]);
        assert_eq!(region_of("0:10, 5", &shape), Ok(Region::new(&[0, 5], &[10, 1]).unwrap()));
        assert_eq!(region_of("7", &shape), Ok(Region::new(&[7, 0], &[1, 8]).unwrap()));
        assert_eq!(region_of("", &shape), Ok(Region::whole(&shape).unwrap()));
        assert!(region_of("0:101", &shape).is_err());
        assert!(region_of("0,0,0", &shape).is_err());
    }
}
