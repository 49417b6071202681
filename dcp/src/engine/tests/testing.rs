//! A source and a sink in memory, for tests: any chunking, any strides, every read and write counted.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use fqn::{Dtype, Entry, Fqn, Role, Shape};
use reshard::Region;

use super::super::{CopyPlan, SourceRef};
use crate::{
    Catalog, Chunk, Chunks, Committed, CrcRecord, Error, FileDone, FileEntry, FileId, Finding, Format,
    Location, Needs, Piece, Result, Sink, Source, TargetChunk, TargetFile, TargetLayout, TargetSpec,
    TargetTensor, Written,
    codec::Codecs,
    digest::{BlockLayout, BlockTable, Crc32, table_of},
    store::{self, BlobWriter},
};

/// A tensor with its values.
#[derive(Debug, Clone)]
pub(crate) struct Whole {
    pub(crate) entry: Entry,
    pub(crate) bytes: Vec<u8>,
}

impl Whole {
    /// Bytes that differ from element to element and from tensor to tensor.
    pub(crate) fn new(name: &str, dtype: Dtype, shape: &[u64]) -> Self {
        let entry = Entry::new(Fqn::new(name).unwrap(), Role::Param, dtype, Shape::new(shape));
        let len = usize::try_from(entry.bytes().unwrap()).unwrap();
        let mut state = name.bytes().fold(1_u64, |state, byte| state.wrapping_mul(31) + u64::from(byte));
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            bytes.extend_from_slice(&(state ^ (state >> 29)).to_le_bytes());
        }
        bytes.truncate(len);
        Self { entry, bytes }
    }

    /// The same with numbers (parts of complex ones) whose highest byte has few values, as that of weights.
    pub(crate) fn smooth(mut self) -> Self {
        let numbers = if self.entry.dtype.name().starts_with('c') { 2 } else { 1 };
        let width = usize::try_from(self.entry.dtype.element_bytes().unwrap()).unwrap() / numbers;
        self.bytes.iter_mut().skip(width - 1).step_by(width).for_each(|byte| *byte &= 3);
        self
    }

    /// What a naive copy of a region gives.
    pub(crate) fn region(&self, region: &Region) -> Vec<u8> {
        let width = usize::try_from(self.entry.dtype.element_bytes().unwrap()).unwrap();
        let mut out = Vec::new();
        for run in reshard::flat::runs(region, &self.entry.shape).unwrap() {
            let (start, len) = (usize::try_from(run.start).unwrap(), usize::try_from(run.len).unwrap());
            out.extend_from_slice(&self.bytes[start * width..(start + len) * width]);
        }
        out
    }
}

/// How the bytes of a chunk are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    Packed,
    /// Dimensions in the opposite order.
    Transposed,
    /// Every row followed by unused bytes.
    Gaps,
}

/// What proves the bytes of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proof {
    Nothing,
    Blocks,
    Records,
}

/// A checkpoint in memory.
#[derive(Debug)]
pub(crate) struct MemSource {
    pub(crate) catalog: Catalog,
    pub(crate) files: Vec<Vec<u8>>,
    pub(crate) tables: Vec<Option<Arc<BlockTable>>>,
    /// How often each byte was read.
    pub(crate) seen: Mutex<Vec<Vec<u16>>>,
}

impl MemSource {
    /// Tensors, each cut into these regions, chunk `n` of a tensor in file `n % files`.
    pub(crate) fn new(tensors: &[(Whole, Vec<Region>, Stored)], files: usize, proof: Proof) -> Self {
        let mut catalog = Catalog::new(Format::Native);
        let mut data = vec![vec![0xee_u8; 24]; files];
        let mut edges = vec![vec![24_u64]; files];
        for (whole, regions, stored) in tensors {
            let mut chunks = Chunks::default();
            for (at, region) in regions.iter().enumerate() {
                let file = at % files;
                let (bytes, strides) = store_as(whole, region, *stored);
                let offset = data[file].len() as u64;
                let record = (proof == Proof::Records).then(|| CrcRecord {
                    offset,
                    len: bytes.len() as u64,
                    crc32: Crc32::of(&bytes).value(),
                });
                data[file].extend_from_slice(&bytes);
                edges[file].push(data[file].len() as u64);
                let file = FileId(u32::try_from(file).unwrap());
                chunks.chunks.push(Chunk { region: region.clone(), file, offset, strides, record });
            }
            let mut sum = crate::fingerprint::FingerprintSum::default();
            let entry = &whole.entry;
            sum.add_region(entry.dtype, &entry.shape, &Region::whole(&entry.shape).unwrap(), &whole.bytes)
                .unwrap();
            chunks.fingerprint = Some(sum.finish(entry.dtype, &entry.shape));
            catalog.push(whole.entry.clone(), chunks).unwrap();
        }
        for (at, bytes) in data.iter().enumerate() {
            let size = bytes.len() as u64;
            catalog.files.push(FileEntry {
                path: format!("blob-{at}"),
                location: Location::InStep,
                size,
                logical: None,
                blocks: None,
            });
        }
        catalog.check().unwrap();
        let table = |bytes: &Vec<u8>, edges: &Vec<u64>| {
            let layout = BlockLayout::new(bytes.len() as u64, edges.iter().copied()).unwrap();
            (proof == Proof::Blocks).then(|| Arc::new(table_of(bytes, layout, 1).unwrap()))
        };
        let tables = data.iter().zip(&edges).map(|(bytes, edges)| table(bytes, edges)).collect();
        let seen = Mutex::new(data.iter().map(|bytes| vec![0; bytes.len()]).collect());
        Self { catalog, files: data, tables, seen }
    }

    /// The largest number of times that any byte was read.
    pub(crate) fn most_reads(&self) -> u16 {
        self.seen.lock().unwrap().iter().flatten().copied().max().unwrap_or(0)
    }
}

fn store_as(whole: &Whole, region: &Region, stored: Stored) -> (Vec<u8>, Option<fqn::Dims>) {
    let packed = whole.region(region);
    let width = usize::try_from(whole.entry.dtype.element_bytes().unwrap()).unwrap();
    let extents: Vec<u64> = region.extents().to_vec();
    let strides: Vec<u64> = match stored {
        Stored::Packed => return (packed, None),
        Stored::Transposed => {
            let mut step = 1;
            extents
                .iter()
                .map(|extent| {
                    let now = step;
                    step *= extent.max(&1);
                    now
                })
                .collect()
        }
        Stored::Gaps => {
            let mut step = 1;
            let mut strides: Vec<u64> = Vec::new();
            for extent in extents.iter().rev() {
                strides.insert(0, step);
                step = step * extent.max(&1) + 3;
            }
            strides
        }
    };
    let span: u64 = strides.iter().zip(&extents).map(|(step, extent)| step * extent.saturating_sub(1)).sum();
    let mut bytes =
        vec![0xdd; if region.is_empty() { 0 } else { usize::try_from(span + 1).unwrap() * width }];
    for (at, element) in packed.chunks(width).enumerate() {
        let (mut rest, mut place) = (at as u64, 0);
        for (step, extent) in strides.iter().zip(&extents).rev() {
            place += rest % extent * step;
            rest /= extent;
        }
        let place = usize::try_from(place).unwrap() * width;
        bytes[place..place + width].copy_from_slice(element);
    }
    (bytes, Some(fqn::Dims::from_vec(strides)))
}

impl Source for MemSource {
    fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn read_exact_at(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<()> {
        let (file, start) = (file.0 as usize, usize::try_from(offset).unwrap());
        let bytes = self.files[file].get(start..start + buf.len());
        buf.copy_from_slice(bytes.ok_or_else(|| Error::corrupt(format!("blob-{file} ends early")))?);
        for seen in &mut self.seen.lock().unwrap()[file][start..start + buf.len()] {
            *seen += 1;
        }
        Ok(())
    }

    fn blocks(&self, file: FileId) -> Result<Option<Arc<BlockTable>>> {
        Ok(self.tables[file.0 as usize].clone())
    }

    fn audit(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }
}

/// What a sink wrote; shared with its blobs, and by the sinks of several runs of one plan.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    pub(crate) files: Mutex<BTreeMap<String, Vec<u8>>>,
    pub(crate) done: Mutex<Vec<FileDone>>,
    pub(crate) committed: Mutex<Option<Written>>,
    pub(crate) opened: Mutex<Vec<String>>,
}

/// A target in memory: one file for each rank that the spec names, with a head, and a tail that holds the chunks' CRCs.
#[derive(Debug, Default)]
pub(crate) struct MemSink {
    pub(crate) shelf: Arc<Shelf>,
    pub(crate) needs: Needs,
    pub(crate) layout: TargetLayout,
    /// The files of one of several workers.
    pub(crate) mine: Option<Range<usize>>,
}

const HEAD: &[u8] = b"head of a file";

impl MemSink {
    pub(crate) fn new(needs: Needs, shelf: &Arc<Shelf>) -> Self {
        Self { shelf: Arc::clone(shelf), needs, layout: TargetLayout::default(), mine: None }
    }

    /// The bytes of a region as they were written.
    pub(crate) fn chunk(&self, at: usize, spec: &TargetSpec) -> Vec<u8> {
        let chunk = &self.layout.chunks[at];
        let files = self.shelf.files.lock().unwrap();
        let bytes = &files[&self.layout.files[chunk.file].path];
        let len = spec.tensors[chunk.tensor].entry.dtype.bytes_for(chunk.region.elements()).unwrap();
        let start = usize::try_from(chunk.offset).unwrap();
        bytes[start..start + usize::try_from(len).unwrap()].to_vec()
    }
}

impl Sink for MemSink {
    fn needs(&self) -> Needs {
        self.needs
    }

    fn layout(&mut self, spec: &TargetSpec) -> Result<TargetLayout> {
        let mut by_file: BTreeMap<u32, Vec<(usize, Region)>> = BTreeMap::new();
        for (tensor, target) in spec.tensors.iter().enumerate() {
            for (region, rank) in &target.regions {
                by_file.entry(*rank).or_default().push((tensor, region.clone()));
            }
        }
        let mut layout = TargetLayout::default();
        for (file, (rank, chunks)) in by_file.into_iter().enumerate() {
            let mut offset = HEAD.len() as u64;
            let count = chunks.len() as u64;
            for (tensor, region) in chunks {
                let bytes = spec.tensors[tensor].entry.dtype.bytes_for(region.elements()).unwrap();
                layout.chunks.push(TargetChunk { tensor, region, file, offset });
                offset += bytes;
            }
            let size = offset + if self.needs.crc32 { 4 * count } else { 0 };
            let head = vec![Piece { offset: 0, bytes: Bytes::from_static(HEAD) }];
            layout.files.push(TargetFile { path: format!("rank-{rank}"), size, head });
        }
        self.layout = layout.clone();
        Ok(layout)
    }

    fn finished(&self) -> Result<Vec<FileDone>> {
        Ok(self.shelf.done.lock().unwrap().clone())
    }

    fn mine(&self, layout: &TargetLayout) -> Range<usize> {
        self.mine.clone().unwrap_or(0..layout.files.len())
    }

    fn blob(&self, file: usize) -> Result<Box<dyn BlobWriter>> {
        let TargetFile { path, size, .. } = self.layout.files[file].clone();
        self.shelf.opened.lock().unwrap().push(path.clone());
        let bytes = Mutex::new(vec![None; usize::try_from(size).unwrap()]);
        Ok(Box::new(MemBlob { path, bytes, shelf: Arc::clone(&self.shelf) }))
    }

    fn tail(&self, file: usize, crc32: &[u32]) -> Result<Vec<Piece>> {
        if !self.needs.crc32 {
            return Ok(Vec::new());
        }
        let bytes: Vec<u8> = crc32.iter().flat_map(|crc| crc.to_le_bytes()).collect();
        let offset = self.layout.files[file].size - bytes.len() as u64;
        Ok(vec![Piece { offset, bytes: bytes.into() }])
    }

    fn file_done(&self, done: &FileDone) -> Result<()> {
        self.shelf.done.lock().unwrap().push(done.clone());
        Ok(())
    }

    fn commit(&mut self, written: &Written) -> Result<Committed> {
        *self.shelf.committed.lock().unwrap() = Some(written.clone());
        let bytes = self.layout.files.iter().map(|file| file.size).sum();
        Ok(Committed { target: "memory".to_owned(), sequence: None, bytes, files: self.layout.files.len() })
    }
}

#[derive(Debug)]
struct MemBlob {
    path: String,
    bytes: Mutex<Vec<Option<u8>>>,
    shelf: Arc<Shelf>,
}

impl BlobWriter for MemBlob {
    fn write_at(&self, offset: u64, data: &[u8]) -> store::Result<()> {
        let start = usize::try_from(offset).unwrap();
        for (slot, byte) in self.bytes.lock().unwrap()[start..start + data.len()].iter_mut().zip(data) {
            assert_eq!(slot.replace(*byte), None, "{}: a byte was written twice", self.path);
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> store::Result<()> {
        let bytes = self.bytes.into_inner().unwrap();
        let whole: Option<Vec<u8>> = bytes.into_iter().collect();
        let whole = whole.expect("bytes are missing");
        assert!(self.shelf.files.lock().unwrap().insert(self.path, whole).is_none());
        Ok(())
    }

    fn finish_at(self: Box<Self>, size: u64) -> store::Result<()> {
        self.bytes.lock().unwrap().truncate(usize::try_from(size).unwrap());
        self.finish()
    }

    fn abort(self: Box<Self>) {}
}

/// A plan that keeps every tensor of the source, cut into these regions, each for the rank that comes with it.
pub(crate) fn plan(source: &MemSource, regions: Vec<Vec<(Region, u32)>>) -> CopyPlan {
    plan_of(&source.catalog, regions)
}

/// The same of any catalog.
pub(crate) fn plan_of(catalog: &Catalog, regions: Vec<Vec<(Region, u32)>>) -> CopyPlan {
    let entries = catalog.registry.entries().iter();
    let tensors = entries.zip(regions).map(|(entry, regions)| TargetTensor { entry: entry.clone(), regions });
    let tensors: Vec<TargetTensor> = tensors.collect();
    let sources = (0..tensors.len()).map(SourceRef::plain).collect();
    let spec = TargetSpec {
        tensors,
        objects: Vec::new(),
        step: None,
        mesh: None,
        split: None,
        plan_digest: "0".repeat(64),
        extra: serde_json::Map::new(),
        codecs: Codecs::NONE,
    };
    CopyPlan { spec, sources }
}

/// Cuts a shape along every dimension into at most `parts[dim]` pieces.
pub(crate) fn grid(shape: &[u64], parts: &[u64]) -> Vec<Region> {
    let mut regions = vec![(Vec::new(), Vec::new())];
    for (extent, parts) in shape.iter().zip(parts) {
        let step = extent.div_ceil(*parts).max(1);
        let cuts: Vec<(u64, u64)> =
            (0..extent.div_ceil(step).max(1)).map(|at| (at * step, step.min(extent - at * step))).collect();
        regions = regions
            .into_iter()
            .flat_map(|(offsets, extents)| {
                cuts.iter().map(move |(offset, extent)| {
                    let (mut offsets, mut extents): (Vec<u64>, Vec<u64>) = (offsets.clone(), extents.clone());
                    offsets.push(*offset);
                    extents.push(*extent);
                    (offsets, extents)
                })
            })
            .collect();
    }
    regions.iter().map(|(offsets, extents)| Region::new(offsets, extents).unwrap()).collect()
}
