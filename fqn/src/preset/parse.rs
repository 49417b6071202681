//! Reading rules files with the line of whatever is wrong.

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{Parts, Preset, Rename, Rule, Rules, RulesError, Unit};
use crate::{
    pattern::{Pattern, Template},
    rank_state::{RankRule, RankScheme},
    stacking::Stacking,
};

type Entry<'a, 'i> = (&'a Spanned<std::borrow::Cow<'i, str>>, &'a Spanned<DeValue<'i>>);

impl Rules {
    /// Reads a rules file.
    ///
    /// # Errors
    /// Anything that is not exactly a rules file, with its line: unknown keys name the nearest known one.
    pub fn from_toml(text: &str) -> Result<Self, RulesError> {
        let document =
            DeTable::parse(text).map_err(|e| RulesError::Toml(e.to_string().trim_end().to_owned()))?;
        let reader = Reader { text };
        let mut rules = Self::default();
        for (key, value) in document.get_ref().iter() {
            match key.get_ref().as_ref() {
                "preset" => rules.preset = Some(reader.preset(value)?),
                "rule" => rules.rules = reader.each(value, "rule", Reader::rule)?,
                "rename" => rules.renames = reader.each(value, "rename", Reader::rename)?,
                "rank_state" => {
                    rules.rank_state =
                        RankScheme::new(reader.each(value, "rank_state", Reader::rank_rule)?);
                }
                "stack" => rules.stacks = reader.each(value, "stack", Reader::stack)?,
                _ => {
                    let known = ["rule", "rename", "preset", "rank_state", "stack"];
                    return Err(reader.unknown(key, "rules file", &known));
                }
            }
        }
        Ok(rules)
    }
}

struct Reader<'t> {
    text: &'t str,
}

/// A table's line and the values of its known keys, in the order of the keys.
struct Fields<'a, 'i> {
    line: usize,
    table: &'static str,
    keys: &'static [&'static str],
    values: Vec<Option<&'a Spanned<DeValue<'i>>>>,
}

impl Reader<'_> {
    fn line(&self, at: usize) -> usize {
        self.text.bytes().take(at).filter(|&b| b == b'\n').count() + 1
    }

    fn unknown(
        &self,
        key: &Spanned<std::borrow::Cow<'_, str>>,
        table: &'static str,
        known: &[&'static str],
    ) -> RulesError {
        let name = key.get_ref().as_ref();
        let near = known.iter().map(|k| (strsim::damerau_levenshtein(k, name), *k)).min();
        let nearest = near.filter(|(distance, k)| *distance <= 1 + k.len() / 2).map(|(_, k)| k);
        RulesError::UnknownKey {
            key: name.escape_default().to_string(),
            table,
            nearest,
            line: self.line(key.span().start),
        }
    }

    fn value(&self, key: &str, expected: &'static str, at: &Spanned<DeValue<'_>>) -> RulesError {
        RulesError::Value { key: key.to_owned(), expected, line: self.line(at.span().start) }
    }

    fn each<T>(
        &self,
        value: &Spanned<DeValue<'_>>,
        name: &'static str,
        read: impl Fn(&Self, &Spanned<DeValue<'_>>) -> Result<T, RulesError>,
    ) -> Result<Vec<T>, RulesError> {
        let list =
            value.get_ref().as_array().ok_or_else(|| self.value(name, "a list of tables: [[…]]", value))?;
        list.iter().map(|one| read(self, one)).collect()
    }

    fn fields<'a, 'i>(
        &self,
        value: &'a Spanned<DeValue<'i>>,
        table: &'static str,
        keys: &'static [&'static str],
    ) -> Result<Fields<'a, 'i>, RulesError> {
        let entries = value.get_ref().as_table().ok_or_else(|| self.value(table, "a table", value))?;
        let mut values = vec![None; keys.len()];
        for (key, value) in entries.iter() {
            let (key, value): Entry<'_, '_> = (key, value);
            let place =
                keys.iter().position(|k| *k == key.get_ref().as_ref()).and_then(|at| values.get_mut(at));
            *place.ok_or_else(|| self.unknown(key, table, keys))? = Some(value);
        }
        Ok(Fields { line: self.line(value.span().start), table, keys, values })
    }

    fn rule(&self, value: &Spanned<DeValue<'_>>) -> Result<Rule, RulesError> {
        let fields = self.fields(value, "rule", &["match", "place", "tied", "divides", "parts"])?;
        let parts = self.optional(&fields, 4)?.map(|at| self.parts(at)).transpose()?;
        let rule = Rule {
            pattern: self.pattern(self.needed(&fields, 0)?)?,
            place: self.place(self.needed(&fields, 1)?)?,
            tied: self.optional(&fields, 2)?.map(|at| self.place(at)).transpose()?,
            divides: self.optional(&fields, 3)?.map(|at| self.unit(at)).transpose()?,
            line: fields.line,
            parts,
        };
        if rule.parts.is_some() && rule.cut_over("tp").is_none() {
            let why = "parts follow each other along the tp cut, and the placement has none".to_owned();
            return Err(RulesError::PartsText { line: rule.line, why });
        }
        rule.counts_by_one_axis()?;
        Ok(rule)
    }

    fn rename(&self, value: &Spanned<DeValue<'_>>) -> Result<Rename, RulesError> {
        let fields = self.fields(value, "rename", &["match", "to"])?;
        let pattern = self.pattern(self.needed(&fields, 0)?)?;
        let (to, line) = self.needed(&fields, 1)?;
        let to = Template::new(to).map_err(|source| RulesError::Pattern { line, source })?;
        let captures = pattern.capture_names();
        if let Some(hole) = to.holes().find(|hole| !captures.contains(hole)) {
            let (hole, to) = (hole.to_owned(), to.as_str().to_owned());
            return Err(RulesError::Hole { hole, to, pattern: pattern.to_string(), line });
        }
        Ok(Rename { pattern, to })
    }

    fn rank_rule(&self, value: &Spanned<DeValue<'_>>) -> Result<RankRule, RulesError> {
        let fields = self.fields(value, "rank_state", &["match", "how"])?;
        let ((pattern, line), (how, of_how)) = (self.needed(&fields, 0)?, self.needed(&fields, 1)?);
        let how = how.parse().map_err(|source| RulesError::RankState { line: of_how, source })?;
        RankRule::new(pattern, how).map_err(|source| RulesError::RankState { line, source })
    }

    fn stack(&self, value: &Spanned<DeValue<'_>>) -> Result<Stacking, RulesError> {
        let fields = self.fields(value, "stack", &["members", "stack"])?;
        let ((members, _), (stack, line)) = (self.needed(&fields, 0)?, self.needed(&fields, 1)?);
        let wrong = |source| RulesError::Stack { line, source: Box::new(source) };
        Stacking::of(members, stack).map_err(wrong)
    }

    fn preset(&self, value: &Spanned<DeValue<'_>>) -> Result<Preset, RulesError> {
        let fields = self.fields(value, "preset", &["name", "title", "needs", "head"])?;
        let needs = match fields.values.get(2).copied().flatten() {
            Some(list) => {
                self.each(list, "needs", |reader, one| reader.pattern(reader.text_of("needs", one)?))?
            }
            None => Vec::new(),
        };
        Ok(Preset {
            name: self.needed(&fields, 0)?.0.to_owned(),
            title: self.optional(&fields, 1)?.map_or_else(String::new, |(title, _)| title.to_owned()),
            needs,
            head: self.optional(&fields, 3)?.map(|at| self.pattern(at)).transpose()?,
        })
    }

    fn text_of<'a>(
        &self,
        key: &str,
        value: &'a Spanned<DeValue<'_>>,
    ) -> Result<(&'a str, usize), RulesError> {
        let text = value.get_ref().as_str().ok_or_else(|| self.value(key, "a text", value))?;
        Ok((text, self.line(value.span().start)))
    }

    fn optional<'a>(
        &self,
        fields: &Fields<'a, '_>,
        at: usize,
    ) -> Result<Option<(&'a str, usize)>, RulesError> {
        let key = fields.keys.get(at).copied().unwrap_or_default();
        fields.values.get(at).copied().flatten().map(|value| self.text_of(key, value)).transpose()
    }

    fn needed<'a>(&self, fields: &Fields<'a, '_>, at: usize) -> Result<(&'a str, usize), RulesError> {
        let key = fields.keys.get(at).copied().unwrap_or_default();
        let missing = RulesError::MissingKey { key, table: fields.table, line: fields.line };
        self.optional(fields, at)?.ok_or(missing)
    }

    fn pattern(&self, (text, line): (&str, usize)) -> Result<Pattern, RulesError> {
        Pattern::new(text).map_err(|source| RulesError::Pattern { line, source })
    }

    fn place(&self, (text, line): (&str, usize)) -> Result<crate::PlacementRule, RulesError> {
        let rule: crate::PlacementRule = text.parse().map_err(|source| RulesError::Place { line, source })?;
        rule.check_axes().map_err(|source| RulesError::Place { line, source })?;
        Ok(rule)
    }

    fn parts(&self, (text, line): (&str, usize)) -> Result<Parts, RulesError> {
        text.parse().map_err(|why| RulesError::PartsText { line, why })
    }

    fn unit(&self, (text, line): (&str, usize)) -> Result<Unit, RulesError> {
        let expected = "one of heads, kv_heads, ffn, expert_ffn, vocab, experts, blocks";
        Unit::parse(text).ok_or_else(|| RulesError::Value { key: "divides".to_owned(), expected, line })
    }
}
