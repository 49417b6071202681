//! The greedy continuation: the likeliest token, again and again.

use tch::{Kind, Tensor};

use super::Trained;
use crate::{Error, Result};

/// A text and what the model makes of it.
#[derive(Debug)]
pub struct Continuation {
    /// Logits of the prompt, `[tokens, vocabulary]`, f32.
    pub logits: Tensor,
    /// The tokens behind it.
    pub ids: Vec<i64>,
}

impl Trained {
    /// Continues `prompt` by `tokens` tokens. Each takes a pass over the whole text.
    ///
    /// # Errors
    /// As [`Trained::logits`], for the text with its continuation.
    pub fn greedy(&self, prompt: &[i64], tokens: usize) -> Result<Continuation> {
        // The last token that is made is not read.
        self.check(prompt.len().saturating_add(tokens.saturating_sub(1)))?;
        let logits = self.logits(prompt)?.f_to_kind(Kind::Float)?;
        let mut text = prompt.to_vec();
        let mut last = logits.shallow_clone();
        for made in 0..tokens {
            if made > 0 {
                last = self.logits(&text)?;
            }
            text.push(likeliest(&last)?);
        }
        Ok(Continuation { logits, ids: text.split_off(prompt.len()) })
    }
}

fn likeliest(logits: &Tensor) -> Result<i64> {
    let rows = logits.size().first().copied().unwrap_or(0);
    let last = logits.f_select(0, rows - 1)?;
    if last.f_isfinite()?.f_all()?.f_int64_value(&[])? == 0 {
        return Err(Error::new(crate::ErrorKind::NotFinite, "the model's logits are not finite")
            .hint("an earlier checkpoint may be sound: name it by its revision, as in step:100"));
    }
    Ok(last.f_argmax(-1, false)?.f_int64_value(&[])?)
}
