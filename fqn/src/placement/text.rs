//! The text form of a placement, both ways; the table is in the parent module.

use std::{fmt, str::FromStr};

use smallvec::SmallVec;

use super::{AxisCut, AxisName, PlacementError, PlacementRule, StageRule};

impl StageRule {
    fn parse(text: &str) -> Option<Self> {
        if let Some(dim) = text.strip_prefix("layers@") {
            return dim.parse().ok().map(Self::Layers);
        }
        [Self::All, Self::First, Self::Last, Self::FirstAndLast, Self::Layer]
            .into_iter()
            .find(|stage| stage.to_string() == text)
    }
}

impl fmt::Display for StageRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::All => "all",
            Self::First => "first",
            Self::Last => "last",
            Self::FirstAndLast => "first+last",
            Self::Layer => "layer",
            Self::Layers(dim) => return write!(f, "layers@{dim}"),
        })
    }
}

impl AxisCut {
    /// `what` is what follows the colon.
    fn parse(axes: &str, what: &str) -> Result<Option<Self>, PlacementError> {
        let axes: SmallVec<_> = axes.split('+').map(AxisName::new).collect::<Result<_, _>>()?;
        let (dim, pad) = what.split_once('%').map_or((what, None), |(dim, pad)| (dim, Some(pad)));
        let pad = pad.map(str::parse).transpose();
        Ok(dim.parse().ok().zip(pad.ok()).map(|(dim, pad)| Self { axes, dim, pad }))
    }
}

impl fmt::Display for AxisCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes: Vec<&str> = self.axes.iter().map(AxisName::as_str).collect();
        write!(f, "{}:{}", axes.join("+"), self.dim)?;
        self.pad.map_or(Ok(()), |pad| write!(f, "%{pad}"))
    }
}

impl fmt::Display for PlacementRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> = self.cuts.iter().map(ToString::to_string).collect();
        parts.extend(self.expert.as_ref().map(|axis| format!("{axis}:expert")));
        if self.stage != StageRule::All {
            parts.push(format!("pp:{}", self.stage));
        }
        if parts.is_empty() {
            return f.pad("replicate");
        }
        f.pad(&parts.join(","))
    }
}

impl FromStr for PlacementRule {
    type Err = PlacementError;
    fn from_str(text: &str) -> Result<Self, PlacementError> {
        if text == "replicate" {
            return Ok(Self::default());
        }
        let (mut cuts, mut expert, mut stage) = (Vec::new(), None, None);
        let twice = |axis: &str| PlacementError::Twice { axis: axis.to_owned(), text: text.to_owned() };
        for part in text.split(',').map(str::trim) {
            let bad = || PlacementError::Part { part: part.to_owned(), text: text.to_owned() };
            let (axis, what) = part.split_once(':').ok_or_else(bad)?;
            if axis == "pp" {
                if stage.replace(StageRule::parse(what).ok_or_else(bad)?).is_some() {
                    return Err(twice(axis));
                }
            } else if what == "expert" {
                if expert.replace(AxisName::new(axis)?).is_some() {
                    return Err(twice(axis));
                }
            } else {
                cuts.push(AxisCut::parse(axis, what)?.ok_or_else(bad)?);
            }
        }
        let rule = Self::new(cuts, stage.unwrap_or_default())?;
        expert.map_or(Ok(rule.clone()), |axis| rule.of_expert(axis))
    }
}
