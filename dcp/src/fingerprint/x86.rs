//! The sum in AES instructions of x86-64: AES-NI, VAES on 256-bit and VAES on 512-bit registers.
//!
//! Each width of register has a token ([`Aes`], [`Vaes256`], [`Vaes512`]) that only `detect` makes, and only where the
//! processor has every instruction that the code behind it was compiled with. So holding a token is the proof that the
//! unsafe calls below need.
//!
//! All three work alike: a block of data is loaded once, a byte shuffle puts each element into the upper half of its own
//! 128-bit lane beside its index, four rounds are run, the result is added to the accumulator. Elements of any
//! width take the same path; only the shuffle differs.
#![expect(
    unsafe_code,
    reason = "AES instructions are reached through target features, and data through raw loads"
)]

use core::arch::x86_64::{
    __m128i, __m256i, __m512i, _mm_add_epi64, _mm_aesenc_si128, _mm_extract_epi64, _mm_loadu_si128,
    _mm_or_si128, _mm_set_epi64x, _mm_setzero_si128, _mm_shuffle_epi8, _mm256_add_epi64,
    _mm256_aesenc_epi128, _mm256_broadcastsi128_si256, _mm256_castsi256_si128, _mm256_extracti128_si256,
    _mm256_loadu_si256, _mm256_or_si256, _mm256_set_epi64x, _mm256_setzero_si256, _mm256_shuffle_epi8,
    _mm512_add_epi64, _mm512_aesenc_epi128, _mm512_broadcast_i32x4, _mm512_castsi512_si256,
    _mm512_extracti64x4_epi64, _mm512_loadu_si512, _mm512_mask_permutexvar_epi8, _mm512_set_epi64,
    _mm512_setzero_si512,
};

use super::{engine::zero_extended, mix::ROUND_KEYS};

/// Proof that the processor has AES-NI.
#[derive(Clone, Copy)]
pub(super) struct Aes(());

/// Proof that the processor has VAES on 256-bit registers.
#[derive(Clone, Copy)]
pub(super) struct Vaes256(Aes);

/// Proof that the processor has VAES on 512-bit registers and byte permutes across them.
#[derive(Clone, Copy)]
pub(super) struct Vaes512(Aes);

impl Aes {
    pub(super) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("aes")
            && is_x86_feature_detected!("ssse3")
            && is_x86_feature_detected!("sse4.1"))
        .then_some(Self(()))
    }

    pub(super) fn lanes<const W: usize>(self, first: u64, step: u64, bytes: &[u8]) -> [u64; 2] {
        // SAFETY: the token exists only where `detect` found aes, ssse3 and sse4.1.
        unsafe { sum_128::<W>(first, step, bytes) }
    }
}

impl Vaes256 {
    pub(super) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("vaes") && is_x86_feature_detected!("avx2")).then(Aes::detect)?.map(Self)
    }

    pub(super) fn lanes<const W: usize>(self, first: u64, step: u64, bytes: &[u8]) -> [u64; 2] {
        let (body, rest) = bytes.split_at(bytes.len() / 16 * 16);
        // SAFETY: the token exists only where `detect` found vaes and avx2.
        let sum = unsafe { sum_256::<W>(first, step, body) };
        added(sum, self.0.lanes::<W>(index_after::<W>(first, step, body), step, rest))
    }
}

impl Vaes512 {
    pub(super) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("vaes")
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vbmi"))
        .then(Aes::detect)?
        .map(Self)
    }

    pub(super) fn lanes<const W: usize>(self, first: u64, step: u64, bytes: &[u8]) -> [u64; 2] {
        let (body, rest) = bytes.split_at(bytes.len() / 64 * 64);
        if body.is_empty() {
            return self.0.lanes::<W>(first, step, rest);
        }
        // SAFETY: the token exists only where `detect` found vaes, avx512f, avx512bw and avx512vbmi.
        let sum = unsafe { sum_512::<W>(first, step, body) };
        added(sum, self.0.lanes::<W>(index_after::<W>(first, step, body), step, rest))
    }
}

fn added(a: [u64; 2], b: [u64; 2]) -> [u64; 2] {
    [a[0].wrapping_add(b[0]), a[1].wrapping_add(b[1])]
}

fn index_after<const W: usize>(first: u64, step: u64, body: &[u8]) -> u64 {
    first.wrapping_add(step.wrapping_mul((body.len() / W) as u64))
}

/// `ORDER[n] = n`: bytes of a register by number.
const ORDER: [u8; 64] = {
    let mut order = [0; 64];
    let mut n = 1;
    while n < 64 {
        order[n] = order[n - 1] + 1;
        n += 1;
    }
    order
};

/// Controls that spread `W`-byte elements over 128-bit lanes, for elements of 1, 2, 4 and 8 bytes.
struct Spread<const W: usize>;

impl<const W: usize> Spread<W> {
    /// `ONE[k]`: element `k` of 16 bytes into the upper half, zeros elsewhere.
    const ONE: [[u8; 16]; 16] = {
        let mut controls = [[0x80; 16]; 16];
        let mut k = 0;
        while k < 16 / W {
            let mut byte = 0;
            while byte < W {
                controls[k][8 + byte] = ORDER[k * W + byte];
                byte += 1;
            }
            k += 1;
        }
        controls
    };

    /// `TWO[g]`: elements `2g, 2g + 1` of 16 bytes that stand in both lanes.
    const TWO: [[[u8; 16]; 2]; 8] = {
        let mut controls = [[[0x80; 16]; 2]; 8];
        let mut g = 0;
        while g < 8 / W {
            controls[g] = [Self::ONE[2 * g], Self::ONE[2 * g + 1]];
            g += 1;
        }
        controls
    };

    /// `FOUR[g]`: elements `4g … 4g + 3` of 64 bytes.
    const FOUR: [[u8; 64]; 16] = {
        let mut controls = [[0; 64]; 16];
        let mut k = 0;
        while k < 64 / W {
            let mut byte = 0;
            while byte < W {
                controls[k / 4][k % 4 * 16 + 8 + byte] = ORDER[k * W + byte];
                byte += 1;
            }
            k += 1;
        }
        controls
    };

    /// The bytes of a 512-bit register that hold element bits; the others keep the index.
    const FOUR_MASK: u64 = {
        let lane = ((1_u64 << W) - 1) << 8;
        lane | lane << 16 | lane << 32 | lane << 48
    };
}

#[target_feature(enable = "aes,ssse3,sse4.1")]
fn sum_128<const W: usize>(first: u64, step: u64, bytes: &[u8]) -> [u64; 2] {
    let keys = ROUND_KEYS.map(|key| load_128(&key.to_le_bytes()));
    let advance = _mm_set_epi64x(0, step.cast_signed());
    let mut index = _mm_set_epi64x(0, first.cast_signed());
    let mut sum = _mm_setzero_si128();
    let (blocks, rest) = bytes.as_chunks::<16>();
    for block in blocks {
        let data = load_128(block);
        for control in Spread::<W>::ONE.iter().take(16 / W) {
            let element = _mm_or_si128(index, _mm_shuffle_epi8(data, load_128(control)));
            sum = _mm_add_epi64(sum, keys.iter().fold(element, |s, &key| _mm_aesenc_si128(s, key)));
            index = _mm_add_epi64(index, advance);
        }
    }
    let (elements, _) = rest.as_chunks::<W>();
    for element in elements {
        let bits = _mm_set_epi64x(zero_extended(element).cast_signed(), 0);
        let mixed = keys.iter().fold(_mm_or_si128(index, bits), |s, &key| _mm_aesenc_si128(s, key));
        sum = _mm_add_epi64(sum, mixed);
        index = _mm_add_epi64(index, advance);
    }
    halves(sum)
}

#[target_feature(enable = "vaes,avx2,aes,ssse3,sse4.1")]
fn sum_256<const W: usize>(first: u64, step: u64, bytes: &[u8]) -> [u64; 2] {
    let keys = ROUND_KEYS.map(|key| _mm256_broadcastsi128_si256(load_128(&key.to_le_bytes())));
    let second = first.wrapping_add(step).cast_signed();
    let advance = step.wrapping_mul(2).cast_signed();
    let advance = _mm256_set_epi64x(0, advance, 0, advance);
    let mut index = _mm256_set_epi64x(0, second, 0, first.cast_signed());
    let mut sum = _mm256_setzero_si256();
    for block in bytes.as_chunks::<16>().0 {
        let data = _mm256_broadcastsi128_si256(load_128(block));
        for control in Spread::<W>::TWO.iter().take(8 / W) {
            let elements = _mm256_or_si256(index, _mm256_shuffle_epi8(data, load_256(control)));
            sum = _mm256_add_epi64(sum, keys.iter().fold(elements, |s, &key| _mm256_aesenc_epi128(s, key)));
            index = _mm256_add_epi64(index, advance);
        }
    }
    halves(folded(sum))
}

#[target_feature(enable = "vaes,avx512f,avx512bw,avx512vbmi,avx2,aes,ssse3,sse4.1")]
fn sum_512<const W: usize>(first: u64, step: u64, bytes: &[u8]) -> [u64; 2] {
    let keys = ROUND_KEYS.map(|key| _mm512_broadcast_i32x4(load_128(&key.to_le_bytes())));
    let [a, b, c, d] = [0, 1, 2, 3].map(|k| first.wrapping_add(step.wrapping_mul(k)).cast_signed());
    let advance = step.wrapping_mul(4).cast_signed();
    let advance = _mm512_set_epi64(0, advance, 0, advance, 0, advance, 0, advance);
    let mut index = _mm512_set_epi64(0, d, 0, c, 0, b, 0, a);
    let mut sum = _mm512_setzero_si512();
    for block in bytes.as_chunks::<64>().0 {
        let data = load_512(block);
        for control in Spread::<W>::FOUR.iter().take(16 / W) {
            let spread = load_512(control);
            let elements = _mm512_mask_permutexvar_epi8(index, Spread::<W>::FOUR_MASK, spread, data);
            sum = _mm512_add_epi64(sum, keys.iter().fold(elements, |s, &key| _mm512_aesenc_epi128(s, key)));
            index = _mm512_add_epi64(index, advance);
        }
    }
    let (low, high) = (_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64::<1>(sum));
    halves(folded(_mm256_add_epi64(low, high)))
}

#[target_feature(enable = "avx2")]
fn folded(sum: __m256i) -> __m128i {
    _mm_add_epi64(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum))
}

#[target_feature(enable = "sse4.1")]
fn halves(sum: __m128i) -> [u64; 2] {
    [_mm_extract_epi64::<0>(sum).cast_unsigned(), _mm_extract_epi64::<1>(sum).cast_unsigned()]
}

#[target_feature(enable = "sse2")]
fn load_128(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: the reference is 16 readable bytes, and the load asks for no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
fn load_256(bytes: &[[u8; 16]; 2]) -> __m256i {
    // SAFETY: the reference is 32 readable bytes, and the load asks for no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
fn load_512(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: the reference is 64 readable bytes, and the load asks for no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}
