//! Blocks to their stored bytes and back; frames that lie, of every kind, by their reason.

use proptest::prelude::*;

use super::*;
use crate::digest::{BLOCK_LEN, BlockCodec};

const CODED: [BlockCodec; 4] =
    [BlockCodec::Zstd, BlockCodec::Planes2, BlockCodec::Planes4, BlockCodec::Planes8];

fn encode(codec: BlockCodec, bytes: &[u8]) -> (BlockCodec, Vec<u8>) {
    let mut encoder = Encoder::new().unwrap();
    let (codec, stored) = encoder.encode(codec, bytes).unwrap();
    (codec, stored.to_vec())
}

fn decode(codec: BlockCodec, stored: &[u8], len: usize) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; len];
    let done = Decoder::new().unwrap().decode(codec, stored, &mut bytes);
    done.map(|()| bytes).map_err(|error| error.to_string())
}

/// Numbers as weights have them: exponents near each other, mantissas of any kind.
fn weights(count: u32) -> Vec<u8> {
    let noise = |n: u32| n.wrapping_mul(2_654_435_761).rotate_left(13).wrapping_mul(0x9e37_79b9);
    #[expect(clippy::cast_precision_loss, reason = "any float will do")]
    let weight = |n: u32| (noise(n) as f32 / u32::MAX as f32 - 0.5) * 0.04;
    (0..count).flat_map(|n| weight(n).to_le_bytes()).collect()
}

#[test]
fn planes_of_floats_shrink_and_zstd_alone_finds_nothing_in_them() {
    let bytes = weights(1 << 18);
    let (codec, stored) = encode(BlockCodec::Planes4, &bytes);
    assert_eq!(codec, BlockCodec::Planes4);
    assert!(stored.len() < bytes.len() * 9 / 10, "{}", stored.len());
    assert_eq!(decode(codec, &stored, bytes.len()).unwrap(), bytes);
    assert!(encode(BlockCodec::Zstd, &bytes).1.len() > stored.len());
}

#[test]
fn a_block_that_gains_too_little_is_stored_plain() {
    let mut noise = 1_u64;
    let random: Vec<u8> = (0..100_000)
        .map(|_| {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            noise.to_le_bytes()[7]
        })
        .collect();
    for codec in CODED {
        assert_eq!(encode(codec, &random), (BlockCodec::None, random.clone()), "{codec:?}");
        assert_eq!(encode(codec, b"7"), (BlockCodec::None, b"7".to_vec()));
        // Zeros make up less than one byte in 32 of the one, and more of the other.
        let with_zeros = |zeros: usize| [random.as_slice(), &vec![0; zeros]].concat();
        assert_eq!(encode(codec, &with_zeros(2_000)).0, BlockCodec::None);
        assert_eq!(encode(codec, &with_zeros(5_000)).0, codec);
    }
}

#[test]
fn the_same_block_gives_the_same_stored_bytes_whatever_was_coded_before() {
    let (one, other) = (weights(5000), vec![3; 70_000]);
    let mut encoder = Encoder::new().unwrap();
    let mut stored = |bytes: &[u8]| encoder.encode(BlockCodec::Planes4, bytes).unwrap().1.to_vec();
    let (first, _, again) = (stored(&one), stored(&other), stored(&one));
    assert_eq!(first, again);
    assert_eq!(first, encode(BlockCodec::Planes4, &one).1);
}

#[test]
fn blocks_of_the_longest_length_and_of_odd_ones_read_back() {
    for codec in CODED {
        for len in [BLOCK_LEN as usize, BLOCK_LEN as usize - 1, 4097, 129, 65] {
            let bytes: Vec<u8> = (0..len).map(|at| u8::try_from(at / 300 % 7).unwrap()).collect();
            let (kept, stored) = encode(codec, &bytes);
            assert_eq!(kept, codec, "{len}");
            assert_eq!(decode(codec, &stored, len).unwrap(), bytes);
        }
    }
}

#[test]
fn frames_that_lie_are_refused_and_why_is_told() {
    let bytes = vec![5; 50_000];
    let frame = zstd::bulk::compress(&bytes, 1).unwrap();
    let refused = |stored: &[u8], len: usize| {
        let told = CODED.map(|codec| decode(codec, stored, len).unwrap_err());
        assert!(told.iter().all(|it| *it == told[0]), "{told:?}");
        told[0].clone()
    };
    assert!(decode(BlockCodec::Zstd, &frame, 50_000).is_ok());
    for (what, stored, len, told) in [
        ("shorter than it says", frame.clone(), 50_001, "another length than the block"),
        ("longer than it says: a bomb", frame.clone(), 10, "another length than the block"),
        ("nothing", Vec::new(), 10, "no zstd frame"),
        ("something else", vec![0; 40], 10, "no zstd frame"),
        ("skippable", skippable(16), 16, "no zstd frame"),
        ("followed by bytes", [&frame[..], &[0]].concat(), 50_000, "behind the end"),
        ("followed by a frame", [&frame[..], &frame].concat(), 50_000, "behind the end"),
        ("followed by a skippable one", [&frame[..], &skippable(8)].concat(), 50_000, "behind the end"),
        ("cut short", frame[..frame.len() - 1].to_vec(), 50_000, "cut short or damaged"),
        ("of no length", without_length(&bytes), 50_000, "doesn't say its length"),
        (
            "longer than a block",
            zstd::bulk::compress(&vec![0; 2 << 20], 1).unwrap(),
            2 << 20,
            "more than 1 MiB",
        ),
        ("of a dictionary", with_dictionary(&frame), 50_000, "needs a dictionary"),
    ] {
        let found = refused(&stored, len);
        assert!(found.contains(told), "{what}: {found}");
    }
    assert!(decode(BlockCodec::None, b"abc", 4).unwrap_err().contains("another length"));
}

/// A frame that decoders pass over.
fn skippable(len: u8) -> Vec<u8> {
    [&[0x50, 0x2a, 0x4d, 0x18, len, 0, 0, 0][..], &vec![0; usize::from(len)]].concat()
}

fn without_length(bytes: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(bytes, 1).unwrap()
}

/// The frame with a dictionary's number in its header: one byte more behind the descriptor (and the window's, if any).
fn with_dictionary(frame: &[u8]) -> Vec<u8> {
    let (mut with, single) = (frame.to_vec(), frame[4] & 0x20 != 0);
    with[4] |= 1;
    with.insert(if single { 5 } else { 6 }, 42);
    with
}

proptest! {
    #[test]
    fn any_block_reads_back(
        codec in prop::sample::select(CODED.to_vec()),
        runs in prop::collection::vec((any::<u8>(), 1_usize..3000), 1..12),
        noise in prop::collection::vec(any::<u8>(), 0..3000),
    ) {
        let mut bytes: Vec<u8> = runs.iter().flat_map(|&(byte, count)| vec![byte; count]).collect();
        bytes.extend(noise);
        let (kept, stored) = encode(codec, &bytes);
        prop_assert!(kept == BlockCodec::None || stored.len() < bytes.len());
        prop_assert_eq!(decode(kept, &stored, bytes.len()).unwrap(), bytes);
    }

    #[test]
    fn a_changed_frame_is_refused_or_decodes_to_as_many_bytes_and_never_panics(
        codec in prop::sample::select(CODED.to_vec()), at in any::<prop::sample::Index>(), bit in 0_u32..8,
    ) {
        let bytes: Vec<u8> = (0..20_000_u32).map(|n| (n / 50 % 9).to_le_bytes()[0]).collect();
        let (kept, mut stored) = encode(codec, &bytes);
        prop_assert_eq!(kept, codec);
        let at = at.index(stored.len());
        stored[at] ^= 1_u8 << bit;
        // zstd has no checksum here: SHA-256 of the stored bytes is what finds such a flip. Here it must only do no harm.
        if let Ok(found) = decode(codec, &stored, bytes.len()) {
            prop_assert_eq!(found.len(), bytes.len());
        }
    }

    #[test]
    fn bytes_from_anywhere_are_refused_or_decode_to_as_many_as_asked_for(
        codec in prop::sample::select(CODED.to_vec()), mut bytes in prop::collection::vec(any::<u8>(), 0..200),
        magic in any::<bool>(), len in 0_usize..3000,
    ) {
        if magic && bytes.len() > 4 {
            bytes[..4].copy_from_slice(&[0x28, 0xb5, 0x2f, 0xfd]);
        }
        if let Ok(found) = decode(codec, &bytes, len) {
            prop_assert_eq!(found.len(), len);
        }
    }
}
