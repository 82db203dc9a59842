//! Which images go so that the rest fits: those that were not used for longest, never one that is in use, and none for
//! nothing. Pure; called by [`super::collect`].

use std::collections::{BTreeMap, BTreeSet};

/// One image, as this decision sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) digest: String,
    pub(super) layers: Vec<String>,
    /// When it was last used, in any unit that grows.
    pub(super) used: u128,
    pub(super) in_use: bool,
}

/// What goes, and how many bytes the rest has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) gone: BTreeSet<String>,
    pub(super) left: u64,
}

/// Makes the rest as small as `bytes_max`, or as small as it can be. `sizes` has the bytes of each layer; layers in
/// `pinned` stay whatever goes.
pub(super) fn choose(
    images: &[Candidate],
    sizes: &BTreeMap<String, u64>,
    pinned: &BTreeSet<String>,
    bytes_max: u64,
) -> Choice {
    let mut by_age: Vec<&Candidate> = images.iter().filter(|image| !image.in_use).collect();
    by_age.sort_by(|a, b| (a.used, &a.digest).cmp(&(b.used, &b.digest)));
    let mut rest = Rest { sizes, owners: BTreeMap::new(), bytes: 0 };
    rest.add(pinned);
    images.iter().for_each(|image| rest.add(&image.layers));
    let mut oldest = by_age.iter();
    let mut removed = Vec::new();
    while rest.bytes > bytes_max
        && let Some(image) = oldest.next()
    {
        rest.remove(&image.layers);
        removed.push(*image);
    }
    // One whose layers all belong to others as well went for nothing: the newest come back first.
    let enough = bytes_max.max(rest.bytes);
    let mut gone = BTreeSet::new();
    for image in removed.into_iter().rev() {
        rest.add(&image.layers);
        if rest.bytes > enough {
            rest.remove(&image.layers);
            gone.insert(image.digest.clone());
        }
    }
    Choice { gone, left: rest.bytes }
}

/// What is not removed: how many have each layer, and the bytes of all.
struct Rest<'a> {
    sizes: &'a BTreeMap<String, u64>,
    owners: BTreeMap<&'a str, usize>,
    bytes: u64,
}

impl<'a> Rest<'a> {
    fn size(&self, layer: &str) -> u64 {
        self.sizes.get(layer).copied().unwrap_or(0)
    }

    fn add(&mut self, layers: impl IntoIterator<Item = &'a String>) {
        for layer in layers {
            let owners = self.owners.entry(layer).or_default();
            *owners += 1;
            if *owners == 1 {
                self.bytes = self.bytes.saturating_add(self.size(layer));
            }
        }
    }

    fn remove(&mut self, layers: impl IntoIterator<Item = &'a String>) {
        for layer in layers {
            let owners = self.owners.entry(layer).or_default();
            *owners = owners.saturating_sub(1);
            if *owners == 0 {
                self.bytes = self.bytes.saturating_sub(self.size(layer));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each word is an image, oldest first: its layers by letter, `!` at the end where it is in use.
    fn images(words: &str) -> Vec<Candidate> {
        let image = |(used, word): (usize, &str)| Candidate {
            digest: word.trim_end_matches('!').to_owned(),
            layers: word.trim_end_matches('!').chars().map(String::from).collect(),
            used: used as u128,
            in_use: word.ends_with('!'),
        };
        words.split(' ').enumerate().map(image).collect()
    }

    /// A layer `a` has 10 bytes, `b` 20, `c` 30, …
    fn chosen(words: &str, pinned: &str, bytes_max: u64) -> Choice {
        let sizes: BTreeMap<String, u64> =
            ('a'..='f').map(String::from).zip((1..).map(|n| n * 10)).collect();
        let pinned = pinned.chars().map(String::from).collect();
        choose(&images(words), &sizes, &pinned, bytes_max)
    }

    fn gone(words: &str, pinned: &str, bytes_max: u64) -> String {
        let gone = chosen(words, pinned, bytes_max).gone;
        gone.into_iter().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_longest_unused_go_and_no_more_than_must() {
        assert_eq!(gone("a b c", "", 60), "");
        assert_eq!(gone("a b c", "", 59), "a");
        assert_eq!(gone("a b c", "", 50), "a");
        assert_eq!(gone("a b c", "", 31), "a b");
        assert_eq!(gone("a b c", "", 40), "b");
        assert_eq!(gone("c b a", "", 59), "c");
        assert_eq!(gone("a b c", "", 0), "a b c");
    }

    #[test]
    fn what_is_in_use_stays_even_when_nothing_fits() {
        assert_eq!(gone("a! b c", "", 40), "b");
        assert_eq!(gone("a! b c!", "", 0), "b");
        assert_eq!(gone("a! b! c!", "", 0), "");
        assert_eq!(chosen("a! b c!", "e", 0).left, 90);
    }

    #[test]
    fn none_goes_for_nothing() {
        // All of `a` belongs to `ab!` too.
        assert_eq!(gone("a ab! c", "", 59), "c");
        // Without `a`, `ab` frees 20 bytes and that is enough: `a` stays.
        assert_eq!(gone("a ab c", "", 40), "ab");
        assert_eq!(gone("a ab c", "", 30), "a ab");
        // Nothing helps while a pull needs the layer, or others run.
        assert_eq!(gone("a ab!", "", 5), "");
        assert_eq!(gone("a", "a", 5), "");
    }

    #[test]
    fn layers_of_nobody_do_not_count_but_pinned_ones_do() {
        assert_eq!(gone("a", "f", 70), "");
        assert_eq!(gone("a", "f", 69), "a");
    }
}
