//! Speed on one core of what every byte goes through: SHA-256, CRC-32 and fingerprints, beside a copy of the same bytes.
//!
//! `cargo bench -p dcp --bench hashing`

use std::{hint::black_box, time::Instant};

use dcp::{
    digest::{Crc32, Sha256Digest},
    fingerprint::{ElementWidth, Engine, FingerprintSum},
};

const LEN: usize = 256 << 20;
const PIECE: usize = 1 << 20;

fn main() {
    let bytes: Vec<u8> =
        (0..LEN / 4).flat_map(|n| (n as u64).wrapping_mul(0x9e37_79b9).to_le_bytes()[..4].to_vec()).collect();
    let mut copy = vec![0; PIECE];
    report("memcpy", &bytes, |piece| {
        copy.copy_from_slice(piece);
        black_box(&mut copy);
    });
    report("sha256", &bytes, |piece| {
        black_box(Sha256Digest::of(piece));
    });
    report("crc32", &bytes, |piece| {
        black_box(Crc32::of(piece));
    });
    for engine in Engine::available() {
        for width in [ElementWidth::One, ElementWidth::Two, ElementWidth::Four, ElementWidth::Eight] {
            let mut sum = FingerprintSum::default();
            let name = format!("fingerprint {:?} {} B", engine.kind(), width.bytes());
            report(&name, &bytes, |piece| {
                if let Err(error) = sum.add_strided_by(engine, width, 0, 1, piece) {
                    eprintln!("{error}");
                }
            });
            black_box(sum);
        }
    }
}

/// The fastest of many pieces: what a core does while nobody else wants it.
fn report(name: &str, bytes: &[u8], mut work: impl FnMut(&[u8])) {
    let begin = Instant::now();
    let mut best = f64::INFINITY;
    for piece in bytes.chunks_exact(PIECE) {
        let start = Instant::now();
        work(black_box(piece));
        best = best.min(start.elapsed().as_secs_f64());
        if begin.elapsed().as_millis() > 500 {
            break;
        }
    }
    println!("{name:28} {:6.2} GB/s", PIECE as f64 / best / 1e9);
}
