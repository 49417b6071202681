//! Single rules as a command line gives them: `layers.*.wq.weight=tp:0,dp:0`.

use super::{Rule, Rules, RulesError};
use crate::{PlacementRule, pattern::Pattern};

impl Rules {
    /// Rules from texts of the form `GLOB=PLACEMENT`; where several match, the last one given wins.
    ///
    /// # Errors
    /// The first text that is no rule: no `=`, a glob or a placement that is none, an axis that no mesh is spelt with
    /// (named with the nearest one).
    pub fn from_flags<S: AsRef<str>>(texts: &[S]) -> Result<Self, RulesError> {
        let rules = texts.iter().enumerate().map(|(at, text)| flag(text.as_ref(), at + 1));
        let mut rules = rules.collect::<Result<Vec<_>, _>>()?;
        // Within a set the first match wins.
        rules.reverse();
        Ok(Self { rules, ..Self::default() })
    }
}

fn flag(text: &str, at: usize) -> Result<Rule, RulesError> {
    let wrong = |why: String| RulesError::Flag { flag: text.escape_default().to_string(), why };
    // A placement holds no `=`, a name may.
    let (glob, place) = text.rsplit_once('=').ok_or_else(|| {
        wrong("it is not GLOB=PLACEMENT, for example 'layers.*.wq.weight=tp:0,dp:0'".to_owned())
    })?;
    let place: PlacementRule =
        place.trim().parse().map_err(|e: crate::PlacementError| wrong(e.to_string()))?;
    place.check_axes().map_err(|error| wrong(error.to_string()))?;
    let pattern = Pattern::new(glob.trim()).map_err(|error| wrong(error.to_string()))?;
    Ok(Rule { pattern, place, tied: None, divides: None, parts: None, line: at })
}
