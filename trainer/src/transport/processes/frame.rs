//! What a member says before, or instead of, the data of a collective: which operation, for what, how many bytes; and the
//! bytes themselves where they are few. All frames of a group have one size, so gathering them is safe whatever the
//! members are at, and what does not agree is an error in words instead of a message too long for its buffer.

use tch::Kind as Dtype;

use crate::transport::Purpose;

const HEAD: usize = 256;
const MAGIC: [u8; 4] = *b"ckf1";
const TEXT: usize = HEAD - 36;
/// Bytes of data that a frame carries at least.
const CARRIES: usize = 4096;

/// Operations of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    AllGather,
    Exchange,
    AllReduce,
    AllGatherBytes,
}

/// What one member says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) operation: Operation,
    pub(super) dtype: Dtype,
    /// As much of the purpose as fits; `digest` is of all of it.
    pub(super) purpose: String,
    pub(super) digest: u64,
    /// Bytes of this member's part, all of them.
    pub(super) length: usize,
    /// The part itself, when it is small.
    pub(super) part: Option<Vec<u8>>,
    /// Bytes for each member, for an exchange.
    pub(super) lengths: Vec<usize>,
}

/// The size of the frames of a group, and what they can carry.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    members: usize,
}

impl Operation {
    const ALL: [Self; 4] = [Self::AllGather, Self::Exchange, Self::AllReduce, Self::AllGatherBytes];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::AllGather => "all_gather",
            Self::Exchange => "exchange",
            Self::AllReduce => "all_reduce",
            Self::AllGatherBytes => "all_gather_bytes",
        }
    }
}

impl Frame {
    pub(super) fn new(operation: Operation, dtype: Dtype, purpose: &Purpose, length: usize) -> Self {
        let (digest, purpose) = (digest(purpose.0.as_bytes()), shortened(&purpose.0));
        Self { operation, dtype, purpose, digest, length, part: None, lengths: Vec::new() }
    }

    /// Whether two members are at the same collective.
    pub(super) fn agrees(&self, other: &Self) -> bool {
        (self.operation, self.dtype, self.digest) == (other.operation, other.dtype, other.digest)
    }

    /// What it is, in words.
    pub(super) fn act(&self) -> String {
        format!("{} of {:?} ({})", self.operation.name(), self.dtype, self.purpose)
    }
}

impl Layout {
    pub(super) const fn new(members: usize) -> Self {
        Self { members }
    }

    /// Bytes of a part that a frame carries.
    pub(super) const fn carries(self) -> usize {
        CARRIES
    }

    /// Bytes of a frame.
    pub(super) const fn size(self) -> usize {
        HEAD + self.members * 8 + CARRIES
    }

    pub(super) fn write(self, frame: &Frame) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.size());
        bytes.extend(MAGIC);
        let operation = Operation::ALL.iter().position(|known| *known == frame.operation).unwrap_or_default();
        let dtype = CODES.iter().position(|known| *known == frame.dtype).unwrap_or_default();
        bytes.extend([operation, dtype, usize::from(frame.part.is_some()), 0].map(low_byte));
        bytes.extend(frame.digest.to_le_bytes());
        bytes.extend(word(frame.length));
        bytes.extend(word(frame.lengths.len()));
        bytes.extend(&word(frame.purpose.len())[..4]);
        bytes.extend(frame.purpose.as_bytes());
        bytes.resize(HEAD, 0);
        frame.lengths.iter().for_each(|length| bytes.extend(word(*length)));
        bytes.resize(HEAD + self.members * 8, 0);
        bytes.extend(frame.part.iter().flatten());
        bytes.resize(self.size(), 0);
        bytes
    }

    /// Reads a frame, or says why it is none.
    pub(super) fn read(self, bytes: &[u8]) -> Result<Frame, &'static str> {
        let mut rest = bytes;
        if bytes.len() != self.size() || take(&mut rest, 4)? != MAGIC {
            return Err("it does not begin as a frame");
        }
        let [operation, dtype, carried, _] = *take(&mut rest, 4)? else { return Err("it is cut short") };
        let operation = *Operation::ALL.get(usize::from(operation)).ok_or("it names no operation")?;
        let dtype = *CODES.get(usize::from(dtype)).ok_or("it names no dtype")?;
        let digest = u64::from_le_bytes(take(&mut rest, 8)?.try_into().map_err(|_| "it is cut short")?);
        let (length, counts) = (number(take(&mut rest, 8)?)?, number(take(&mut rest, 8)?)?);
        let text = number(take(&mut rest, 4)?)?;
        if text > TEXT || counts > self.members || (carried != 0 && length > CARRIES) {
            return Err("its counts are too large");
        }
        let purpose = String::from_utf8_lossy(take(&mut rest, text)?).into_owned();
        let body = &bytes[HEAD..];
        let lengths = body.chunks_exact(8).take(counts).map(number).collect::<Result<_, _>>()?;
        let part = body.get(self.members * 8..).and_then(|data| data.get(..length)).filter(|_| carried != 0);
        let part = part.map(<[u8]>::to_vec);
        Ok(Frame { operation, dtype, purpose, digest, length, part, lengths })
    }
}

/// By the byte that stands for each.
const CODES: [Dtype; 5] = [Dtype::Uint8, Dtype::Float, Dtype::Int64, Dtype::BFloat16, Dtype::Half];

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Result<&'a [u8], &'static str> {
    let (found, after) = rest.split_at_checked(count).ok_or("it is cut short")?;
    *rest = after;
    Ok(found)
}

fn number(bytes: &[u8]) -> Result<usize, &'static str> {
    let mut whole = [0; 8];
    whole.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    usize::try_from(u64::from_le_bytes(whole)).map_err(|_| "its counts are too large")
}

fn word(value: usize) -> [u8; 8] {
    // No platform of Rust's has a usize of more than 64 bits.
    u64::try_from(value).unwrap_or(u64::MAX).to_le_bytes()
}

fn low_byte(value: usize) -> u8 {
    u8::try_from(value).unwrap_or(u8::MAX)
}

/// FNV-1a: cheap, and only has to tell apart what a program says, not what an adversary does.
fn digest(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |state, byte| (state ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn shortened(text: &str) -> String {
    text.chars()
        .scan(0, |length, char| {
            *length += char.len_utf8();
            (*length <= TEXT).then_some(char)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(purpose: &str) -> Frame {
        Frame::new(Operation::Exchange, Dtype::Float, &Purpose(purpose.to_owned()), 3)
    }

    #[test]
    fn a_frame_comes_back_as_it_was() {
        let layout = Layout::new(4);
        let sent = Frame { part: Some(vec![1, 2, 3]), lengths: vec![0, 1, 2, 0], ..frame("layer 3, W") };
        let bytes = layout.write(&sent);
        assert_eq!(bytes.len(), layout.size());
        assert_eq!(layout.read(&bytes).unwrap(), sent);
        let sent = Frame { length: 1 << 40, ..frame("") };
        assert_eq!(layout.read(&layout.write(&sent)).unwrap(), sent);
    }

    #[test]
    fn long_purposes_that_differ_at_their_end_do_not_agree() {
        let (one, two) = (frame(&format!("{}1", "ü".repeat(400))), frame(&format!("{}2", "ü".repeat(400))));
        assert_eq!(one.purpose, two.purpose);
        assert!(!one.agrees(&two) && one.agrees(&one.clone()));
        let layout = Layout::new(1);
        assert_eq!(layout.read(&layout.write(&one)).unwrap(), one);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(at in 0_usize..HEAD, bytes in prop::collection::vec(any::<u8>(), 1..40)) {
            let layout = Layout::new(2);
            let mut whole = layout.write(&frame("x"));
            whole.iter_mut().skip(at).zip(&bytes).for_each(|(to, from)| *to = *from);
            let _ = layout.read(&whole);
        }
    }
}
