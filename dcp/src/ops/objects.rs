//! Non-tensor state in a plan: what stays, what follows the number of data ranks, what is left out, what is refused.

use std::collections::{HashMap, HashSet};

use reshard::Mesh;

use super::prepare::{Part, Request};
use crate::{
    Catalog, Error, ObjectEntry, ReshardRule, Result,
    digest::{Sha256Digest, Sha256Hasher},
    rank_state::{self, Families, Family, ObjectCounts, RankRule, RankScheme, Spread, Uncovered, Walk},
};

/// Names beside the values of data ranks under which their number is kept, by TorchTitan and others: kept as it is, it would be
/// wrong. Whether it is that number is not guessed from the name: a rule has to say.
const COUNTS: [&str; 2] = ["world_size", "dp_world_size"];

/// The objects of a target.
#[derive(Debug, Default)]
pub(super) struct Objects {
    pub(super) all: Vec<ObjectEntry>,
    pub(super) counts: ObjectCounts,
}

impl Objects {
    /// Whether each is one of the source, unchanged: then the plan says nothing of them.
    pub(super) const fn are_as_before(&self) -> bool {
        self.counts.split + self.counts.merged + self.counts.rewritten == 0
    }

    /// Of all keys and values.
    pub(super) fn digest(&self) -> Sha256Digest {
        let mut hasher = Sha256Hasher::new();
        for object in &self.all {
            for part in [object.key.as_bytes(), &object.bytes] {
                hasher.update(&(part.len() as u64).to_le_bytes());
                hasher.update(part);
            }
        }
        hasher.finish()
    }
}

/// What becomes of the objects of `catalog` on the mesh that `request` asks for, by `scheme`.
///
/// # Errors
/// `Incompatible` for what belongs to single ranks and can't follow, saying what would do.
pub(super) fn objects(
    catalog: &Catalog,
    request: &Request,
    scheme: &RankScheme,
    notes: &mut Vec<String>,
) -> Result<Objects> {
    let all = &catalog.objects;
    if request.select.part == Part::Model {
        if !all.is_empty() {
            notes.push(format!("{} non-tensor values left out", all.len()));
        }
        let counts = ObjectCounts { dropped: all.len(), ..ObjectCounts::default() };
        return Ok(Objects { all: Vec::new(), counts });
    }
    let old = request.from.as_ref().or(catalog.mesh.as_ref());
    let moved = match &request.to {
        Some(to) if Some(to) != old => Change { catalog, request, scheme, old, to }.made(notes)?,
        _ => {
            Objects { all: all.clone(), counts: ObjectCounts { kept: all.len(), ..ObjectCounts::default() } }
        }
    };
    let counts = moved.counts;
    if !request.rank_state.is_empty() && counts.kept == counts.total() {
        notes.push("--rank-state had nothing to do: the number of data ranks stays".to_owned());
    }
    Ok(moved)
}

/// Another mesh.
struct Change<'a> {
    catalog: &'a Catalog,
    request: &'a Request,
    scheme: &'a RankScheme,
    old: Option<&'a Mesh>,
    to: &'a Mesh,
}

/// What becomes of the objects of one checkpoint, by their positions.
#[derive(Default)]
struct Fate {
    /// Left out.
    dropped: HashSet<usize>,
    /// Those of data ranks whose number changes: written where the first of them was.
    made: HashMap<usize, Vec<ObjectEntry>>,
    /// All others of those.
    gone: HashSet<usize>,
    /// Families that change, with the number of data ranks before.
    changed: Vec<(Family, u64)>,
    uncovered: Vec<Uncovered>,
    counts: ObjectCounts,
}

impl Change<'_> {
    fn made(&self, notes: &mut Vec<String>) -> Result<Objects> {
        let objects = &self.catalog.objects;
        let families = Families::of(objects);
        let mut fate = Fate::default();
        self.opaque(&mut fate)?;
        self.nameless(&families, &mut fate)?;
        families.all.iter().try_for_each(|family| self.family(family, &mut fate, notes))?;
        let mut made = Objects { all: Vec::with_capacity(objects.len()), counts: fate.counts };
        for (at, object) in objects.iter().enumerate() {
            if let Some(new) = fate.made.remove(&at) {
                made.all.extend(new);
            } else if fate.dropped.contains(&at) {
                made.counts.dropped += 1;
            } else if object.reshard == ReshardRule::Global {
                self.global(object, &mut fate, &mut made)?;
            } else if !fate.gone.contains(&at) {
                made.counts.kept += 1;
                made.all.push(object.clone());
            }
        }
        self.must_be_covered(&fate)?;
        if made.counts.dropped > 0 && self.request.drop_per_rank {
            notes.push(format!("{} per-rank values left out", made.counts.dropped));
        } else if made.counts.dropped > 0 {
            notes.push(format!("{} non-tensor values left out by rules for rank state", made.counts.dropped));
        }
        Ok(made)
    }

    /// `dp=4 pp=2 -> dp=2 (4 data ranks -> 2)`.
    fn text(&self) -> String {
        let old = self.old.map_or_else(|| "an unknown mesh".to_owned(), Mesh::short);
        let before = self.old.map(|mesh| format!("{} data ranks -> ", mesh.data_ranks())).unwrap_or_default();
        format!("{old} -> {} ({before}{})", self.to.short(), many(self.to.data_ranks()))
    }

    /// What belongs to single ranks and can't be taken apart stays only where the mesh does.
    fn opaque(&self, fate: &mut Fate) -> Result<()> {
        let each = self.catalog.objects.iter().enumerate();
        let bound: Vec<(usize, &ObjectEntry)> =
            each.filter(|(_, object)| object.reshard == ReshardRule::PerRank).collect();
        self.drop_or_refuse(&bound, fate, "belongs to a single rank of the old mesh")
    }

    fn nameless(&self, families: &Families, fate: &mut Fate) -> Result<()> {
        // Nothing becomes of them where the number is known to stay.
        if self.old.is_some_and(|old| old.data_ranks() == self.to.data_ranks()) {
            return Ok(());
        }
        let bound = families.nameless.iter().filter_map(|at| Some((*at, self.catalog.objects.get(*at)?)));
        let bound: Vec<_> = bound.collect();
        self.drop_or_refuse(
            &bound,
            fate,
            "is a value of each data rank, and its key does not name its own rank",
        )
    }

    fn drop_or_refuse(&self, bound: &[(usize, &ObjectEntry)], fate: &mut Fate, why: &str) -> Result<()> {
        let Some((_, first)) = bound.first() else { return Ok(()) };
        if !self.request.drop_per_rank {
            let (key, count) = (&first.key, bound.len());
            return Err(Error::incompatible(format!("{key} {why}: {} ({count} such values)", self.text()))
                .hint("--drop-per-rank leaves them out; or keep the mesh that they were saved on"));
        }
        fate.dropped.extend(bound.iter().map(|(at, _)| *at));
        Ok(())
    }

    fn family(&self, family: &Family, fate: &mut Fate, notes: &mut Vec<String>) -> Result<()> {
        let members: Vec<usize> = family.members.values().copied().collect();
        let from = match family.ranks() {
            Ok(from) => from,
            Err(_) if self.request.drop_per_rank => {
                fate.dropped.extend(members);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.must_be_from(family, from)?;
        let to = self.to.data_ranks();
        if from == to {
            return Ok(());
        }
        let values = members.iter().filter_map(|at| self.catalog.objects.get(*at)).collect::<Vec<_>>();
        let mut walk = Walk::new(self.scheme, Some(from), to);
        let made = rank_state::respread(&mut walk, &family.path(), &values);
        if walk.covered == 0 && self.request.drop_per_rank {
            // Nothing is said of it: neither what it is nor what it can't be is of interest.
            fate.dropped.extend(members);
            return Ok(());
        }
        let made = made.map_err(|error| error.at(format!("{}, {from} -> {}", family.key(), many(to))))?;
        fate.changed.push((family.clone(), from));
        if !walk.uncovered.is_empty() {
            fate.uncovered.append(&mut walk.uncovered);
            return Ok(());
        }
        let Some(made) = made else {
            fate.dropped.extend(members);
            return Ok(());
        };
        let renamed = made.into_iter().zip(0..).map(|(object, rank)| family.renamed(object, 0, rank));
        let renamed = renamed.collect::<Result<Vec<_>>>()?;
        let (count, word) = (members.len(), if from > to { "merged into" } else { "split into" });
        notes.push(format!("{}: the values of {from} data ranks {word} those of {to}", family.key()));
        *(if from > to { &mut fate.counts.merged } else { &mut fate.counts.split }) += count;
        let first = members.iter().copied().min();
        fate.made.extend(first.map(|first| (first, renamed)));
        fate.gone.extend(members);
        Ok(())
    }

    /// What the user says of the old mesh has to agree with the values that are there.
    fn must_be_from(&self, family: &Family, from: u64) -> Result<()> {
        let said = self.request.from.as_ref().map(Mesh::data_ranks);
        let Some(said) = said.filter(|said| *said != from) else { return Ok(()) };
        if self.request.drop_per_rank {
            return Ok(());
        }
        let key = family.key();
        let text = format!("{key} has the values of {}, and --from says {said}", many(from));
        Err(Error::incompatible(text).hint("give the mesh that wrote it, or leave --from out"))
    }

    /// A value of the whole run stays, but for what rules say of the number of data ranks in it.
    fn global(&self, object: &ObjectEntry, fate: &mut Fate, made: &mut Objects) -> Result<()> {
        let path: Vec<&str> = object.key.split('.').collect();
        let changes = |it: &RankRule| matches!(it.spread, Spread::Ranks | Spread::Drop);
        let new = if fate.changed.is_empty() {
            Some(object.clone())
        } else if self.scheme.rules().iter().any(changes) || self.scheme.spread(&path).is_some() {
            let walk = Walk::new(self.scheme, fate.ranks_before(&path), self.to.data_ranks());
            rank_state::rewritten(&walk, &path, object)?
        } else {
            Some(object.clone())
        };
        if fate.is_beside(&path) && self.may_be_stale(&path) {
            let value = object.preview.as_ref().map(ToString::to_string).unwrap_or_default();
            let value = format!("{value} (kept as it is only where a rule names it)");
            fate.uncovered.push(Uncovered { path: object.key.clone(), value });
        }
        match &new {
            None => made.counts.dropped += 1,
            Some(new) if new == object => made.counts.kept += 1,
            Some(_) => made.counts.rewritten += 1,
        }
        made.all.extend(new);
        Ok(())
    }

    /// Whether a value that may be the number of data ranks would be kept by accident: no rule is about it, or one for many that says
    /// that all are the same.
    fn may_be_stale(&self, path: &[&str]) -> bool {
        let names_it = |rule: &RankRule| rule.pattern.as_str() == path.join(".");
        let rule = self.scheme.rule(path);
        path.last().is_some_and(|name| COUNTS.contains(name))
            && rule.is_none_or(|rule| rule.spread == Spread::Same && !names_it(rule))
    }

    /// Refuses leaves of which nothing says what becomes of them, all at once.
    fn must_be_covered(&self, fate: &Fate) -> Result<()> {
        const SHOWN: usize = 8;
        let Some(first) = fate.uncovered.first() else { return Ok(()) };
        let shown = fate.uncovered.iter().take(SHOWN).map(|it| format!("{} = {}", it.path, it.value));
        let mut list = shown.collect::<Vec<_>>().join("; ");
        if let Some(more) = fate.uncovered.len().checked_sub(SHOWN).filter(|more| *more > 0) {
            list.push_str(&format!("; and {more} more"));
        }
        let change = fate.changed.first().map_or_else(
            || self.text(),
            |(family, from)| format!("{}, {from} -> {}", family.key(), many(self.to.data_ranks())),
        );
        let text = format!("{change}: no rule says what becomes of {list}");
        let one = &first.path;
        Err(Error::incompatible(text).hint(format!(
            "say it of each: --rank-state '{one}=HOW' with same, concat, interleave, sum, ranks or drop, see `ckpt help \
             rank-state`; --drop-per-rank leaves out values that no rule covers at all"
        )))
    }
}

impl Fate {
    /// The number of data ranks before: that of the families beside a path, else of all, if it is one.
    fn ranks_before(&self, path: &[&str]) -> Option<u64> {
        let beside = self.changed.iter().filter(|(family, _)| is_beside(family, path));
        let mut counts: Vec<u64> = beside.map(|(_, from)| *from).collect();
        if counts.is_empty() {
            counts = self.changed.iter().map(|(_, from)| *from).collect();
        }
        counts.dedup();
        match counts.as_slice() {
            [from] => Some(*from),
            _ => None,
        }
    }

    fn is_beside(&self, path: &[&str]) -> bool {
        self.changed.iter().any(|(family, _)| is_beside(family, path))
    }
}

fn is_beside(family: &Family, path: &[&str]) -> bool {
    path.split_last().is_some_and(|(_, parent)| parent.iter().eq(&family.before))
}

/// `1 data rank`, `4 data ranks`.
fn many(count: u64) -> String {
    if count == 1 { "1 data rank".to_owned() } else { format!("{count} data ranks") }
}

#[cfg(test)]
mod tests;
