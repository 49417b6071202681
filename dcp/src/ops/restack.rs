//! From what a user says of stacks to a source that shows them, with placement that follows.
//!
//! A pair of names is given as text, or by a word, `experts` or `layers`: then the rules file's pairs of that kind are meant, and
//! without some there, the preset's. What rules say of members follows for their stack, and the other way round, behind all that
//! is said of its own name. Taking apart comes first, then stacking.

use fqn::{
    Entry, Registry, TensorId,
    preset::Rules,
    stacking::{Stacking, Way},
};
use serde_json::Value;

use super::{
    naming::{self, Base, NamingRequest},
    prepare::Select,
};
use crate::{Catalog, Error, ObjectEntry, Restacked, Result, Source, Step};

/// What shall be stacked, and taken apart: pairs of names or words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RestackRequest {
    /// Members that become stacks.
    pub stack: Vec<String>,
    /// Stacks that become members.
    pub unstack: Vec<String>,
}

/// Segments of an object's key that are looked at.
const MOST_SEGMENTS: usize = 32;

/// Words for the pairs that rules know.
pub const WORDS: [&str; 2] = ["experts", "layers"];

impl RestackRequest {
    /// Whether nothing is asked for.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.stack.is_empty() && self.unstack.is_empty()
    }
}

/// `source` as the request wants it shown, of the tensors that `select` wants; and what there is to say of it. Placement of
/// what is made is put into `naming`.
///
/// # Errors
/// `Incompatible` for a text that is no pair, a word for which no pair is known, and as [`crate::Restacked::new`].
pub fn restack(
    source: Box<dyn Source>,
    request: &RestackRequest,
    naming: &mut NamingRequest,
    select: &Select,
) -> Result<(Restacked, Vec<String>)> {
    let wanted = |entry: &Entry| select.wants(entry);
    let mut registry = Registry::new();
    for entry in source.catalog().registry.entries().iter().filter(|entry| wanted(entry)) {
        registry.push(entry.clone()).map_err(|e| Error::internal(e.to_string()))?;
    }
    // What is left out says too which model it is.
    let known = Known::of(&source.catalog().registry, naming)?;
    let steps = known.steps(&registry, request)?;
    let (after, notes) = known.follow(registry, &steps, naming)?;
    let shown = Restacked::new(source, &steps, wanted)?;
    debug_assert_eq!(after.len(), shown.catalog().registry.len(), "the same steps were taken");
    let stale = stale(shown.catalog());
    Ok((shown, notes.into_iter().chain(stale).collect()))
}

/// The pairs that a rules file has beside what was asked for: nobody used them.
///
/// # Errors
/// As [`naming::name`].
pub fn unused(request: &RestackRequest, naming: &NamingRequest) -> Result<Option<String>> {
    let own = naming::own_rules(naming)?;
    let word = own.stacks.first().map(Stacking::members);
    Ok(word.filter(|_| request.is_empty()).map(|word| {
        format!("the rules file's pairs of members and stacks were not used: --stack {word} and --unstack {word} do")
    }))
}

/// Rules that are known before anything is stacked.
struct Known {
    own: Rules,
    base: Option<Rules>,
    origin: String,
}

impl Known {
    fn of(registry: &Registry, naming: &NamingRequest) -> Result<Self> {
        let (base, origin) = naming::base_rules(registry, naming)?;
        let own = naming::own_rules(naming)?;
        Ok(Self { own, base: base.map(std::borrow::Cow::into_owned), origin })
    }

    fn steps(&self, registry: &Registry, request: &RestackRequest) -> Result<Vec<Step>> {
        let mut steps = Vec::new();
        let unstack = request.unstack.iter().map(|text| (Way::Unstack, text));
        for (way, text) in unstack.chain(request.stack.iter().map(|text| (Way::Stack, text))) {
            if WORDS.contains(&text.trim()) {
                steps.extend(self.by_word(registry, way, text.trim())?);
            } else {
                let pair = text.parse::<Stacking>().map_err(|e| {
                    let option = option(way);
                    let hint = "experts or layers are words for what the rules file or the preset pairs; see `ckpt help stacking`";
                    Error::incompatible(format!("{option}: {e}")).caused_by(e).hint(hint)
                })?;
                steps.push(Step { way, pair });
            }
        }
        Ok(steps)
    }

    /// The pairs of this kind that change something.
    fn by_word(&self, registry: &Registry, way: Way, word: &str) -> Result<Vec<Step>> {
        let of = |rules: &Rules| -> Vec<Stacking> {
            rules.stacks.iter().filter(|pair| pair.members() == word).cloned().collect()
        };
        let mut pairs = of(&self.own);
        if pairs.is_empty() {
            pairs = self.base.as_ref().map(of).unwrap_or_default();
        }
        let option = option(way);
        if pairs.is_empty() {
            let of = if self.origin.is_empty() { "no preset fits the names" } else { &self.origin };
            return Err(Error::incompatible(format!("{option} {word}: no pair of names is known for {word} ({of})")).hint(
                "give the names, --stack 'layers.{layer}.experts.{expert}.w1.weight=layers.{layer}.moe.w1@0', or a rules file with \
                 [[stack]], or --preset; see `ckpt help stacking`",
            ));
        }
        let mut steps: Vec<Step> = pairs.into_iter().map(|pair| Step { way, pair }).collect();
        match steps.iter().any(|step| step.changes(registry)) {
            true => steps.retain(|step| step.changes(registry)),
            // The first says what was looked for.
            false => steps.truncate(1),
        }
        Ok(steps)
    }

    /// Takes the steps by name, and lets the rules follow.
    fn follow(
        mut self,
        mut registry: Registry,
        steps: &[Step],
        naming: &mut NamingRequest,
    ) -> Result<(Registry, Vec<String>)> {
        let mut notes = Vec::new();
        let mut made = Rules::default();
        for step in steps {
            let all = self.own.clone().before(self.base.clone().unwrap_or_default()).before(made.clone());
            let follow = step.pair.rules(step.way, &registry, &all);
            made.rules.extend(follow.map_err(|e| {
                Error::incompatible(format!("{} {}: {e}", option(step.way), step.pair)).caused_by(e).hint(
                    "--place gives the tensors that are made a placement of their own, see `ckpt help placement`",
                )
            })?);
            let (after, _) = step.take(&registry)?;
            notes.push(told(step, &registry, &after));
            registry = after;
        }
        if self.base.is_none() {
            // Names that no preset knew may be known now.
            let (base, origin) = naming::base_rules(&registry, naming)?;
            (self.base, self.origin) = (base.map(std::borrow::Cow::into_owned), origin);
        }
        if self.base.is_some() || !made.rules.is_empty() {
            let rules = self.base.unwrap_or_default().before(made);
            naming.base = Some(Base { rules, origin: self.origin });
        }
        Ok((registry, notes))
    }
}

const fn option(way: Way) -> &'static str {
    match way {
        Way::Stack => "--stack",
        Way::Unstack => "--unstack",
    }
}

fn told(step: &Step, before: &Registry, after: &Registry) -> String {
    let back = if step.way == Way::Stack { Way::Unstack } else { Way::Stack };
    let count = |registry: &Registry, way| {
        registry.entries().iter().filter(|entry| step.pair.concerns(way, entry.fqn.as_str())).count()
    };
    let (from, to) = (count(before, step.way), count(after, back));
    match step.way {
        Way::Stack => format!("{from} tensors stacked into {to}: {}", step.pair),
        Way::Unstack => format!("{from} stacks taken apart into {to} tensors: {}", step.pair),
    }
}

/// Every run of a key's segments that can be a name: none beyond the first few segments of a long one.
fn parts(key: &str) -> impl Iterator<Item = &str> {
    let edges = |dot: usize| key.match_indices('.').map(move |(at, _)| at + dot).take(MOST_SEGMENTS);
    let ends = move || edges(0).chain([key.len()]);
    [0].into_iter().chain(edges(1)).flat_map(move |start| ends().filter_map(move |end| key.get(start..end)))
}

/// Objects that name tensors which are no more: they are kept as they are.
fn stale(catalog: &Catalog) -> Option<String> {
    let gone = catalog.lineage.recorded().iter().map(|it| &it.id);
    let gone: std::collections::HashSet<&str> = gone
        .filter(|id| catalog.registry.position(id).is_none())
        .map(|id: &TensorId| id.fqn.as_str())
        .collect();
    let named = |value: &Value| match value {
        Value::String(text) => gone.contains(text.as_str()),
        Value::Array(list) => list.iter().filter_map(Value::as_str).any(|text| gone.contains(text)),
        _ => false,
    };
    let below = |object: &ObjectEntry| parts(&object.key).any(|part| gone.contains(part));
    let of = |object: &&ObjectEntry| object.preview.as_ref().is_some_and(named) || below(object);
    let mut stale = catalog.objects.iter().filter(of);
    let (first, more) = (stale.next()?, stale.count());
    let others = if more > 0 { format!(" and {more} other values name") } else { " names".to_owned() };
    Some(format!("{}{others} tensors as they were, and is kept so", first.key))
}

#[cfg(test)]
mod tests {
    use fqn::{Dtype, Role};

    use super::*;
    use crate::{
        engine::testing::{MemSource, Proof, Stored, Whole, grid},
        ops::prepare::Part,
    };

    #[test]
    fn steps_that_differ_are_in_the_way_of_a_stack_until_the_model_alone_is_asked_for() {
        let tensors = (0..3).flat_map(|at| {
            let name = format!("experts.{at}.w");
            let mut step = Whole::new(&name, Dtype::F32, &[]);
            step.entry.role = Role::Slot("step".into());
            step.bytes = vec![0, 0, 0, at];
            [Whole::new(&name, Dtype::F32, &[2, 2]), step]
        });
        let cut =
            |it: Whole| (it.clone(), grid(&it.entry.shape, &vec![1; it.entry.shape.rank()]), Stored::Packed);
        let tensors: Vec<_> = tensors.map(cut).collect();
        let stacked = |part: Part| {
            let source = Box::new(MemSource::new(&tensors, 1, Proof::Nothing));
            let wish = RestackRequest {
                stack: vec!["experts.{expert}.w=stack".to_owned()],
                ..RestackRequest::default()
            };
            let select = Select { part, ..Select::default() };
            restack(source, &wish, &mut NamingRequest::default(), &select).map(|(shown, _)| shown)
        };
        let error = stacked(Part::All).unwrap_err();
        assert!(error.to_string().contains("have different values"), "{error}");
        assert!(error.hint_text().unwrap().contains("--only model"), "{error:?}");
        assert_eq!(stacked(Part::Model).unwrap().catalog().registry.len(), 1);
    }
}
