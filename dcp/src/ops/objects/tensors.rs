//! Tensors that belong to single ranks, by their names: a generator's state, `rng.rank_3`. They are no parameters and have no
//! dimension for ranks, so on another mesh they can only be left out.

use std::collections::HashSet;

use fqn::Role;

use super::{before, many};
use crate::{
    Catalog, Error, PathPart, ReshardRule, Result,
    formats::torch_dcp::rule,
    ops::prepare::Request,
    rank_state::{RankScheme, Spread},
};

/// Positions of the tensors that are left out: those of single ranks, where the ranks change and that is asked for.
///
/// # Errors
/// `Incompatible` where it is not, or where a rule says something else of them.
pub(in crate::ops) fn left(
    catalog: &Catalog,
    request: &Request,
    scheme: &RankScheme,
    notes: &mut Vec<String>,
) -> Result<HashSet<usize>> {
    let mut left = HashSet::new();
    let Some(to) = &request.to else { return Ok(left) };
    let same_mesh = request.from.as_ref().or(catalog.mesh.as_ref()) == Some(to);
    let (_, before) = before(catalog, request);
    let mut refused = Vec::new();
    let entries = catalog.registry.entries().iter().enumerate();
    for (at, entry) in entries.filter(|(_, entry)| entry.role == Role::Other && request.select.wants(entry)) {
        let name = entry.fqn.as_str();
        let stays = match rule(&[PathPart::Key(name.to_owned())]) {
            ReshardRule::Global => true,
            ReshardRule::PerDataRank => before == Some(to.data_ranks()),
            ReshardRule::PerRank => same_mesh,
        };
        if stays {
            continue;
        }
        let path: Vec<&str> = name.split('.').filter(|segment| !names_a_rank(segment)).collect();
        match scheme.spread(&path) {
            Some(Spread::Drop) => drop(left.insert(at)),
            Some(how) => {
                let text = format!("{name} is a tensor of a single rank, and a rule says {how}");
                return Err(Error::incompatible(text)
                    .hint(format!("rules can only drop tensors: --rank-state '{}=drop'", path.join("."))));
            }
            None if request.drop_per_rank => drop(left.insert(at)),
            None => refused.push(name),
        }
    }
    if let Some(first) = refused.first() {
        let (ranks, count) = (many(to.data_ranks()), refused.len());
        let text = format!(
            "{first} is a tensor of a single rank of the old mesh, and has no meaning on {} of {ranks} ({count} such tensors)",
            to.short()
        );
        return Err(Error::incompatible(text)
            .hint("--drop-per-rank leaves them out; or keep the mesh that they were saved on"));
    }
    if !left.is_empty() {
        notes.push(format!("{} tensors of single ranks left out", left.len()));
    }
    Ok(left)
}

fn names_a_rank(segment: &str) -> bool {
    rule(&[PathPart::Key(segment.to_owned())]) != ReshardRule::Global
}

/// Whether some of them are there.
pub(in crate::ops) fn are_there<'e>(mut entries: impl Iterator<Item = &'e fqn::Entry>) -> bool {
    entries.any(|entry| entry.role == Role::Other && entry.fqn.as_str().split('.').any(names_a_rank))
}

#[cfg(test)]
mod tests {
    use fqn::{Dtype, Entry, Fqn, Shape};

    use super::*;
    use crate::{Chunks, Format};

    fn told(names: &[(&str, Role)], meshes: [&str; 2], rules: &[&str], drop: bool) -> Result<Vec<usize>> {
        let mut catalog = Catalog::new(Format::Native);
        for (name, role) in names {
            let entry = Entry::new(Fqn::new(name).unwrap(), role.clone(), Dtype::U8, Shape::new(&[16]));
            catalog.push(entry, Chunks::default()).unwrap();
        }
        let [from, to] = meshes.map(|mesh| Some(mesh.parse().unwrap()));
        let request = Request { from, to, drop_per_rank: drop, ..Request::new(Format::Native) };
        let scheme = RankScheme::from_flags(rules).unwrap();
        let mut left: Vec<usize> = left(&catalog, &request, &scheme, &mut Vec::new())?.into_iter().collect();
        left.sort_unstable();
        Ok(left)
    }

    #[test]
    fn a_tensor_that_belongs_to_a_rank_stays_on_its_mesh_and_is_refused_or_left_out_on_another() {
        let names = [
            ("w", Role::Param),
            ("adapter.rank_4", Role::Param),
            ("rng.rank_0", Role::Other),
            ("loader.dp_rank_0.rng", Role::Other),
        ];
        assert!(told(&names, ["dp=2", "dp=2"], &[], false).unwrap().is_empty());
        let error = told(&names, ["dp=2", "dp=2,tp=2"], &[], false).unwrap_err();
        assert!(error.to_string().contains("rng.rank_0 is a tensor of a single rank"), "{error}");
        assert!(error.to_string().contains("(1 such tensors)"), "one of a data rank stays: {error}");
        assert_eq!(told(&names, ["dp=2", "dp=2,tp=2"], &[], true).unwrap(), [2]);
        assert_eq!(told(&names, ["dp=2", "dp=4"], &[], true).unwrap(), [2, 3]);
        assert_eq!(told(&names, ["dp=2", "dp=4"], &["rng=drop", "loader.**=drop"], false).unwrap(), [2, 3]);
        let error = told(&names, ["dp=2", "dp=4"], &["rng=drop", "loader.rng=same"], true).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("loader.dp_rank_0.rng is a tensor of a single rank, and a rule says same")
        );
    }
}
