//! [`TensorId`]: what a tensor is, not where it lies: the FQN of a parameter (or buffer) and the role of the
//! values kept for it. `layers.0.wq.weight` has up to four tensors: the parameter, its f32 master and its moments.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Fqn, NameError};

/// What the values of a tensor are to the parameter that names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// A trainable parameter.
    Param,
    /// A persistent buffer.
    Buffer,
    /// The full-precision copy that the optimizer updates.
    Master,
    /// Adam's first moment.
    ExpAvg,
    /// Adam's second moment.
    ExpAvgSq,
    /// Any other per-parameter slot of an optimizer, by the optimizer's own name: `step`, `momentum_buffer`.
    Slot(Box<str>),
    /// A tensor that belongs to no parameter: random-number state, counters.
    Other,
}

/// A text that names no role.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown role {0:?} (param, buffer, master, exp_avg, exp_avg_sq, slot:<name>, other)")]
pub struct UnknownRole(pub String);

impl Role {
    /// The role of an optimizer's slot by the optimizer's own name for it.
    #[must_use]
    pub fn of_slot(name: &str) -> Self {
        match name {
            "exp_avg" => Self::ExpAvg,
            "exp_avg_sq" => Self::ExpAvgSq,
            "master" | "fp32_param" | "master_param" => Self::Master,
            other => Self::Slot(other.into()),
        }
    }

    /// The optimizer's own name of the slot; `None` for parameters, buffers and others.
    #[must_use]
    pub fn slot_name(&self) -> Option<&str> {
        match self {
            Self::ExpAvg => Some("exp_avg"),
            Self::ExpAvgSq => Some("exp_avg_sq"),
            Self::Master => Some("master"),
            Self::Slot(name) => Some(name),
            Self::Param | Self::Buffer | Self::Other => None,
        }
    }

    /// Whether the model itself (not the optimizer) owns the tensor.
    #[must_use]
    pub const fn is_model(&self) -> bool {
        matches!(self, Self::Param | Self::Buffer)
    }

    /// Whether the optimizer owns the tensor.
    #[must_use]
    pub fn is_optimizer(&self) -> bool {
        self.slot_name().is_some()
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Param => f.pad("param"),
            Self::Buffer => f.pad("buffer"),
            Self::Master => f.pad("master"),
            Self::ExpAvg => f.pad("exp_avg"),
            Self::ExpAvgSq => f.pad("exp_avg_sq"),
            Self::Slot(name) => f.pad(&format!("slot:{name}")),
            Self::Other => f.pad("other"),
        }
    }
}

impl FromStr for Role {
    type Err = UnknownRole;
    fn from_str(s: &str) -> Result<Self, UnknownRole> {
        Ok(match s {
            "param" => Self::Param,
            "buffer" => Self::Buffer,
            "master" => Self::Master,
            "exp_avg" => Self::ExpAvg,
            "exp_avg_sq" => Self::ExpAvgSq,
            "other" => Self::Other,
            slot => match slot.strip_prefix("slot:") {
                Some(name) if crate::name::check(name).is_ok() => Self::Slot(name.into()),
                _ => return Err(UnknownRole(slot.escape_default().to_string())),
            },
        })
    }
}

impl Serialize for Role {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Role {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Identity of a tensor. Two tensors of one checkpoint never share it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TensorId {
    /// Name of the parameter, buffer or other tensor.
    pub fqn: Fqn,
    /// What the values are to it.
    pub role: Role,
}

impl TensorId {
    /// A parameter's id.
    ///
    /// # Errors
    /// As [`Fqn::new`].
    pub fn param(name: impl AsRef<str>) -> Result<Self, NameError> {
        Ok(Self { fqn: Fqn::new(name)?, role: Role::Param })
    }
}

/// The FQN alone for model tensors; `fqn@role` for the rest.
impl fmt::Display for TensorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.role {
            Role::Param | Role::Buffer | Role::Other => f.pad(self.fqn.as_str()),
            ref role => f.pad(&format!("{}@{role}", self.fqn)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_read_back_from_their_text() {
        for role in [
            Role::Param,
            Role::Buffer,
            Role::Master,
            Role::ExpAvg,
            Role::ExpAvgSq,
            Role::Other,
            Role::of_slot("step"),
        ] {
            assert_eq!(role.to_string().parse(), Ok(role));
        }
        assert!("slot:".parse::<Role>().is_err());
        assert!("weights".parse::<Role>().is_err());
    }

    #[test]
    fn an_id_shows_its_role_only_where_it_is_not_the_models() {
        let id = TensorId { fqn: Fqn::new("w").unwrap(), role: Role::ExpAvg };
        assert_eq!(id.to_string(), "w@exp_avg");
        assert_eq!(TensorId::param("w").unwrap().to_string(), "w");
    }
}
