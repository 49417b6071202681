//! Non-tensor state in a plan: what stays, what follows the number of data ranks, what is left out, what is refused.

use fqn::rank_state::Below;
use reshard::Mesh;

use self::fate::Fate;
use super::prepare::{Part, Request};
use crate::{
    Catalog, Error, ObjectEntry, ReshardRule, Result,
    digest::{Sha256Digest, Sha256Hasher},
    rank_state::{self, Families, Family, ObjectCounts, RankScheme, Spread, Walk},
};

mod fate;
mod tensors;

pub(super) use self::tensors::{are_there as has_tensors_of_ranks, left as tensors_left};

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
    let idle = || {
        let rules = !request.rank_state.is_empty();
        rules.then(|| "--rank-state had nothing to do: the number of data ranks stays".to_owned())
    };
    let Some(to) = &request.to else {
        notes.extend(idle());
        let counts = ObjectCounts { kept: all.len(), ..ObjectCounts::default() };
        return Ok(Objects { all: all.clone(), counts });
    };
    let change = Change::of(catalog, request, scheme, to);
    if !change.is_one() {
        notes.extend(idle());
    }
    change.made(notes)
}

/// Which objects are the values of data ranks, and how many of these there were: as they tell themselves, or else as is said or recorded.
fn before(catalog: &Catalog, request: &Request) -> (Families, Option<u64>) {
    let said = request.from.as_ref().or(catalog.mesh.as_ref()).map(Mesh::data_ranks);
    let families = Families::of(&catalog.objects, said);
    let before = families.ranks().or(said);
    (families, before)
}

/// What is laid out for a mesh that is asked for.
struct Change<'a> {
    catalog: &'a Catalog,
    request: &'a Request,
    scheme: &'a RankScheme,
    old: Option<&'a Mesh>,
    to: &'a Mesh,
    families: Families,
    /// Data ranks that there were, where anything tells.
    before: Option<u64>,
}

impl<'a> Change<'a> {
    fn of(catalog: &'a Catalog, request: &'a Request, scheme: &'a RankScheme, to: &'a Mesh) -> Self {
        let old = request.from.as_ref().or(catalog.mesh.as_ref());
        let (families, before) = before(catalog, request);
        Self { catalog, request, scheme, old, to, families, before }
    }

    /// Whether the number of data ranks changes, or may.
    fn is_one(&self) -> bool {
        self.before != Some(self.to.data_ranks())
    }

    fn made(&self, notes: &mut Vec<String>) -> Result<Objects> {
        let objects = &self.catalog.objects;
        let mut fate = Fate::default();
        self.opaque(&mut fate)?;
        self.nameless(&mut fate)?;
        self.families.all.iter().try_for_each(|family| self.family(family, &mut fate, notes))?;
        let mut all = Vec::with_capacity(objects.len());
        for (at, object) in objects.iter().enumerate() {
            if let Some(new) = fate.made.remove(&at) {
                all.extend(new);
            } else if fate.dropped.contains(&at) || fate.left.contains(&at) {
                fate.counts.dropped += 1;
            } else if object.reshard == ReshardRule::Global && self.is_one() {
                all.extend(self.global(object, &mut fate)?);
            } else if !fate.gone.contains(&at) {
                fate.counts.kept += 1;
                all.push(object.clone());
            }
        }
        fate.must_be_covered(|family| family.map_or_else(|| self.text(), |family| self.change_of(family)))?;
        let given = if self.is_one() { self.request.rank_state.rules().len() } else { 0 };
        notes.extend(fate.notes(self.scheme, given));
        Ok(Objects { all, counts: fate.counts })
    }

    /// `dataloader.dp_rank_*, 4 -> 2 data ranks`.
    fn change_of(&self, family: &Family) -> String {
        let before = self.before.map_or_else(|| "an unknown number".to_owned(), |before| before.to_string());
        format!("{}, {before} -> {}", family.key(), many(self.to.data_ranks()))
    }

    /// `dp=4 pp=2 -> dp=2 (4 data ranks -> 2)`.
    fn text(&self) -> String {
        let old = self.old.map_or_else(|| "an unknown mesh".to_owned(), Mesh::short);
        let before = self.old.map(|mesh| format!("{} data ranks -> ", mesh.data_ranks())).unwrap_or_default();
        format!("{old} -> {} ({before}{})", self.to.short(), many(self.to.data_ranks()))
    }

    /// What belongs to single ranks and can't be taken apart stays only where the mesh does.
    fn opaque(&self, fate: &mut Fate) -> Result<()> {
        if self.old == Some(self.to) {
            return Ok(());
        }
        let each = self.catalog.objects.iter().enumerate();
        let bound = each.filter(|(_, object)| object.reshard == ReshardRule::PerRank).map(|(at, _)| at);
        self.drop_or_refuse(&bound.collect::<Vec<_>>(), fate, "belongs to a single rank of the old mesh")
    }

    fn nameless(&self, fate: &mut Fate) -> Result<()> {
        // Nothing becomes of them where the number is known to stay.
        if !self.is_one() {
            return Ok(());
        }
        let Families { nameless, ambiguous, .. } = &self.families;
        let why = "is a value of each data rank, and its key does not name its own rank";
        self.drop_or_refuse(nameless, fate, why)?;
        let why = "is a value of each data rank, and which number of its key is the rank's is not known (--from tells how many \
                   there were)";
        self.drop_or_refuse(ambiguous, fate, why)
    }

    /// A rule may drop such a value too: of its whole key, since no rank is known in it.
    fn drop_or_refuse(&self, bound: &[usize], fate: &mut Fate, why: &str) -> Result<()> {
        let mut refused = Vec::new();
        for &at in bound {
            let Some(object) = self.catalog.objects.get(at) else { continue };
            let below = self.scheme.at(&object.key.split('.').collect::<Vec<_>>()).below();
            match self.dropping(below) {
                Some(rule) => {
                    fate.decided.insert(rule);
                    fate.dropped.insert(at);
                }
                None if self.request.drop_per_rank => drop(fate.left.insert(at)),
                None => refused.push(object),
            }
        }
        let Some(first) = refused.first() else { return Ok(()) };
        let (key, count) = (&first.key, refused.len());
        Err(Error::incompatible(format!("{key} {why}: {} ({count} such values)", self.text()))
            .hint("--drop-per-rank leaves them out; or keep the mesh that they were saved on"))
    }

    /// The rule that drops all that is below a place, if one does.
    fn dropping(&self, below: Below) -> Option<usize> {
        let Below::Rule(at) = below else { return None };
        self.scheme.rules().get(at).filter(|rule| rule.spread == Spread::Drop).map(|_| at)
    }

    fn family(&self, family: &Family, fate: &mut Fate, notes: &mut Vec<String>) -> Result<()> {
        let members: Vec<usize> = family.members.values().copied().collect();
        let fits = self.fits(family);
        if fits.is_ok() && !self.is_one() {
            return Ok(());
        }
        let path = family.path();
        let below = self.scheme.at(&path).below();
        if let Some(rule) = self.dropping(below) {
            fate.decided.insert(rule);
            fate.dropped.extend(members);
            fate.places.push(family.before.clone());
            return Ok(());
        }
        if below == Below::Nothing && self.request.drop_per_rank {
            // Neither what it is nor what it can't be is of interest.
            fate.left.extend(members);
            fate.places.push(family.before.clone());
            return Ok(());
        }
        fits?;
        let to = self.to.data_ranks();
        let values = members.iter().filter_map(|at| self.catalog.objects.get(*at)).collect::<Vec<_>>();
        let from = values.len() as u64;
        let mut walk = Walk::new(self.scheme, Some(from), to);
        let made = rank_state::respread(&mut walk, &path, &values);
        let made = made.map_err(|error| error.at(self.change_of(family)))?;
        fate.places.push(family.before.clone());
        if walk.decided.is_empty() && self.request.drop_per_rank && !walk.uncovered.is_empty() {
            // Rules for paths like these, and none for one that is there.
            fate.left.extend(members);
            return Ok(());
        }
        fate.decided.append(&mut walk.decided);
        fate.changed.push(family.clone());
        if !walk.uncovered.is_empty() {
            fate.uncovered.append(walk.uncovered);
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

    /// All that tells how many data ranks there were has to agree: values of one that are missing would be lost unnoticed.
    fn fits(&self, family: &Family) -> Result<()> {
        let hinted = |error: Error| {
            match error.hint_text() {
            Some(_) => error,
            None => error.hint(
                "give the mesh that wrote it with --from, where the checkpoint records none; --drop-per-rank leaves out such \
                 values where no rule is about them",
            ),
        }
        };
        let said = match (&self.request.from, &self.catalog.mesh) {
            (Some(from), _) => Some((from.data_ranks(), "--from says")),
            (None, Some(mesh)) => Some((mesh.data_ranks(), "the checkpoint records")),
            (None, None) => None,
        };
        if let Some((said, who)) = said {
            return family.must_be_of(said, who).map_err(hinted);
        }
        let first = self.families.all.first();
        let Some((count, first)) = first.and_then(|first| Some((first.ranks().ok()?, first))) else {
            return family.ranks().map(drop);
        };
        family.must_be_of(count, &format!("{} those of", first.key())).map_err(hinted)
    }

    /// A value of the whole run stays, but for what rules say of the number of data ranks in it.
    fn global(&self, object: &ObjectEntry, fate: &mut Fate) -> Result<Option<ObjectEntry>> {
        let path: Vec<&str> = object.key.split('.').collect();
        let mut walk = Walk::new(self.scheme, self.before, self.to.data_ranks());
        let (new, stale) = rank_state::rewritten(&mut walk, &path, object, fate.beside(&path))?;
        fate.decided.append(&mut walk.decided);
        // Beside values that are left out it does no harm, and is told.
        if fate.changed.is_empty() { &mut fate.stale } else { &mut fate.uncovered }.append(stale);
        match &new {
            None => fate.counts.dropped += 1,
            Some(new) if new == object => fate.counts.kept += 1,
            Some(_) => fate.counts.rewritten += 1,
        }
        Ok(new)
    }
}

/// `1 data rank`, `4 data ranks`.
fn many(count: u64) -> String {
    if count == 1 { "1 data rank".to_owned() } else { format!("{count} data ranks") }
}

#[cfg(test)]
mod tests;
