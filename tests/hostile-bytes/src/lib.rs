//! Bytes that nobody meant well, for the decoders of what comes from outside.
//!
//! Each crate that decodes such bytes calls [`throw_at`] in a test, with a few good inputs and the decoder. A quarter of the
//! cases are bytes by chance; the others are good inputs that were damaged, as those get further into a decoder. A panic, an
//! input that takes longer than [`TOOK_MAX`], or a broken promise of the decoder fails the test with the smallest input that
//! does it. So does a good input that the decoder refuses: what is made of it would prove nothing.

use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};

/// Inputs for each decoder in each run. SECURITY.md says the same number.
pub const CASES: u32 = 1_000;

/// Longest input by chance. Damaged ones may be longer: they are good ones, with parts that were repeated or added.
const RANDOM_BYTES_MAX: usize = 2_048;

/// More than any decoder needs for so few bytes, on a busy machine. A loop without an end hangs the test instead.
const TOOK_MAX: Duration = Duration::from_secs(20);

/// Parts that decoders trip over: the ends of numbers, of lines, of texts and of nesting.
const PARTS: &[&[u8]] = &[
    b"\0",
    b"\n",
    b"\r\n",
    b"\"",
    b"\\",
    b"{",
    b"[[[[[[[[",
    b"-1",
    b"0",
    b"1e999",
    b"99999999999999999999999",
    b"18446744073709551615",
    b"null",
    b"../../",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x80\x00\x00\x00",
    "é€😀\u{202e}".as_bytes(),
];

/// One change of an input. Places are parts of its length, so that they fit every input.
#[derive(Debug, Clone)]
enum Damage {
    Set(f64, u8),
    Flip(f64, u8),
    Cut(f64),
    Remove(f64, usize),
    Repeat(f64, usize, usize),
    Insert(f64, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let place = || 0.0..1.0_f64;
    prop_oneof![
        (place(), any::<u8>()).prop_map(|(at, byte)| Damage::Set(at, byte)),
        (place(), 0..8_u8).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        place().prop_map(Damage::Cut),
        (place(), 1..64_usize).prop_map(|(at, length)| Damage::Remove(at, length)),
        (place(), 1..64_usize, 1..20_usize)
            .prop_map(|(at, length, times)| Damage::Repeat(at, length, times)),
        (place(), 0..PARTS.len()).prop_map(|(at, part)| Damage::Insert(at, part)),
    ]
}

fn index(bytes: &[u8], place: f64) -> usize {
    (bytes.len() as f64 * place) as usize
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match *self {
            Damage::Set(place, byte) => {
                let at = index(bytes, place);
                bytes.get_mut(at).into_iter().for_each(|old| *old = byte);
            }
            Damage::Flip(place, bit) => {
                let at = index(bytes, place);
                bytes.get_mut(at).into_iter().for_each(|old| *old ^= 1 << bit);
            }
            Damage::Cut(place) => bytes.truncate(index(bytes, place)),
            Damage::Remove(place, length) => {
                let at = index(bytes, place);
                bytes.drain(at..(at + length).min(bytes.len()));
            }
            Damage::Repeat(place, length, times) => {
                let at = index(bytes, place);
                let part = bytes[at..(at + length).min(bytes.len())].repeat(times);
                bytes.splice(at..at, part);
            }
            Damage::Insert(place, part) => {
                let at = index(bytes, place);
                bytes.splice(at..at, PARTS[part].iter().copied());
            }
        }
    }
}

fn hostile(samples: &[Vec<u8>]) -> BoxedStrategy<Vec<u8>> {
    let random = vec(any::<u8>(), 0..RANDOM_BYTES_MAX);
    if samples.is_empty() {
        return random.boxed();
    }
    let damaged = (prop::sample::select(samples.to_vec()), vec(damage(), 1..5));
    let damaged = damaged.prop_map(|(mut bytes, damages)| {
        damages.iter().for_each(|damage| damage.apply(&mut bytes));
        bytes
    });
    prop_oneof![1 => random, 3 => damaged].boxed()
}

/// Gives the decoder [`CASES`] hostile inputs. It says whether it accepted the input, and must accept the `samples`.
#[track_caller]
pub fn throw_at<S: AsRef<[u8]>>(samples: &[S], decode: impl Fn(&[u8]) -> bool) {
    let samples: Vec<Vec<u8>> = samples.iter().map(|one| one.as_ref().to_vec()).collect();
    for (number, sample) in (1..).zip(&samples) {
        let begins = String::from_utf8_lossy(&sample[..sample.len().min(60)]);
        assert!(decode(sample), "good input {number} is refused; it begins {begins:?}");
    }
    let config =
        ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() };
    let tried = TestRunner::new(config).run(&hostile(&samples), |bytes| {
        let began = Instant::now();
        decode(&bytes);
        match began.elapsed() {
            took if took > TOOK_MAX => Err(TestCaseError::fail(format!("it took {took:?}"))),
            _ => Ok(()),
        }
    });
    if let Err(error) = tried {
        panic!("{error}");
    }
}

/// The same for a decoder of text; what is no UTF-8 is replaced as a lossy reader does it.
#[track_caller]
pub fn throw_text_at<S: AsRef<str>>(samples: &[S], decode: impl Fn(&str) -> bool) {
    let samples: Vec<&[u8]> = samples.iter().map(|one| one.as_ref().as_bytes()).collect();
    throw_at(&samples, |bytes| decode(&String::from_utf8_lossy(bytes)));
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_decoder_that_trusts_a_length_is_found() {
        let good = [4, b'a', b'b', b'c', b'd'];
        let trusting = |bytes: &[u8]| {
            if let Some((length, rest)) = bytes.split_first() {
                assert!(rest.len() >= usize::from(*length), "cut");
            }
            true
        };
        let thrown = || throw_at(&[good], trusting);
        assert!(catch_unwind(AssertUnwindSafe(thrown)).is_err());
    }

    #[test]
    fn a_good_input_that_is_refused_is_named() {
        let thrown = || throw_at(&["{}", "[] of old"], |bytes| bytes == b"{}");
        let said = catch_unwind(AssertUnwindSafe(thrown)).unwrap_err();
        let said = said.downcast_ref::<String>().map(String::as_str);
        assert_eq!(said, Some("good input 2 is refused; it begins \"[] of old\""));
    }

    #[test]
    fn damaged_inputs_are_near_good_ones() {
        let (near, all) = (Cell::new(0), Cell::new(0));
        throw_at(&[b"{\"schema\":\"fleet\",\"index\":17}"], |bytes| {
            all.set(all.get() + 1);
            near.set(near.get() + u32::from(bytes.starts_with(b"{\"schema\":")));
            true
        });
        assert_eq!(all.get(), CASES + 1);
        assert!(near.get() > CASES / 4, "{} of {}", near.get(), all.get());
    }
}
