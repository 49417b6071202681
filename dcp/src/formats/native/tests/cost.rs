//! What a plan says it costs is what a copy by it reads and writes, byte by byte.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use fqn::Dtype;
use proptest::prelude::*;
use reshard::{Mesh, strategies};
use safetensors::SafeTensors;

use super::{
    super::{NativeSource, open_in},
    sink,
};
use crate::{
    Cancel, Catalog, ErrorKind, FileId, Finding, Format, Result, Silent, Source,
    digest::BlockTable,
    engine::{RunOptions, run},
    formats::OpenOptions,
    ops::prepare::{Request, prepare},
    save::{
        SavePlan,
        tests::{models, save, spec},
    },
    store::{Root, Stores},
};

/// A checkpoint that counts the bytes that are read of its blobs.
#[derive(Debug)]
struct Counting {
    inner: NativeSource,
    bytes: AtomicU64,
}

impl Source for Counting {
    fn catalog(&self) -> &Catalog {
        self.inner.catalog()
    }

    fn read_exact_at(&self, file: FileId, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.inner.read_exact_at(file, offset, buf)
    }

    fn blocks(&self, file: FileId) -> Result<Option<Arc<BlockTable>>> {
        self.inner.blocks(file)
    }

    fn audit(&self) -> Result<Vec<Finding>> {
        self.inner.audit()
    }
}

/// Bytes of tensors in all blobs of a root.
fn bytes_of_tensors(root: &Root) -> u64 {
    let blobs = root.list(None).unwrap().into_iter().filter(|it| it.path.as_ref().ends_with(".safetensors"));
    let of = |blob: crate::store::ObjectInfo| {
        let bytes = root.get(&blob.path).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        tensors.tensors().iter().map(|(_, tensor)| tensor.data().len() as u64).sum::<u64>()
    };
    blobs.map(of).sum()
}

/// A mesh of at most 64 ranks.
fn few_ranks() -> impl Strategy<Value = Mesh> {
    strategies::mesh().prop_filter("few ranks", |mesh| mesh.ranks() <= 64)
}

proptest! {
    #![proptest_config(strategies::config())]

    #[test]
    fn what_a_plan_costs_is_what_a_store_is_asked_for(
        (mesh, wholes) in models(), other in few_ranks(), cast in prop::sample::select(vec![None, Some(Dtype::BF16)]),
    ) {
        let Ok(plan) = SavePlan::new(spec(&wholes, &mesh.to_string(), 3)) else { return Ok(()) };
        let (stores, target) = (Stores::new(), Stores::new());
        save(&Root::create("memory://run", &stores).unwrap(), &wholes, &plan);
        let inner = open_in(&stores, "memory://run", None, OpenOptions::new()).unwrap();
        let source = Counting { inner, bytes: AtomicU64::new(0) };
        let request = Request { to: Some(other), cast, ..Request::new(Format::Native) };
        // Rules may name two axes that this mesh maps to one.
        let Ok(prepared) = prepare(source.catalog(), &request) else { return Ok(()) };
        let root = Root::create("memory://run", &target).unwrap();
        let options = RunOptions::default();
        let ran = run(&source, &mut sink(&root), &prepared.copy, &options, &Silent, &Cancel::new());
        match ran {
            // Not every dtype is cast to every other.
            Err(error) if cast.is_some() && error.kind() == ErrorKind::Incompatible => return Ok(()),
            ran => drop(ran.unwrap()),
        }
        let cost = prepared.plan.cost;
        let all: u64 = wholes.iter().map(|whole| whole.bytes.len() as u64).sum();
        let written = prepared.copy.spec.tensors.iter().map(|tensor| tensor.entry.bytes().unwrap()).sum::<u64>();
        prop_assert!(cast.is_some() || written == all);
        prop_assert_eq!((cost.bytes_read, cost.bytes_written), (all, written));
        prop_assert_eq!(source.bytes.into_inner(), cost.bytes_read);
        prop_assert_eq!(bytes_of_tensors(&root), cost.bytes_written);
        prop_assert!((cost.read_amplification - 1.0).abs() < 1e-9 || all == 0, "{}", cost.read_amplification);
    }
}
