//! What of a configuration was set otherwise when a checkpoint was written, as far as it changes the numbers of a run. A run may go on so:
//! someone may want just that. But whoever did not mean to must be told, since nothing else shows where the curve has its bend. Pure.

use serde_json::Value;

use crate::{
    Result,
    config::{Config, differences},
};

/// Keys, or beginnings of keys, that the numbers of a run depend on, and that may change from one start to the next. What may not is refused
/// elsewhere: data, seed, names and shapes of tensors, and in exact mode its geometry.
const NUMBERS: &[&str] = &[
    "model.",
    "optimizer.",
    "lr_scheduler.",
    "training.max_norm",
    "training.mixed_precision_param",
    "training.mixed_precision_reduce",
];

/// What the numbers of the next steps depend on and was otherwise in the checkpoint, as `before` has it; none where nothing is.
///
/// # Errors
/// Never for a resolved configuration.
pub(crate) fn changed(before: Option<&Value>, now: &Config) -> Result<Option<String>> {
    let Some(before) = before else { return Ok(None) };
    let before = match Config::from_json(before) {
        Ok(before) => before,
        Err(error) => return Ok(Some(format!("{error}; whether settings have changed since is not known"))),
    };
    let numbers = |key: &str| {
        NUMBERS.iter().any(|known| key == *known || known.ends_with('.') && key.starts_with(known))
    };
    let of = |value: Option<String>| value.unwrap_or_else(|| "not set".to_owned());
    let found: Vec<String> = differences(&before, now)?
        .into_iter()
        .filter(|difference| numbers(&difference.key))
        .map(|it| format!("{} from {} to {}", it.key, of(it.before), of(it.after)))
        .collect();
    Ok((!found.is_empty()).then(|| {
        format!(
            "since the checkpoint, {}: from here on the curve is not the one that the run had",
            found.join(", ")
        )
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Numbers, Resume};

    #[test]
    fn what_changes_the_numbers_is_named_and_what_does_not_is_not() {
        let before = Config::default();
        let stored = before.to_json().unwrap();
        assert_eq!(changed(None, &before).unwrap(), None);
        assert_eq!(changed(Some(&stored), &before).unwrap(), None);
        let mut now = before.clone();
        (now.training.steps, now.checkpoint.resume, now.metrics.log_freq) = (7, Resume::Require, 3);
        assert_eq!(changed(Some(&stored), &now).unwrap(), None);
        now.training.mixed_precision_param = Numbers::Bfloat16;
        now.model.keys.insert("rope_theta".to_owned(), 5e5.into());
        let said = changed(Some(&stored), &now).unwrap().unwrap();
        for words in [
            "training.mixed_precision_param from \"float32\" to \"bfloat16\"",
            "model.rope_theta from not set to 500000.0",
        ] {
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn a_configuration_of_another_build_is_no_reason_not_to_go_on() {
        let said =
            changed(Some(&serde_json::json!({"training": {"flavour": 3}})), &Config::default()).unwrap();
        assert!(
            said.as_ref().is_some_and(|said| said.contains("flavour") && said.contains("not known")),
            "{said:?}"
        );
    }
}
