//! A set of small numbers: the places of the fleet's nodes, in name order.
//!
//! Used by the calendar's index, which takes such sets together a word at a time: ten thousand nodes are 157 words.

const WORD: usize = u64::BITS as usize;

/// Two sets are equal when they hold the same numbers, however they came to it.
#[derive(Debug, Clone, Default)]
pub(super) struct Bits(Vec<u64>);

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

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    pub(super) fn contains(&self, at: usize) -> bool {
        self.0.get(at / WORD).is_some_and(|word| word >> (at % WORD) & 1 == 1)
    }

    pub(super) fn set(&mut self, at: usize, there: bool) {
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

    pub(super) fn add(&mut self, other: &Bits) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (word, more) in self.0.iter_mut().zip(&other.0) {
            *word |= more;
        }
    }

    pub(super) fn take_away(&mut self, other: &Bits) {
        for (word, less) in self.0.iter_mut().zip(&other.0) {
            *word &= !less;
        }
    }

    pub(super) fn keep(&mut self, other: &Bits) {
        self.0.truncate(other.0.len());
        for (word, kept) in self.0.iter_mut().zip(&other.0) {
            *word &= kept;
        }
    }

    /// The numbers in it, smallest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(at, word)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                (rest != 0).then(|| {
                    let bit = rest.trailing_zeros() as usize;
                    rest &= rest - 1;
                    at * WORD + bit
                })
            })
        })
    }

    /// Makes room for a new number: those from `at` on are one larger than they were.
    pub(super) fn insert_gap(&mut self, at: usize) {
        let shifted: Vec<usize> = self.iter().map(|n| n + usize::from(n >= at)).collect();
        self.refill(&shifted);
    }

    /// Takes a number out: those behind it are one smaller than they were.
    pub(super) fn close_gap(&mut self, at: usize) {
        let rest = self.iter().filter(|n| *n != at);
        let shifted: Vec<usize> = rest.map(|n| n - usize::from(n > at)).collect();
        self.refill(&shifted);
    }

    fn refill(&mut self, numbers: &[usize]) {
        self.0.clear();
        for at in numbers {
            self.set(*at, true);
        }
    }
}
