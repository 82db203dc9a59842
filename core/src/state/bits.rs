//! A set of small numbers: the places of the fleet's nodes, in name order.
//!
//! Used by the calendar's index, which takes such sets together a word at a time: ten thousand nodes are 157 words.

const WORD: usize = u64::BITS as usize;

/// Words of a set that are read together: a line of the processor's cache.
const BLOCK_WORDS: usize = 8;

/// A part of a set: the numbers from its place times [`Block::NUMBERS`] on.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Block([u64; BLOCK_WORDS]);

impl Block {
    /// How many numbers a block speaks of.
    pub(crate) const NUMBERS: usize = BLOCK_WORDS * WORD;

    pub(crate) fn add(&mut self, other: &Block) {
        self.0.iter_mut().zip(&other.0).for_each(|(word, more)| *word |= more);
    }

    pub(crate) fn take_away(&mut self, other: &Block) {
        self.0.iter_mut().zip(&other.0).for_each(|(word, less)| *word &= !less);
    }

    pub(crate) fn keep(&mut self, other: &Block) {
        self.0.iter_mut().zip(&other.0).for_each(|(word, kept)| *word &= kept);
    }

    /// The numbers in it, smallest first, where it is the block at `at`.
    pub(crate) fn numbers(self, at: usize) -> impl Iterator<Item = usize> {
        let words = self.0.into_iter().zip(at * BLOCK_WORDS..);
        words.flat_map(|(word, at)| numbers(word).map(move |bit| at * WORD + bit))
    }
}

/// The places of the bits that are set, lowest first.
fn numbers(word: u64) -> impl Iterator<Item = usize> {
    let mut rest = word;
    std::iter::from_fn(move || {
        (rest != 0).then(|| {
            let bit = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            bit
        })
    })
}

/// Two sets are equal when they hold the same numbers, however they came to it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bits(Vec<u64>);

impl PartialEq for Bits {
    fn eq(&self, other: &Self) -> bool {
        let (one, other) = (self.trimmed(), other.trimmed());
        one == other
    }
}

impl Eq for Bits {}

impl Bits {
    fn trimmed(&self) -> &[u64] {
        let used = self.0.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        &self.0[..used]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Whether it has at most `most` numbers.
    pub(crate) fn is_few(&self, most: usize) -> bool {
        self.iter().nth(most).is_none()
    }

    pub(crate) fn contains(&self, at: usize) -> bool {
        self.0.get(at / WORD).is_some_and(|word| word >> (at % WORD) & 1 == 1)
    }

    pub(crate) fn set(&mut self, at: usize, there: bool) {
        let (word, bit) = (at / WORD, 1 << (at % WORD));
        match there {
            true => {
                if self.0.len() <= word {
                    self.0.resize(word + 1, 0);
                }
                self.0[word] |= bit;
            }
            false => {
                if let Some(word) = self.0.get_mut(word) {
                    *word &= !bit;
                }
            }
        }
    }

    pub(crate) fn add(&mut self, other: &Bits) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (word, more) in self.0.iter_mut().zip(&other.0) {
            *word |= more;
        }
    }

    pub(crate) fn take_away(&mut self, other: &Bits) {
        for (word, less) in self.0.iter_mut().zip(&other.0) {
            *word &= !less;
        }
    }

    pub(crate) fn keep(&mut self, other: &Bits) {
        self.0.truncate(other.0.len());
        for (word, kept) in self.0.iter_mut().zip(&other.0) {
            *word &= kept;
        }
    }

    /// The numbers in it, smallest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> {
        let words = self.0.iter().enumerate();
        words.flat_map(|(at, word)| numbers(*word).map(move |bit| at * WORD + bit))
    }

    /// The part of it at that place.
    pub(crate) fn block(&self, at: usize) -> Block {
        let mut block = Block::default();
        let words = self.0.iter().skip(at * BLOCK_WORDS);
        block.0.iter_mut().zip(words).for_each(|(word, own)| *word = *own);
        block
    }

    /// Makes room for a new number: those from `at` on are one larger than they were.
    pub(crate) fn insert_gap(&mut self, at: usize) {
        let (first, below) = (at / WORD, (1 << (at % WORD)) - 1);
        let Some(word) = self.0.get(first).copied() else { return };
        let mut carried = word >> (WORD - 1);
        self.0[first] = (word & below) | ((word & !below) << 1);
        for word in &mut self.0[first + 1..] {
            let next = *word >> (WORD - 1);
            *word = *word << 1 | carried;
            carried = next;
        }
        if carried != 0 {
            self.0.push(carried);
        }
    }

    /// Takes a number out: those behind it are one smaller than they were.
    pub(crate) fn close_gap(&mut self, at: usize) {
        let (first, below) = (at / WORD, (1 << (at % WORD)) - 1);
        let Some(word) = self.0.get(first).copied() else { return };
        let first_bit = |word: Option<&u64>| word.map_or(0, |word| word << (WORD - 1));
        let carried = first_bit(self.0.get(first + 1));
        self.0[first] = (word & below) | (word >> 1 & !below) | carried;
        for at in first + 1..self.0.len() {
            let carried = first_bit(self.0.get(at + 1));
            self.0[at] = self.0[at] >> 1 | carried;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(numbers: &[usize]) -> Bits {
        let mut bits = Bits::default();
        numbers.iter().for_each(|n| bits.set(*n, true));
        bits
    }

    #[test]
    fn numbers_move_up_and_down_across_words() {
        let all = [0, 1, 62, 63, 64, 65, 126, 127, 128, 200];
        for at in [0, 1, 2, 61, 62, 63, 64, 65, 100, 127, 128, 129, 199, 200, 201, 500] {
            let mut bits = of(&all);
            bits.insert_gap(at);
            let wanted: Vec<usize> = all.iter().map(|n| n + usize::from(*n >= at)).collect();
            assert_eq!(bits.iter().collect::<Vec<_>>(), wanted, "a gap at {at}");
            bits.close_gap(at);
            assert_eq!(bits, of(&all), "the gap at {at} is closed");
            bits.close_gap(at);
            let rest = all.iter().filter(|n| **n != at);
            let wanted: Vec<usize> = rest.map(|n| n - usize::from(*n > at)).collect();
            assert_eq!(bits.iter().collect::<Vec<_>>(), wanted, "without {at}");
        }
    }

    #[test]
    fn a_set_is_the_sum_of_its_blocks() {
        let all = [0, 63, 64, 511, 512, 700, 1023, 1024, 1500];
        let bits = of(&all);
        let numbers = (0..4).flat_map(|at| bits.block(at).numbers(at));
        assert_eq!(numbers.collect::<Vec<_>>(), all);
        let mut block = bits.block(0);
        block.take_away(&of(&[63]).block(0));
        block.add(&of(&[5]).block(0));
        block.keep(&of(&[0, 5, 63, 64]).block(0));
        assert_eq!(block.numbers(0).collect::<Vec<_>>(), [0, 5, 64]);
    }

    #[test]
    fn sets_are_equal_by_what_they_hold() {
        let mut long = of(&[3, 700]);
        long.set(700, false);
        assert_eq!(long, of(&[3]));
        assert_ne!(long, of(&[3, 4]));
        assert!(!long.is_empty() && long.contains(3) && !long.contains(700));
        assert!(long.is_few(1) && !of(&[3, 700]).is_few(1) && of(&[]).is_few(0));
    }
}
