//! Which GPUs of a node belong together: the closest set by NVLink, PCIe and NUMA.
//!
//! Kept for each node among what it is made of; the calendar and the scheduler ask it once a node is chosen or
//! compared. Deterministic: of sets that are equally close, the one with the lowest indexes wins.

use super::Fsm;
use super::wish::{GpuSet, gpus_of};
use crate::gpu::LinkLevel;
use crate::health::{Condition, Subject};
use crate::name::GpuUuid;
use crate::node::Node;

/// Up to this many candidate sets are all compared; beyond, a set is grown greedily from each GPU.
const EXACT_SETS_MAX: u64 = 2_000;

/// How far the GPUs of a set are from each other: smaller is better, the first field decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Spread {
    /// Models beyond the first: work over unequal GPUs runs at the pace of the slowest.
    mixed: bool,
    /// The worst pair.
    worst: u8,
    /// All pairs together.
    sum: u32,
    /// GPUs of which the driver reported an event: as good as the others, but the others come first.
    noticed: u32,
    /// What the set tears apart: how near it is to the GPUs it leaves, negated.
    torn: i32,
}

/// The chosen set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Picked {
    pub(crate) set: GpuSet,
    pub(crate) spread: Spread,
}

/// Distances between the GPUs of one node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Topology {
    /// Level of each pair, row by row.
    levels: Vec<u8>,
    count: usize,
    /// GPUs of each model.
    models: Vec<GpuSet>,
    noticed: GpuSet,
}

/// NVLinks that count: no two GPUs have more between them but through a switch, where all have the same.
const NVLINKS_MAX: u32 = 7;

/// How far two GPUs are, smaller is nearer: by the kind of link, then by the number of NVLinks, then by the socket. Data
/// goes over the links, so more of them are worth more than one socket; the socket decides where all are equal, since
/// memory and network cards of the job are there.
fn distance(link: LinkLevel, nvlinks: u32, one_socket: bool) -> u8 {
    let links = u8::try_from(NVLINKS_MAX - nvlinks.min(NVLINKS_MAX)).unwrap_or(0);
    let level = match link {
        LinkLevel::NvLink => 0,
        LinkLevel::SingleSwitch => 1,
        LinkLevel::MultiSwitch => 2,
        LinkLevel::HostBridge => 3,
        LinkLevel::NumaNode => 4,
        LinkLevel::System => 5,
    };
    level * 16 + links * 2 + u8::from(!one_socket)
}

fn places(set: GpuSet) -> impl Iterator<Item = usize> {
    let mut rest = set;
    std::iter::from_fn(move || {
        (rest != 0).then(|| {
            let at = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            at
        })
    })
}

impl Topology {
    pub(crate) fn of(fsm: &Fsm, node: &Node) -> Self {
        let gpus: Vec<_> = gpus_of(fsm, node).collect();
        let count = gpus.len();
        let one_socket = |a: usize, b: usize| {
            gpus[a].numa_node.is_some() && gpus[a].numa_node == gpus[b].numa_node
        };
        let mut levels = vec![distance(LinkLevel::System, 0, false); count * count];
        let mut models: Vec<(&str, GpuSet)> = Vec::new();
        for (a, one) in gpus.iter().enumerate() {
            match models.iter_mut().find(|(model, _)| *model == one.model) {
                Some((_, set)) => *set |= 1 << a,
                None => models.push((&one.model, 1 << a)),
            }
            for (b, other) in gpus.iter().enumerate() {
                // Without a measured link the NUMA node is all that is known.
                if one.numa_node.is_some() && one.numa_node == other.numa_node {
                    levels[a * count + b] = distance(LinkLevel::NumaNode, 0, true);
                }
            }
        }
        // Links come in the order of the GPUs, so each end is looked for where the last one was.
        let (mut a, mut b) = (0, 0);
        for link in &node.facts.links {
            let at = |uuid: &GpuUuid, near: usize| {
                let mut places = (near..count).chain(0..near);
                places.find(|at| gpus[*at].uuid == *uuid)
            };
            if let (Some(one), Some(other)) = (at(&link.a, a), at(&link.b, b)) {
                (a, b) = (one, other);
                let far = distance(link.level, link.nvlinks, one_socket(a, b));
                (levels[a * count + b], levels[b * count + a]) = (far, far);
            }
        }
        let told = |at: &usize| {
            let of_it = |c: &&Condition| c.subject == Subject::Gpu(gpus[*at].uuid.clone());
            node.conditions.iter().filter(of_it).any(Condition::is_told)
        };
        let noticed = (0..count).filter(told).fold(0, |set: GpuSet, at| set | 1 << at);
        Self { levels, count, models: models.into_iter().map(|(_, set)| set).collect(), noticed }
    }

    fn between(&self, a: usize, b: usize) -> u8 {
        self.levels.get(a * self.count + b).copied().unwrap_or(u8::MAX)
    }

    /// The closest `k` GPUs among `eligible`, of one model where that many of one model are there.
    pub(crate) fn pick(&self, eligible: GpuSet, k: u32) -> Option<Picked> {
        if k == 0 || eligible.count_ones() < k {
            return None;
        }
        let one_model = self
            .models
            .iter()
            .map(|model| model & eligible)
            .filter(|set| set.count_ones() >= k)
            .filter_map(|set| self.pick_any(set, eligible, k))
            .min_by_key(|picked| (picked.spread, picked.set));
        one_model.or_else(|| self.pick_any(eligible, eligible, k))
    }

    fn pick_any(&self, from: GpuSet, eligible: GpuSet, k: u32) -> Option<Picked> {
        let sets = if combinations(from.count_ones(), k) <= EXACT_SETS_MAX {
            subsets(from, k)
        } else {
            places(from).map(|seed| self.grow(seed, from, k)).collect()
        };
        // The first of equals wins, and sets come in index order.
        sets.into_iter()
            .map(|set| Picked { set, spread: self.spread(set, eligible) })
            .min_by_key(|picked| picked.spread)
    }

    /// Adds the nearest GPU until there are `k`.
    fn grow(&self, seed: usize, from: GpuSet, k: u32) -> GpuSet {
        let mut set: GpuSet = 1 << seed;
        while set.count_ones() < k {
            let nearest = places(from & !set).min_by_key(|new| {
                let far = places(set).map(|old| self.between(*new, old));
                let (worst, sum) = far.fold((0, 0), |(w, s), l| (w.max(l), s + u32::from(l)));
                (worst, sum, *new)
            });
            match nearest {
                Some(at) => set |= 1 << at,
                None => return set,
            }
        }
        set
    }

    fn spread(&self, set: GpuSet, eligible: GpuSet) -> Spread {
        let mut spread = Spread { mixed: false, worst: 0, sum: 0, noticed: 0, torn: 0 };
        spread.noticed = (set & self.noticed).count_ones();
        for a in places(set) {
            for b in places(set & (GpuSet::MAX << a) & !(1 << a)) {
                let far = self.between(a, b);
                spread.worst = spread.worst.max(far);
                spread.sum += u32::from(far);
            }
            for b in places(eligible & !set) {
                spread.torn -= i32::from(self.between(a, b));
            }
        }
        spread.mixed = !self.models.iter().any(|model| set & !model == 0);
        spread
    }
}

/// n over k, as far as it matters.
fn combinations(n: u32, k: u32) -> u64 {
    let mut result: u64 = 1;
    for i in 0..u64::from(k.min(n - k)) {
        result = result.saturating_mul(u64::from(n) - i) / (i + 1);
        if result > EXACT_SETS_MAX {
            return result;
        }
    }
    result
}

/// All sets of `k` of the GPUs in `from`, lowest indexes first.
fn subsets(from: GpuSet, k: u32) -> Vec<GpuSet> {
    let all: Vec<usize> = places(from).collect();
    let k = k as usize;
    let mut sets = Vec::new();
    let mut at: Vec<usize> = (0..k).collect();
    loop {
        sets.push(at.iter().fold(0, |set, i| set | 1 << all[*i]));
        let Some(turn) = (0..k).rev().find(|i| at[*i] < all.len() - k + i) else { return sets };
        at[turn] += 1;
        for next in turn + 1..k {
            at[next] = at[next - 1] + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distances from text: a row a GPU, a digit a level.
    fn topology(rows: &str, models: &[GpuSet]) -> Topology {
        let rows: Vec<&str> = rows.split_whitespace().collect();
        let levels = rows.concat().bytes().map(|digit| digit - b'0').collect::<Vec<u8>>();
        Topology { levels, count: rows.len(), models: models.to_vec(), noticed: 0 }
    }

    fn pick(topology: &Topology, eligible: GpuSet, k: u32) -> String {
        match topology.pick(eligible, k) {
            Some(picked) => places(picked.set).map(|at| at.to_string()).collect::<String>(),
            None => "none".to_owned(),
        }
    }

    #[test]
    fn the_closest_set_wins() {
        // 0-1 and 2-3 are pairs by NVLink, 0-2 hang on one switch, the rest is far.
        let t = topology("0015 0055 1500 5500", &[0b1111]);
        let cases = [
            (0b1111, 1, "1"),
            (0b1111, 2, "01"),
            (0b1110, 2, "23"),
            (0b0101, 2, "02"),
            (0b1101, 2, "23"),
            // One alone: not out of the pair that is still whole.
            (0b1110, 1, "1"),
            (0b0111, 1, "2"),
            (0b1111, 4, "0123"),
            (0b0011, 3, "none"),
            (0b1111, 0, "none"),
        ];
        for (eligible, k, expected) in cases {
            assert_eq!(pick(&t, eligible, k), expected, "{k} of {eligible:04b}");
        }
    }

    #[test]
    fn more_links_are_nearer_and_then_the_socket() {
        use LinkLevel::{MultiSwitch, NvLink, SingleSwitch, System};
        let near_first = [
            distance(NvLink, 2, true),
            distance(NvLink, 2, false),
            distance(NvLink, 1, true),
            distance(NvLink, 1, false),
            distance(SingleSwitch, 0, true),
            distance(MultiSwitch, 0, true),
            distance(System, 0, false),
        ];
        assert!(near_first.is_sorted_by(|one, other| one < other), "{near_first:?}");
        assert_eq!(distance(NvLink, 12, true), distance(NvLink, 600, true));
    }

    #[test]
    fn two_of_one_socket_come_before_two_of_both_where_all_have_nvlink() {
        // Four V100 with NVLink between each two, 0 and 1 at one socket, 2 and 3 at the other.
        let near = |a: usize, b: usize| distance(LinkLevel::NvLink, 2, a / 2 == b / 2);
        let pairs = (0..4).flat_map(|a| (0..4).map(move |b| if a == b { 0 } else { near(a, b) }));
        let t = Topology { levels: pairs.collect(), count: 4, models: vec![0b1111], noticed: 0 };
        assert_eq!(pick(&t, 0b1101, 2), "23", "1 is taken");
        assert_eq!(pick(&t, 0b0111, 2), "01");
        assert_eq!(pick(&t, 0b1111, 1), "0");
    }

    #[test]
    fn gpus_that_an_event_was_told_of_come_last_of_equals() {
        let mut t = topology("0055 0055 5500 5500", &[0b1111]);
        t.noticed = 0b0011;
        assert_eq!((pick(&t, 0b1111, 1), pick(&t, 0b1111, 2)), ("2".into(), "23".into()));
        assert_eq!(pick(&t, 0b0111, 2), "01", "they are as good as others: near is better");
    }

    #[test]
    fn one_model_is_worth_more_than_a_short_way() {
        let t = topology("0015 0055 1500 5500", &[0b0101, 0b1010]);
        assert_eq!(pick(&t, 0b1111, 2), "02");
        assert_eq!(pick(&t, 0b0011, 2), "01", "mixed where nothing else is there");
    }

    #[test]
    fn large_nodes_are_searched_greedily() {
        // 40 GPUs in two halves: within a half near, across far.
        let count = 40;
        let levels = (0..count * count)
            .map(|i| if (i / count < 20) == (i % count < 20) { 1 } else { 5 })
            .collect();
        let t = Topology { levels, count, models: vec![(1 << 40) - 1], noticed: 0 };
        assert!(combinations(40, 12) > EXACT_SETS_MAX);
        let picked = t.pick(((1 << 40) - 1) & !0b1111_1111_1111, 12).expect("enough");
        assert_eq!(picked.set, 0xfff << 20, "twelve of the half that still has twelve");
        assert_eq!(picked.spread.worst, 1);
    }

    #[test]
    fn subsets_are_all_and_in_order() {
        assert_eq!(subsets(0b1011, 2), [0b0011, 0b1001, 0b1010]);
        assert_eq!(subsets(0b1, 1), [1]);
        for (n, k, sets) in [(4, 2, 6), (8, 4, 70), (5, 5, 1)] {
            assert_eq!(combinations(n, k), sets);
            assert_eq!(subsets((1 << n) - 1, k).len() as u64, sets);
        }
    }
}
