//! [`Axis`] and [`Order`]: how coordinates on a mesh become ranks.

use std::fmt;

use serde::Serialize;

/// An axis of the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Axis {
    /// Data parallel.
    Dp,
    /// Pipeline.
    Pp,
    /// Tensor parallel.
    Tp,
}

impl Axis {
    /// All.
    pub const ALL: [Self; 3] = [Self::Dp, Self::Pp, Self::Tp];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dp => "dp",
            Self::Pp => "pp",
            Self::Tp => "tp",
        }
    }
}

/// How coordinates become ranks: slowest axis first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Order {
    /// `dp,pp,tp`: the suite's and the fourth article's.
    #[serde(rename = "dp,pp,tp")]
    DpPpTp,
    /// `pp,dp,tp`: TorchTitan's, and what Megatron's default comes to.
    #[serde(rename = "pp,dp,tp")]
    PpDpTp,
}

impl Order {
    pub(super) const fn axes(self) -> [Axis; 3] {
        match self {
            Self::DpPpTp => [Axis::Dp, Axis::Pp, Axis::Tp],
            Self::PpDpTp => [Axis::Pp, Axis::Dp, Axis::Tp],
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.axes().map(Axis::name).join(","))
    }
}

impl std::str::FromStr for Order {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found =
            [Self::DpPpTp, Self::PpDpTp].into_iter().find(|order| order.to_string() == text.replace(' ', ""));
        found.ok_or_else(|| format!("{text:?} is no order of axes; known are dp,pp,tp and pp,dp,tp"))
    }
}
