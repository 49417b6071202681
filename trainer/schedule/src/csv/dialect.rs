//! [`Dialect`]: what the letters of backwards mean. torch changed them, and files of both kinds are about.

use std::{fmt, str::FromStr};

use crate::{Action, ScheduleError, Step};

/// What B, I, W and BW mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Dialect {
    /// I gives the gradient of the inputs, W that of the weights, B both: torch since 2.6, and this crate.
    #[default]
    Newer,
    /// B gives the gradient of the inputs, W that of the weights, BW both: torch before.
    Older,
}

impl Dialect {
    /// An action as the dialect writes it.
    #[must_use]
    pub fn text(self, action: Action) -> String {
        match (self, action.step) {
            (Self::Newer, _) => action.to_string(),
            (Self::Older, Step::I(m)) => format!("{}B{m}", action.stage),
            (Self::Older, Step::B(m)) => format!("{}BW{m}", action.stage),
            (Self::Older, Step::Overlap { .. }) => {
                let parts: Vec<_> = action.parts().map(|part| self.text(part)).collect();
                format!("({})OVERLAP_F_B", parts.join(";"))
            }
            (Self::Older, _) => action.to_string(),
        }
    }

    /// Reads one cell; `Err` is why not.
    pub(super) fn action(self, cell: &str) -> Result<Action, String> {
        let newer = match (self, cell.strip_prefix('(').and_then(|cell| cell.split_once(')'))) {
            (Self::Newer, _) => cell.to_owned(),
            (Self::Older, None) => newer(cell)?,
            (Self::Older, Some((parts, name))) => {
                let parts: Vec<_> = parts.split(';').map(newer).collect::<Result<_, _>>()?;
                format!("({}){name}", parts.join(";"))
            }
        };
        newer.parse().map_err(|error| match error {
            _ if self == Self::Newer && letters(cell) == "BW" => {
                "BW is of the older dialect; where B gives both gradients it is written B".to_owned()
            }
            ScheduleError::Text { why, .. } => format!("it is no action: {why}"),
            other => other.to_string(),
        })
    }
}

/// What stands between the digits of an action that is no composite.
pub(super) fn letters(cell: &str) -> &str {
    cell.trim_matches(|c: char| c.is_ascii_digit())
}

/// An action of the older dialect in the letters of the newer one.
fn newer(cell: &str) -> Result<String, String> {
    let replaced = match letters(cell) {
        "B" => "I",
        "BW" => "B",
        "I" => {
            return Err("the older dialect has no I: it writes B for the gradient of the inputs".to_owned());
        }
        _ => return Ok(cell.to_owned()),
    };
    Ok(cell.replacen(letters(cell), replaced, 1))
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Newer => "newer (I, W, B = both)",
            Self::Older => "older (B, W, BW = both)",
        })
    }
}

impl FromStr for Dialect {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        match text.to_ascii_lowercase().as_str() {
            "newer" => Ok(Self::Newer),
            "older" => Ok(Self::Older),
            _ => Err(ScheduleError::File(format!(
                "{text:?} is no dialect: there are newer (I, W, B = both) and older (B, W, BW = both)"
            ))),
        }
    }
}
