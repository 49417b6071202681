//! What the bytes of a file are: which elements of which tensors, and which records with a CRC-32.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use fqn::Shape;
use reshard::Region;

use crate::{
    Cancel, Catalog, Chunk, CrcRecord, Error, Result,
    digest::Crc32,
    engine::{RegionReader, grid::Grid},
    fingerprint::FingerprintSum,
};

/// Chunks and records of one file.
#[derive(Debug, Default)]
pub(in crate::ops) struct FilePrints {
    /// Chunks that hold bytes, by first byte.
    spans: Vec<Span>,
    /// The furthest end among a span and all before it: where looking backwards can stop.
    reach: Vec<u64>,
    /// First and last bytes of all chunks.
    edges: Vec<u64>,
    slow: BTreeSet<usize>,
    pub(super) records: Vec<CrcRecord>,
}

#[derive(Debug)]
struct Span {
    start: u64,
    end: u64,
    tensor: usize,
    /// The box, in cells.
    region: Region,
}

/// CRC-32 of a stretch of a record.
#[derive(Debug)]
pub(super) struct Part {
    /// First byte and length of the record.
    record: (u64, u64),
    start: u64,
    crc: Crc32,
}

/// What the bytes of each file are to the tensors, and how the elements of each tensor lie.
pub(in crate::ops) fn prints_of(catalog: &Catalog) -> Result<(Vec<FilePrints>, Vec<Grid>)> {
    let grids = catalog.registry.entries().iter().map(Grid::of).collect::<Result<Vec<_>>>()?;
    let mut prints: Vec<FilePrints> = catalog.files.iter().map(|_| FilePrints::default()).collect();
    for (tensor, ((_, chunks), grid)) in catalog.iter().zip(&grids).enumerate() {
        for chunk in &chunks.chunks {
            let file = usize::try_from(chunk.file.0).ok().and_then(|at| prints.get_mut(at));
            file.ok_or_else(|| Error::internal("a chunk in no file"))?.add(tensor, grid, &chunk)?;
        }
    }
    Ok((prints, grids))
}

/// The sum of a tensor whose bytes do not come in the order of its elements: read as elements, 1 MiB at a time.
pub(in crate::ops) fn sum_of(
    reader: &RegionReader<'_>,
    tensor: usize,
    grid: &Grid,
    cancel: &Cancel,
) -> Result<FingerprintSum> {
    let whole = Region::whole(&grid.shape).map_err(|error| Error::internal(error.to_string()))?;
    let (mut sum, mut bytes) = (FingerprintSum::default(), Vec::new());
    for tile in reshard::flat::tiles(&whole, (1 << 20) / grid.width.max(1)) {
        cancel.check()?;
        bytes.resize(usize::try_from(grid.bytes_of(&tile)).unwrap_or(usize::MAX), 0);
        reader.read_into(tensor, &grid.elements(&tile), &mut bytes)?;
        let added = sum.add_region(grid.cell, &grid.shape, &tile, &bytes);
        added.map_err(|error| Error::internal(error.to_string()).caused_by(error))?;
    }
    Ok(sum)
}

impl FilePrints {
    fn add(&mut self, tensor: usize, grid: &Grid, chunk: &Chunk) -> Result<()> {
        let region = grid.region(&chunk.region)?;
        let packed = chunk.is_packed();
        let len = if packed { grid.bytes_of(&region) } else { strided(chunk, grid)? };
        let end = chunk.offset.checked_add(len).ok_or_else(|| Error::corrupt("a chunk ends beyond 2^64"))?;
        self.edges.extend([chunk.offset, end]);
        if !packed {
            self.slow.insert(tensor);
        }
        if len > 0 {
            self.spans.push(Span { start: chunk.offset, end, tensor, region });
        }
        self.records.extend(chunk.record);
        Ok(())
    }

    /// Puts everything in order; the edges of chunks, ascending.
    pub(in crate::ops) fn sort(&mut self) -> Vec<u64> {
        self.records.sort_unstable_by_key(|record| (record.offset, record.len));
        self.records.dedup();
        self.spans.sort_unstable_by_key(|span| (span.start, span.end));
        let mut reach = 0;
        for span in &self.spans {
            reach = span.end.max(reach);
            self.reach.push(reach);
        }
        self.find_crossing();
        let mut edges = std::mem::take(&mut self.edges);
        edges.sort_unstable();
        edges.dedup();
        edges
    }

    /// Of chunks that lie across each other, one may be cut within an element by the other's edge: their tensors are read by
    /// themselves. Chunks that hold the very same bytes, as tied tensors do, cut nothing.
    fn find_crossing(&mut self) {
        let mut first = 0;
        for at in 1..=self.spans.len() {
            let reach = at.checked_sub(1).and_then(|before| self.reach.get(before)).copied().unwrap_or(0);
            if self.spans.get(at).is_some_and(|span| span.start < reach) {
                continue;
            }
            let cluster = self.spans.get(first..at).unwrap_or_default();
            let same = |(a, b): (&Span, &Span)| (a.start, a.end) == (b.start, b.end);
            if !cluster.iter().zip(cluster.iter().skip(1)).all(same) {
                self.slow.extend(cluster.iter().map(|span| span.tensor));
            }
            first = at;
        }
    }

    /// Tensors that must be read by themselves.
    pub(in crate::ops) fn slow(&self) -> impl Iterator<Item = usize> + '_ {
        self.slow.iter().copied()
    }

    /// Adds what the bytes from `start` on hold of each tensor.
    pub(in crate::ops) fn sums(
        &self,
        grids: &[Grid],
        start: u64,
        bytes: &[u8],
        sums: &mut HashMap<usize, FingerprintSum>,
    ) -> Result<()> {
        let end = start + bytes.len() as u64;
        for span in self.meeting(start, end).filter(|span| !self.slow.contains(&span.tensor)) {
            let grid = grids.get(span.tensor).ok_or_else(|| Error::internal("a span of no tensor"))?;
            let (from, to) = (span.start.max(start), span.end.min(end));
            let cells = (from - span.start) / grid.width..(to - span.start) / grid.width;
            let mut rest = part(bytes, from - start, to - start);
            let sum = sums.entry(span.tensor).or_default();
            let wrong =
                |error: &dyn std::fmt::Display| Error::internal(format!("sealing {}: {error}", span.region));
            let shape = Shape::new(span.region.extents());
            for cut in reshard::flat::boxes(&shape, cells).map_err(|error| wrong(&error))? {
                let (now, later) = rest
                    .split_at_checked(usize::try_from(grid.bytes_of(&cut)).unwrap_or(usize::MAX))
                    .ok_or_else(|| wrong(&"a piece ends within an element"))?;
                rest = later;
                let offsets: fqn::Dims =
                    cut.offsets().iter().zip(span.region.offsets()).map(|(at, base)| at + base).collect();
                let cut = Region::new(&offsets, cut.extents()).map_err(|error| wrong(&error))?;
                sum.add_region(grid.cell, &grid.shape, &cut, now).map_err(|error| wrong(&error))?;
            }
            if !rest.is_empty() {
                return Err(wrong(&"a piece ends within an element"));
            }
        }
        Ok(())
    }

    /// CRC-32 of what the bytes from `start` on hold of each record.
    pub(super) fn parts<'a>(&'a self, start: u64, bytes: &'a [u8]) -> impl Iterator<Item = Part> + 'a {
        let end = start + bytes.len() as u64;
        let ends = |record: &CrcRecord| record.offset.saturating_add(record.len);
        let first = self.records.partition_point(|record| ends(record) <= start);
        let met = self.records.iter().skip(first).take_while(move |record| record.offset < end);
        met.filter(move |record| ends(record) > start).map(move |record| {
            let (from, to) = (record.offset.max(start), ends(record).min(end));
            Part {
                record: (record.offset, record.len),
                start: from,
                crc: Crc32::of(part(bytes, from - start, to - start)),
            }
        })
    }

    /// Spans that hold any of the bytes `start..end`.
    fn meeting(&self, start: u64, end: u64) -> impl Iterator<Item = &Span> {
        let first = self.reach.partition_point(|reach| *reach <= start);
        let met = self.spans.iter().skip(first).take_while(move |span| span.start < end);
        met.filter(move |span| span.end > start)
    }
}

/// CRC-32 of whole records, by first byte and length, from those of their parts.
pub(super) fn combine(mut parts: Vec<Part>) -> BTreeMap<(u64, u64), u32> {
    parts.sort_unstable_by_key(|part| (part.record, part.start));
    let mut whole: BTreeMap<(u64, u64), Crc32> = BTreeMap::new();
    for part in parts {
        whole.entry(part.record).or_default().combine(&part.crc);
    }
    whole.into_iter().map(|(record, crc)| (record, crc.value())).collect()
}

/// Bytes from a strided chunk's first element to the end of its last.
fn strided(chunk: &Chunk, grid: &Grid) -> Result<u64> {
    let strides = chunk.strides.iter().flatten();
    let mut last = 0_u64;
    for (stride, extent) in strides.zip(chunk.region.extents()) {
        let Some(steps) = extent.checked_sub(1) else { return Ok(0) };
        let reach = stride.checked_mul(steps).and_then(|reach| last.checked_add(reach));
        last = reach.ok_or_else(|| Error::corrupt("a chunk's strides reach beyond 2^64"))?;
    }
    last.checked_add(1)
        .and_then(|elements| elements.checked_mul(grid.width))
        .ok_or_else(|| Error::corrupt("a chunk's strides reach beyond 2^64"))
}

fn part(bytes: &[u8], from: u64, to: u64) -> &[u8] {
    let at = |byte: u64| usize::try_from(byte).unwrap_or(usize::MAX);
    bytes.get(at(from)..at(to)).unwrap_or_default()
}
