//! The index against the slow form that checks every node for each wish. Both give the same place, or the same refusal.

use proptest::prelude::*;

use super::super::search::CLOSEST_OF;
use super::super::{
    Calendar, Candidate, Releasing, Unleased, choose, obstacles, sorted, with_obstacles,
};
use crate::gpu::GPUS_PER_NODE_MAX;
use crate::name::{GpuUuid, NodeName};
use crate::node::Node;
use crate::rejection::{Rejection, Slot};
use crate::reservation::{GpuRequest, RESERVATION_AHEAD_MAX};
use crate::scheduler::claims::held_within;
use crate::scheduler::tests::story::{BEGINNING, Story};
use crate::state::Fsm;
use crate::state::index::Entry;
use crate::state::topology::Topology;
use crate::state::wish::{Wish, uuids_of};
use crate::time::{Millis, Timestamp, Window};

type Answer = Result<(NodeName, Vec<GpuUuid>), Rejection>;

/// All nodes that have what the wish asks for.
struct Search<'a> {
    fsm: &'a Fsm,
    wish: Wish<'a>,
    unleased: Unleased,
    candidates: Vec<Candidate<'a>>,
}

impl<'a> Search<'a> {
    fn new(
        fsm: &'a Fsm,
        request: &'a GpuRequest,
        unleased: Unleased,
        calendar: &Calendar<'a>,
    ) -> Result<Self, Rejection> {
        let wish = Wish::new(request);
        wish.is_built(fsm)?;
        let nodes = fsm.nodes().values();
        let candidates =
            nodes.filter_map(|node| Candidate::of(fsm, &wish, unleased, calendar, node));
        let candidates = candidates.collect();
        Ok(Self { fsm, wish, unleased, candidates })
    }

    /// The earliest window of the same length, searched over the instants at which something ends.
    fn next_slot(&self, window: Window) -> Option<Slot> {
        let length = window.ends_at.since(window.starts_at);
        let count = self.wish.request.count;
        let mut best: Option<Slot> = None;
        for candidate in &self.candidates {
            for starts_at in candidate.instants(window.starts_at) {
                if best.as_ref().is_some_and(|slot| slot.starts_at <= starts_at) {
                    break;
                }
                let window = Window { starts_at, ends_at: starts_at + length };
                let eligible = candidate.free(window, Releasing::Taken) & candidate.meant;
                if eligible.count_ones() < count {
                    continue;
                }
                let topology = Topology::of(self.fsm, candidate.node);
                if let Some(picked) = topology.pick(eligible, count) {
                    let gpus = uuids_of(candidate.node, picked.set);
                    best = Some(Slot { starts_at, node: candidate.node.name.clone(), gpus });
                    break;
                }
            }
        }
        best.filter(|slot| slot.starts_at.since(self.fsm.now()) <= RESERVATION_AHEAD_MAX)
    }

    fn refusal(&self, window: Window) -> Rejection {
        let mut holdings = Vec::new();
        for candidate in &self.candidates {
            holdings.extend(candidate.holdings(self.fsm, &window));
        }
        let nodes = self.fsm.nodes().values();
        let obstacles = obstacles(self.fsm, &self.wish, window, self.unleased, nodes);
        let wanted = with_obstacles(&self.wish, obstacles);
        Rejection::GpusHeld { wanted, holdings: sorted(holdings), next: self.next_slot(window) }
    }
}

/// The rule, without the index.
fn by_looking_at_all(fsm: &Fsm, wish: &GpuRequest, window: Window) -> Answer {
    let held = held_within(fsm, &window);
    let calendar = Calendar::of(fsm).with_held(fsm, &held);
    let search = Search::new(fsm, wish, Unleased::Blocks, &calendar)?;
    for releasing in [Releasing::Taken, Releasing::Free] {
        let fits = |candidate: &&Candidate<'_>| {
            let eligible = candidate.free(window, releasing) & candidate.meant;
            eligible.count_ones() >= wish.count
        };
        let mut ranked: Vec<((bool, u32, &NodeName), &Candidate<'_>)> = search
            .candidates
            .iter()
            .filter(fits)
            .map(|c| {
                let left = Entry::of(fsm, c.node).left_at_worst(&window);
                ((c.node.uncounted, left, &c.node.name), c)
            })
            .collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        let Some(((unasked, left, _), _)) = ranked.first() else { continue };
        let equal = ranked.iter().filter(|((u, l, _), _)| (u, l) == (unasked, left));
        let picked = equal.take(CLOSEST_OF).map(|(_, c)| {
            let eligible = c.free(window, releasing) & c.meant;
            (Topology::of(fsm, c.node).pick(eligible, wish.count).unwrap(), c)
        });
        let (picked, best) = picked.min_by_key(|(picked, _)| picked.spread).unwrap();
        return Ok((best.node.name.clone(), uuids_of(best.node, picked.set)));
    }
    Err(search.refusal(window))
}

/// Fails unless the index and the slow form answer the same.
pub(crate) fn assert_same(fsm: &Fsm, wish: &GpuRequest, window: Window) {
    let quick = choose(fsm, wish, window, Unleased::Blocks, &held_within(fsm, &window));
    assert_eq!(quick, by_looking_at_all(fsm, wish, window), "{wish:?} in {window:?}");
}

/// Fails unless what is looked up for a window is all that is in its way, for windows at each end of what is taken.
fn assert_within_is_all(fsm: &Fsm, node: &Node) {
    let all = Calendar::of_nodes(fsm, [&node.name]);
    let taken = node.gpus.iter().flat_map(|uuid| all.on(uuid));
    let edges = taken.flat_map(|busy| [busy.window.starts_at, busy.window.ends_at]);
    let near = |at: Timestamp| [at - Millis(1), at, at + Millis(1)];
    for starts_at in edges.flat_map(near) {
        let window = Window { starts_at, ends_at: starts_at + Millis::minutes(30) };
        let within = Calendar::of_node_within(fsm, &node.name, &window);
        for uuid in &node.gpus {
            let in_the_way = all.on(uuid).iter().filter(|busy| busy.window.overlaps(&window));
            let in_the_way: Vec<_> = in_the_way.collect();
            assert_eq!(within.on(uuid).iter().collect::<Vec<_>>(), in_the_way, "{uuid}");
        }
    }
}

/// Fails unless the claims on a node are all that its calendar has, wherever the index says that they are; how many
/// nodes that were.
pub(crate) fn assert_claims_say_it_all(fsm: &Fsm) -> usize {
    let mut certain = 0;
    for (at, node) in fsm.nodes().values().enumerate() {
        assert_within_is_all(fsm, node);
        let Some(claims) = fsm.certain_claims(&node.name, at) else { continue };
        certain += 1;
        let calendar = Calendar::of_nodes(fsm, [&node.name]);
        for (place, uuid) in node.gpus.iter().enumerate() {
            let of_gpu = claims.iter().filter(|claim| claim.gpus >> place & 1 == 1);
            let mut claimed: Vec<_> = of_gpu.map(|claim| (claim.from, claim.until)).collect();
            let busy = calendar.on(uuid).iter().map(|b| (b.window.starts_at, b.window.ends_at));
            let mut busy: Vec<_> = busy.collect();
            claimed.sort_unstable();
            busy.sort_unstable();
            assert_eq!(claimed, busy, "{uuid}");
        }
    }
    certain
}

/// Wishes of all kinds: any GPUs, those of a model, those of a node.
pub(crate) fn wishes(node: &NodeName) -> Vec<GpuRequest> {
    let of = |count, model: Option<&str>, node: Option<&NodeName>| GpuRequest {
        count,
        model: model.map(str::to_owned),
        node: node.cloned(),
        ..GpuRequest::default()
    };
    let any = (1..=4).map(|count| of(count, None, None));
    let models =
        ["v100", "titan-x"].into_iter().flat_map(|m| [of(1, Some(m), None), of(2, Some(m), None)]);
    any.chain(models).chain([of(1, None, Some(node)), of(3, None, Some(node))]).collect()
}

#[derive(Debug, Clone)]
struct Drawn {
    /// GPUs of two models, and whether it is closed.
    nodes: Vec<(u32, u32, bool)>,
    /// Which model if any, how many, from which minute, for how many.
    booked: Vec<(usize, u32, u64, u64)>,
    asked: Vec<(u64, u64)>,
}

fn drawn(nodes: usize, booked: usize) -> impl Strategy<Value = Drawn> {
    let node = (0..5_u32, 0..5_u32, prop::bool::weighted(0.1));
    let minutes = prop_oneof![0..600_u64, 0..20_000_u64];
    let booking = (0..3_usize, 1..5_u32, minutes.clone(), 1..6_000_u64);
    (
        prop::collection::vec(node, 1..nodes),
        prop::collection::vec(booking, 0..booked),
        prop::collection::vec((minutes, 1..6_000_u64), 1..8),
    )
        .prop_map(|(nodes, booked, asked)| Drawn { nodes, booked, asked })
}

fn window(from: u64, minutes: u64) -> Window {
    let starts_at = BEGINNING + Millis::minutes(from);
    Window { starts_at, ends_at: starts_at + Millis::minutes(minutes) }
}

fn answers_alike(drawn: &Drawn) {
    let mut story = Story::new();
    for (at, (titans, volts, closed)) in drawn.nodes.iter().enumerate() {
        let gpus = match (titans, volts) {
            (0, 0) => "none".to_owned(),
            (n, 0) => format!("titan-x*{n}"),
            (0, n) => format!("v100*{n}"),
            (n, m) => format!("titan-x*{n}+v100*{m}"),
        };
        let name = format!("titan{at:03}");
        story.join(&name, &[&gpus]);
        if *closed {
            story.tell(&format!("cordon {name} closed"));
        }
    }
    for (at, (model, count, from, minutes)) in drawn.booked.iter().enumerate() {
        let model = [None, Some("v100"), Some("titan-x")][*model].map(str::to_owned);
        let wish = GpuRequest { count: *count, model, ..GpuRequest::default() };
        // One that is refused books nothing.
        drop(story.reserve(&format!("res-{at}"), "ada", wish, window(*from, *minutes)));
    }
    story.fsm.check_invariants().unwrap();
    assert_eq!(assert_claims_say_it_all(&story.fsm), story.fsm.nodes().len());
    let asks = drawn.asked.iter().chain([&(0, 30), &(1, 5_000)]);
    for (from, minutes) in asks {
        let node = story.fsm.nodes().keys().next().unwrap().clone();
        for wish in wishes(&node) {
            assert_same(&story.fsm, &wish, window(*from, *minutes));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_small_fleet_answers_as_if_all_were_looked_at(drawn in drawn(12, 60)) {
        answers_alike(&drawn);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3, ..ProptestConfig::default() })]

    #[test]
    fn a_large_fleet_answers_as_if_all_were_looked_at(drawn in drawn(500, 300)) {
        answers_alike(&drawn);
    }
}

#[test]
fn the_largest_node_is_counted_whole() {
    let mut story = Story::new();
    story.join("titan001", &[&format!("v100*{GPUS_PER_NODE_MAX}")]);
    story.tell(&format!("reserve res-a ada {} +1h +2h", GPUS_PER_NODE_MAX - 1));
    let wish = |count| GpuRequest { count, ..GpuRequest::default() };
    for count in [1, 2, u32::try_from(GPUS_PER_NODE_MAX).unwrap()] {
        for at in [0, 60, 90, 200] {
            assert_same(&story.fsm, &wish(count), window(at, 60));
        }
    }
}
