//! Names in the folder of an attempt. Readers go by the manifest and never parse them.

use crate::{
    Error, Result,
    commit::{DirName, State},
    digest::Sha256Digest,
    manifest::manifest_digest,
    store::{Nonce, ObjectPath, object_path},
};

/// Hexadecimal digits of a folder's name that tell attempts at one step apart.
const DIGITS: usize = 24;

/// Times that one plan can be retired and written again.
const GENERATIONS: u32 = 1000;

/// The folder of the attempt with this identity: the same for the same identity, until it was retired; what was retired
/// may be deleted at any time, so what comes after it goes into the next folder.
///
/// # Errors
/// `Conflict` when it was retired a thousand times.
pub(crate) fn attempt_of(state: &State, step: u64, identity: &Sha256Digest) -> Result<DirName> {
    let first = first_name(step, identity);
    let name = |generation: u32| match generation {
        1 => first.clone(),
        later => format!("{first}-{later}"),
    };
    for generation in 1..=GENERATIONS {
        let dir: DirName = name(generation).parse().map_err(|error| Error::internal(format!("{error}")))?;
        if !state.retired.contains_key(&dir) && !state.condemned.contains_key(&dir) {
            return Ok(dir);
        }
    }
    Err(Error::new(crate::ErrorKind::Conflict, format!("{} was retired {GENERATIONS} times", name(1)))
        .hint("collect the garbage of this root"))
}

fn first_name(step: u64, identity: &Sha256Digest) -> String {
    let digits: String = identity.to_string().chars().take(DIGITS).collect();
    format!("step-{step:08}-{digits}")
}

/// Whether a folder is one of those that [`attempt_of`] gives this identity, at any time.
pub(crate) fn is_attempt_of(dir: &DirName, step: u64, identity: &Sha256Digest) -> bool {
    let rest = dir.as_str().strip_prefix(&first_name(step, identity));
    rest.is_some_and(|rest| rest.is_empty() || rest.strip_prefix('-').is_some_and(decimal))
}

fn decimal(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether a folder is named as [`attempt_of`] names them: what a collection of garbage may take for a stopped save.
pub(crate) fn is_attempt_name(name: &str) -> bool {
    let hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    let Some((step, rest)) = name.strip_prefix("step-").and_then(|rest| rest.split_once('-')) else {
        return false;
    };
    let (digits, generation) = rest.split_once('-').map_or((rest, None), |(digits, it)| (digits, Some(it)));
    step.len() >= 8
        && decimal(step)
        && digits.len() == DIGITS
        && hex(digits)
        && generation.is_none_or(decimal)
}

/// Whether the folder of an attempt may hold an object of that name.
pub(crate) fn is_attempt_object(within: &str) -> bool {
    let folders = ["data/", "blocks/", "parts/"];
    manifest_digest(within).is_some() || folders.iter().any(|folder| within.starts_with(folder))
}

/// Names of one file of an attempt, relative to its folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileNames {
    /// `r00003-0001`: what it is in the layout.
    pub(super) key: String,
    /// Whether it is compressed: then it isn't a file that a reader of safetensors should take for one.
    coded: bool,
}

impl FileNames {
    /// The `number`th file of a writer.
    pub(super) fn of_rank(rank: u32, number: usize) -> Self {
        Self { key: format!("r{rank:05}-{number:04}"), coded: false }
    }

    /// The `number`th group of boxes of a writer that may be found unchanged.
    pub(super) fn of_group(rank: u32, number: usize) -> Self {
        Self { key: format!("r{rank:05}-s{number:04}"), coded: false }
    }

    /// A file of boxes of a group that were not found unchanged. Which these are is known only when they are put, so that each
    /// such file has a nonce of its own.
    pub(super) fn rest_of(group: &Self, nonce: Nonce) -> Self {
        Self { key: format!("{}-{nonce}", group.key), coded: false }
    }

    /// The file of large objects.
    pub(super) fn of_objects() -> Self {
        Self { key: "objects".to_owned(), coded: false }
    }

    /// Sets whether it is compressed.
    pub(super) fn coded(self, coded: bool) -> Self {
        Self { coded, ..self }
    }

    /// The note of what a rank holds and does not write.
    pub(super) fn held(rank: u32) -> String {
        format!("parts/r{rank:05}-held.json")
    }

    /// The blob, by the writer's nonce.
    pub(super) fn blob(&self, nonce: Nonce) -> String {
        format!("data/{}-{nonce}{}", self.key, self.extension())
    }

    /// Whether `path` is a name of this blob, by anyone's nonce.
    pub(super) fn is_blob(&self, path: &str) -> bool {
        self.nonce(path).is_some()
    }

    /// The block table of a blob.
    pub(super) fn table(&self, blob: &str) -> Option<String> {
        self.nonce(blob).map(|nonce| format!("blocks/{}-{nonce}.blocks", self.key))
    }

    /// The note that the file is whole.
    pub(super) fn part(&self) -> String {
        format!("parts/{}.json", self.key)
    }

    fn nonce(&self, blob: &str) -> Option<Nonce> {
        let rest = blob.strip_prefix("data/")?.strip_prefix(self.key.as_str())?;
        rest.strip_prefix('-')?.strip_suffix(self.extension())?.parse().ok()
    }

    const fn extension(&self) -> &'static str {
        if self.coded { ".coded" } else { ".safetensors" }
    }
}

/// Whether a name below an attempt's folder is that of a blob, a block table or a note of a writer.
pub(crate) fn is_piece(name: &str) -> bool {
    let with_nonce = |rest: &str| rest.rsplit_once('-').is_some_and(|(key, end)| is_key(key) && is_end(end));
    match name.split_once('/') {
        // A copy of sealed files keeps their endings.
        Some(("data", file)) => with_nonce(file.split_once('.').map_or(file, |(rest, _)| rest)),
        Some(("blocks", file)) => file.strip_suffix(".blocks").is_some_and(with_nonce),
        Some(("parts", file)) => {
            let is_note =
                |key: &str| is_key(key) || key == "whose" || key.strip_suffix("-held").is_some_and(is_rank);
            file.strip_suffix(".json").is_some_and(is_note)
        }
        _ => false,
    }
}

/// A nonce, or the digits by which a seal names what it writes.
fn is_end(text: &str) -> bool {
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.parse::<Nonce>().is_ok() || (text.len() == 16 && text.bytes().all(hex))
}

/// Whether a text is what a file is in a layout: `objects`; the `c00012` of a copy, the `f00012` of a seal; the `r00003-0001`, or `r00003-s0001`, of a writer,
/// and that with the nonce of what was written of a group.
fn is_key(key: &str) -> bool {
    let of_group = |rest: &str| {
        let (number, nonce) =
            rest.split_once('-').map_or((rest, None), |(number, nonce)| (number, Some(nonce)));
        digits(number, 4) && nonce.is_none_or(|nonce| nonce.parse::<Nonce>().is_ok())
    };
    let of_rank = |(rank, number): (&str, &str)| {
        is_rank(rank) && (digits(number, 4) || number.strip_prefix('s').is_some_and(of_group))
    };
    key == "objects"
        || key.strip_prefix(['c', 'f']).is_some_and(|file| digits(file, 5))
        || key.split_once('-').is_some_and(of_rank)
}

fn is_rank(text: &str) -> bool {
    text.strip_prefix('r').is_some_and(|rank| digits(rank, 5))
}

/// A number that is filled up to `least` digits.
fn digits(text: &str, least: usize) -> bool {
    text.len() >= least && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The object `name` of an attempt, below the root.
pub(super) fn below(dir: &DirName, name: &str) -> Result<ObjectPath> {
    Ok(object_path(&format!("{dir}/{name}"))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::Seq;

    #[test]
    fn the_folder_of_a_plan_changes_only_when_it_was_retired() {
        let (mut state, identity) = (State::default(), Sha256Digest::of(b"plan"));
        let first = attempt_of(&state, 1000, &identity).unwrap();
        assert_eq!(first, attempt_of(&state, 1000, &identity).unwrap());
        assert!(first.as_str().starts_with("step-00001000-"), "{first}");
        state.retired.insert(first.clone(), Seq::FIRST);
        let second = attempt_of(&state, 1000, &identity).unwrap();
        assert_eq!(second.as_str(), format!("{first}-2"));
        state.condemned.insert(second.clone(), Seq::FIRST);
        let third = attempt_of(&state, 1000, &identity).unwrap();
        assert_eq!(third.as_str(), format!("{first}-3"));
        assert!([&first, &second, &third].into_iter().all(|dir| is_attempt_of(dir, 1000, &identity)));
        assert!(!is_attempt_of(&first, 1001, &identity));
        assert!(!is_attempt_of(&first, 1000, &Sha256Digest::of(b"another")));
    }

    #[test]
    fn only_folders_named_as_attempts_are_can_be_stopped_saves() {
        let mut state = State::default();
        for step in [0, 7, 123_456_789_012] {
            for _ in 0..2 {
                let dir = attempt_of(&state, step, &Sha256Digest::of(b"plan")).unwrap();
                assert!(is_attempt_name(dir.as_str()), "{dir}");
                state.retired.insert(dir, Seq::FIRST);
            }
        }
        let digits = "0123456789abcdef01234567";
        for name in [
            "step-1000",
            "step-00001000",
            "step-00001000-",
            "notes",
            "commits",
            "step-final",
            "steps-00001000-x",
        ] {
            assert!(!is_attempt_name(name), "{name}");
            assert!(!is_attempt_name(&format!("{name}-{digits}-x")), "{name}");
        }
        assert!(!is_attempt_name(&format!("step-00001000-{}", digits.to_uppercase())));
        assert!(!is_attempt_name(&format!("my-step-00001000-{digits}")));
        assert!(is_attempt_object("data/x") && is_attempt_object("parts/r00000-0001.json"));
        assert!(!is_attempt_object("notes.txt") && !is_attempt_object("manifest-1.sqlite"));
    }

    #[test]
    fn names_of_a_blob_belong_to_its_key_alone() {
        let (names, nonce) = (FileNames::of_rank(3, 1), Nonce::from_bits(7));
        let blob = names.blob(nonce);
        assert!(names.is_blob(&blob) && !FileNames::of_rank(3, 2).is_blob(&blob));
        assert!(!names.is_blob("data/r00003-0001-../../x.safetensors"));
        assert_eq!(names.table(&blob), Some(format!("blocks/r00003-0001-{nonce}.blocks")));
        let group = FileNames::of_group(3, 1);
        assert!(
            is_piece("parts/whose.json") && is_piece(&FileNames::held(123_456)) && is_piece(&group.part())
        );
        assert!(is_piece(&format!("data/c00012-{nonce}.distcp")), "a copy of a sealed file");
        for names in [
            FileNames::of_rank(3, 1),
            FileNames::of_rank(123_456, 12_345),
            FileNames::of_rank(3, 1).coded(true),
            FileNames::rest_of(&group, nonce),
            FileNames::rest_of(&group, nonce).coded(true),
            FileNames::of_objects(),
        ] {
            let blob = names.blob(nonce);
            for piece in [names.table(&blob).unwrap(), names.part(), blob] {
                assert!(is_piece(&piece), "{piece}");
            }
        }
        assert!(is_piece("blocks/f00003-0123456789abcdef.blocks"), "of a seal");
        assert!(is_piece("data/objects-0123456789abcdef.safetensors"), "of a seal");
        for other in [
            "data/c00012.pt",
            "data/model.safetensors",
            "parts/readme.json",
            "blocks/x.blocks",
            "data/r1-2.safetensors",
            "data",
        ] {
            assert!(!is_piece(other), "{other}");
        }
    }
}
