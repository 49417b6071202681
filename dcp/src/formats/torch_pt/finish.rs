//! From merged slots to the catalog: names, ties, values of all ranks, and what is said of the whole.

use std::collections::HashMap;

use fqn::{
    state_dict::{Kind, classify},
    tie::{TieEvidence, tie},
};
use serde_json::Map;

use super::{
    ALIAS,
    containers::{self, Container},
    merge::{Assembled, Merging, PtPlace, Saved, Slot, Together},
    shard,
};
use crate::{
    Chunks, Encoding, Error, Finding, FindingCode, ObjectEntry, PathPart, ReshardRule, Result, Severity,
    formats::torch_dcp, torch::DTensorSpec,
};

impl Merging {
    /// Puts the catalog together.
    ///
    /// # Errors
    /// `Corrupt` for keys that can't name tensors, and for what breaks a catalog's invariants.
    pub(super) fn finish(mut self) -> Result<Assembled> {
        let corrupt =
            |error: fqn::state_dict::ClassifyError| Error::corrupt(error.to_string()).caused_by(error);
        let classified = classify(&self.leaves, &self.groups).map_err(corrupt)?;
        for note in &classified.notes {
            self.findings.push(Finding::new(Severity::Note, FindingCode::Other, note.to_string()));
        }
        let registry = classified.registry(&self.leaves, ALIAS).map_err(corrupt)?;
        let mut entries = registry.entries().iter().cloned();
        let (mut parameters, mut names) = (Map::new(), HashMap::new());
        for (item, (place, slot)) in classified.items.iter().zip(std::mem::take(&mut self.slots)) {
            match (&item.kind, slot) {
                (Kind::Tensor(id), Slot::Tensor(joined)) => {
                    let mut entry =
                        entries.next().ok_or_else(|| Error::internal("fewer entries than tensors"))?;
                    entry.placement = joined.rule;
                    if let Some(grad) = joined.parameter {
                        parameters.insert(place.key, grad.into());
                    }
                    names.insert(item.leaf, id.clone());
                    self.catalog.push(entry, Chunks { chunks: joined.chunks.into(), fingerprint: None })?;
                }
                (_, Slot::Value(saved)) => self.objects(&place, saved),
                _ => return Err(Error::internal("a leaf that is a tensor here and a value there")),
            }
        }
        let name = |at: &usize| names.get(at).filter(|id| id.role.is_model()).map(|id| id.fqn.clone());
        let evidence: Vec<TieEvidence> = self
            .tied
            .iter()
            .filter_map(|(a, b)| Some(TieEvidence::SharedStorage(name(a)?, name(b)?)))
            .collect();
        tie(&mut self.catalog.registry, &evidence).map_err(|error| Error::corrupt(error.to_string()))?;
        containers::keep_parameters(parameters, &mut self.catalog.extra);
        self.describe()?;
        self.catalog.check()?;
        let Self { catalog, blobs, findings, held, sharded, .. } = self;
        let is_of_ranks = sharded == held.len();
        Ok(Assembled { catalog, blobs, findings, held, is_of_ranks })
    }

    /// One entry for a value that all files agree on, else one for each.
    fn objects(&mut self, place: &PtPlace, saved: Vec<Saved>) {
        let agree = saved.windows(2).all(|two| matches!(two, [a, b] if a.pickle == b.pickle));
        let entry = |saved: Saved, key: String, path: Vec<PathPart>, reshard: ReshardRule| ObjectEntry {
            key,
            path,
            encoding: Encoding::Pickle,
            bytes: saved.pickle,
            preview: Some(saved.preview),
            reshard,
        };
        if agree {
            let rule = torch_dcp::rule(&place.path);
            let first = saved.into_iter().next();
            self.catalog
                .objects
                .extend(first.map(|one| entry(one, place.key.clone(), place.path.clone(), rule)));
            return;
        }
        for one in saved {
            let name = format!("rank_{}", one.rank);
            let key = format!("{}.{name}", place.key);
            let path = place.path.iter().cloned().chain([PathPart::Key(name)]).collect();
            self.catalog.objects.push(entry(one, key, path, ReshardRule::PerRank));
        }
    }

    fn describe(&mut self) -> Result<()> {
        let files = self.held.len();
        self.catalog.variant = match self.together {
            Together::Alone if self.specs.is_empty() => "one torch.save archive".to_owned(),
            Together::Alone => "one rank's torch.save archive of DTensors".to_owned(),
            Together::Shards => format!("{files} torch.save archives, each with some of the tensors"),
            Together::Ranks => {
                format!("torch.save archives of {files} ranks, each with its parts of DTensors")
            }
        };
        let stem = self.held.first().and_then(|(name, _)| name.rsplit_once('.')).map(|(stem, _)| stem);
        let named = stem.filter(|_| self.together == Together::Alone).and_then(torch_dcp::step_of_folder);
        self.catalog.step = torch_dcp::step(&self.catalog.objects).or(named);
        let containers: Vec<Container> = std::mem::take(&mut self.containers).into_values().collect();
        containers::keep(&containers, &mut self.catalog.extra)?;
        let Some((first, rest)) = self.specs.split_first() else { return Ok(()) };
        let same =
            |spec: &DTensorSpec| spec.mesh_shape == first.mesh_shape && spec.mesh_names == first.mesh_names;
        if rest.iter().all(same) {
            self.catalog.mesh = shard::mesh(first);
        }
        let ranks = first.mesh_shape.iter().fold(1_u64, |product, extent| product.saturating_mul(*extent));
        let present = u64::try_from(self.ranks.len()).unwrap_or(u64::MAX);
        if ranks > present {
            let text = format!(
                "{present} of the {ranks} ranks of mesh {:?} are here: what only the others hold is missing",
                &*first.mesh_shape
            );
            let severity = if self.together == Together::Alone { Severity::Note } else { Severity::Warning };
            let finding = Finding::new(severity, FindingCode::MissingFile, text);
            self.findings.push(finding.hint("give the path of the folder that holds the files of all ranks"));
        }
        Ok(())
    }
}
