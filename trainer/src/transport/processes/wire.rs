//! The header of a message on the wire: a fixed number of words, so that the receiver can post a buffer of the right
//! size before it knows anything. Shapes that don't fit follow as a second message of the stated length.
//!
//! Invariant: nothing is believed before it is checked: words that no sender of ours would write are refused, and what a
//! header claims never makes the receiver allocate more than [`MOST_WORDS`] before the header is compared with the
//! expected one.

use tch::Kind as Dtype;

use crate::transport::{DTYPES, Header, Kind};

/// Words of the fixed header.
pub(super) const WORDS: usize = 32;
/// Words of shapes that fit into it.
const INLINE: usize = WORDS - HEAD;
/// Words before the shapes.
const HEAD: usize = 9;
/// Most words of shapes: a million extents.
const MOST_WORDS: usize = 1 << 20;
/// Says "a header, version 3".
const MAGIC: i64 = 0x636b_7074_6864_7233;

/// What goes before the tensors of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Label {
    /// What it carries.
    pub(super) header: Header,
    /// Its number among the messages of its sender to its receiver.
    pub(super) number: u64,
    /// How many elements of each tensor follow: fewer than its shape says where the message is cut short.
    pub(super) counts: Vec<i64>,
}

/// A header as it goes over the wire.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Packed {
    /// The first message.
    pub(super) fixed: [i64; WORDS],
    /// The second one; empty when all is in the first.
    pub(super) rest: Vec<i64>,
}

/// Writes a header, or says why it can't be.
pub(super) fn pack(label: &Label) -> Result<Packed, String> {
    let Label { header, number, counts } = label;
    let mut words = Vec::new();
    for (shape, count) in header.shapes.iter().zip(counts) {
        words.push(word(shape.len())?);
        words.extend(shape);
        words.push(*count);
    }
    if words.len() > MOST_WORDS {
        return Err(format!("its shapes take {} words, and {MOST_WORDS} are allowed", words.len()));
    }
    let kind = match header.kind {
        Kind::Forward => 0,
        Kind::Backward => 1,
    };
    let dtype = DTYPES.iter().position(|known| *known == header.dtype);
    let dtype = dtype.ok_or_else(|| format!("{:?} can't be sent", header.dtype))?;
    let head: [i64; HEAD] = [
        MAGIC,
        header.step.cast_signed(),
        word(header.stage)?,
        word(header.microbatch)?,
        kind,
        word(header.shapes.len())?,
        word(words.len())?,
        number.cast_signed(),
        word(dtype)?,
    ];
    let inline = if words.len() <= INLINE { &words[..] } else { &[] };
    let mut fixed = [0; WORDS];
    fixed.iter_mut().zip(head.iter().chain(inline)).for_each(|(to, from)| *to = *from);
    let rest = if words.len() <= INLINE { Vec::new() } else { words };
    Ok(Packed { fixed, rest })
}

/// How many words follow in a second message.
pub(super) fn rest(fixed: &[i64; WORDS]) -> Result<usize, String> {
    let [magic, .., _] = *fixed;
    if magic != MAGIC {
        return Err(format!("it begins with {magic:#x}"));
    }
    let words = number(fixed[6], "words of shapes")?;
    match words {
        0..=INLINE => Ok(0),
        _ if words <= MOST_WORDS => Ok(words),
        _ => Err(format!("it announces {words} words of shapes, and {MOST_WORDS} are allowed")),
    }
}

/// Reads a header of which `rest` is the second message.
pub(super) fn unpack(fixed: &[i64; WORDS], rest: &[i64]) -> Result<Label, String> {
    let [_, step, stage, microbatch, kind, tensors, words, count_, dtype, inline @ ..] = fixed;
    let kind = match kind {
        0 => Kind::Forward,
        1 => Kind::Backward,
        other => return Err(format!("its kind is {other}")),
    };
    let count = number(*words, "words of shapes")?;
    let words = if count <= INLINE { inline.get(..count) } else { Some(rest) };
    let words = words.filter(|words| words.len() == count).ok_or("its shapes are cut short")?;
    let (shapes, counts) = shapes(words, number(*tensors, "tensors")?)?;
    let (stage, microbatch) = (number(*stage, "stage")?, number(*microbatch, "microbatch")?);
    let known: Option<&Dtype> = DTYPES.get(number(*dtype, "dtype")?);
    let dtype = *known.ok_or_else(|| format!("its dtype is {dtype}"))?;
    let header = Header { step: step.cast_unsigned(), stage, microbatch, kind, shapes, dtype };
    Ok(Label { header, number: count_.cast_unsigned(), counts })
}

type Shapes = (Vec<Vec<i64>>, Vec<i64>);

fn shapes(mut words: &[i64], tensors: usize) -> Result<Shapes, String> {
    let (mut found, mut counts) = (Vec::new(), Vec::new());
    while let Some((rank, others)) = words.split_first() {
        let dimensions = number(*rank, "dimensions")?;
        let (shape, others) = others.split_at_checked(dimensions).ok_or("a shape is cut short")?;
        let (count, others) = others.split_first().ok_or("a shape is cut short")?;
        if shape.iter().any(|extent| *extent < 0) {
            return Err(format!("a shape is {shape:?}"));
        }
        found.push(shape.to_vec());
        counts.push(*count);
        words = others;
    }
    if found.len() == tensors {
        Ok((found, counts))
    } else {
        Err(format!("{} shapes for {tensors} tensors", found.len()))
    }
}

fn word(value: usize) -> Result<i64, String> {
    i64::try_from(value).map_err(|_| format!("{value} does not fit into a word"))
}

fn number(value: i64, what: &str) -> Result<usize, String> {
    usize::try_from(value).map_err(|_| format!("its {what} are {value}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_label_comes_back_as_it_was(
            step: u64,
            number: u64,
            stage in 0_usize..99,
            microbatch in 0_usize..9999,
            forward: bool,
            dtype in 0_usize..DTYPES.len(),
            shapes in prop::collection::vec((prop::collection::vec(0_i64..1 << 40, 0..6), any::<i64>()), 0..12),
        ) {
            let kind = if forward { Kind::Forward } else { Kind::Backward };
            let (shapes, counts) = shapes.into_iter().unzip();
            let header = Header { step, stage, microbatch, kind, shapes, dtype: DTYPES[dtype] };
            let label = Label { header, number, counts };
            let packed = pack(&label).unwrap();
            prop_assert_eq!(rest(&packed.fixed).unwrap(), packed.rest.len());
            prop_assert_eq!(unpack(&packed.fixed, &packed.rest).unwrap(), label);
        }

        #[test]
        fn any_words_are_read_or_refused(
            tail in prop::collection::vec(-3_i64..40, WORDS - 1),
            after in prop::collection::vec(-1_i64..4, 0..50),
        ) {
            let mut fixed = [MAGIC; WORDS];
            fixed[1..].copy_from_slice(&tail);
            if rest(&fixed).is_ok_and(|words| words == after.len())
                && let Ok(label) = unpack(&fixed, &after)
            {
                prop_assert_eq!(label.header.shapes.len(), usize::try_from(fixed[5]).unwrap());
            }
        }
    }

    #[test]
    fn other_bytes_are_no_header() {
        assert!(rest(&[0; WORDS]).unwrap_err().contains("begins with"));
        let mut fixed = [MAGIC; WORDS];
        fixed[6] = i64::MAX;
        assert!(rest(&fixed).unwrap_err().contains("allowed"));
    }
}
