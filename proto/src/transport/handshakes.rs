//! Unfinished TLS handshakes, counted per source: one address that opens connections and says nothing
//! locks out nobody.
//!
//! A new connection is always taken up. Where its source, or everybody, has as many unfinished ones as
//! there may be, the oldest of the busiest source gives way: what is only held open is the oldest soon,
//! and what is under way is done before. Sources from which a node or a controller has proved itself are
//! counted apart from strangers, so that strangers never take their places.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::limits::KNOWN_SOURCES_MAX;

/// What one owner of machines can take many of counts once: an IPv6 network of 64 bits, an IPv4 address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Source(IpAddr);

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        Source(match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
            }
            v4 @ IpAddr::V4(_) => v4,
        })
    }
}

/// Those of one source, the oldest first; dropping the sender tells the task that it gives way.
type UnderWay = BTreeMap<u64, oneshot::Sender<()>>;

#[derive(Debug, Default)]
struct State {
    /// Rises with each connection and each sign of a known source.
    count: u64,
    strangers: HashMap<Source, UnderWay>,
    known: HashMap<Source, UnderWay>,
    /// When a node or a controller last proved itself from there.
    proved: HashMap<Source, u64>,
}

impl State {
    fn pool(&mut self, is_known: bool) -> &mut HashMap<Source, UnderWay> {
        if is_known { &mut self.known } else { &mut self.strangers }
    }

    fn next(&mut self) -> u64 {
        self.count += 1;
        self.count
    }
}

/// See the module's doc.
#[derive(Debug)]
pub(super) struct Handshakes {
    per_source_max: usize,
    /// Of strangers; as many again of known sources.
    total_max: usize,
    state: Mutex<State>,
}

/// One unfinished handshake; dropping it gives the place back.
#[derive(Debug)]
pub(super) struct Handshake {
    all: Arc<Handshakes>,
    source: Source,
    is_known: bool,
    number: u64,
    gives_way: oneshot::Receiver<()>,
}

impl Handshakes {
    pub(super) fn new(per_source_max: usize, total_max: usize) -> Arc<Self> {
        Arc::new(Self { per_source_max, total_max, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection from `source` begins; if there are too many, one gives way.
    pub(super) fn begin(self: &Arc<Self>, source: Source) -> Handshake {
        let mut state = self.state();
        let number = state.next();
        let is_known = state.proved.contains_key(&source);
        let pool = state.pool(is_known);
        let own = pool.get(&source).map_or(0, BTreeMap::len);
        let crowded = if own >= self.per_source_max {
            Some(source)
        } else if pool.values().map(BTreeMap::len).sum::<usize>() >= self.total_max {
            // Of equals the one whose oldest is the oldest.
            let busiest = pool.iter().max_by_key(|(_, those)| {
                (those.len(), Reverse(those.first_key_value().map(|(number, _)| *number)))
            });
            busiest.map(|(source, _)| *source)
        } else {
            None
        };
        if let Some(crowded) = crowded {
            take_out(pool, crowded, None);
        }
        let (stays, gives_way) = oneshot::channel();
        pool.entry(source).or_default().insert(number, stays);
        Handshake { all: self.clone(), source, is_known, number, gives_way }
    }

    /// A node or a controller has proved itself from `source`. Of more than are remembered the one that was
    /// heard longest ago is forgotten.
    pub(super) fn proved(&self, source: Source) {
        let mut state = self.state();
        let at = state.next();
        state.proved.insert(source, at);
        if state.proved.len() > KNOWN_SOURCES_MAX
            && let Some(oldest) = state.proved.iter().min_by_key(|(_, at)| **at).map(|(s, _)| *s)
        {
            state.proved.remove(&oldest);
        }
    }
}

/// Takes one of `source` out: that `number`, or the oldest.
fn take_out(pool: &mut HashMap<Source, UnderWay>, source: Source, number: Option<u64>) {
    let Some(those) = pool.get_mut(&source) else { return };
    match number {
        Some(number) => drop(those.remove(&number)),
        None => drop(those.pop_first()),
    }
    if those.is_empty() {
        pool.remove(&source);
    }
}

impl Handshake {
    /// Returns when it must make room for another.
    pub(super) async fn gives_way(&mut self) {
        // An error is the news: nothing is ever sent.
        drop((&mut self.gives_way).await);
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        let mut state = self.all.state();
        take_out(state.pool(self.is_known), self.source, Some(self.number));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn source(text: &str) -> Source {
        Source::from(text.parse::<IpAddr>().unwrap())
    }

    fn gave_way(one: &mut Handshake) -> bool {
        one.gives_way.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn a_network_of_one_owner_is_one_source() {
        assert_eq!(source("2001:db8:1:2::3"), source("2001:db8:1:2:ffff::4"));
        assert_ne!(source("2001:db8:1:2::3"), source("2001:db8:1:3::3"));
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"));
    }

    #[test]
    fn the_oldest_of_a_source_that_has_too_many_gives_way() {
        let all = Handshakes::new(2, 9);
        let mut one = all.begin(source("10.0.0.1"));
        let mut two = all.begin(source("10.0.0.1"));
        assert!(!gave_way(&mut one));
        let mut three = all.begin(source("10.0.0.1"));
        assert!(gave_way(&mut one) && !gave_way(&mut two) && !gave_way(&mut three));
        // What has given way and ends takes nobody else's place with it.
        drop(one);
        drop(two);
        let mut four = all.begin(source("10.0.0.1"));
        assert!(!gave_way(&mut three) && !gave_way(&mut four));
    }

    #[test]
    fn where_all_places_are_taken_the_busiest_source_makes_room() {
        let all = Handshakes::new(3, 4);
        let mut modest = all.begin(source("10.0.0.1"));
        let mut busy: Vec<_> = (0..3).map(|_| all.begin(source("10.0.0.2"))).collect();
        let mut new = all.begin(source("10.0.0.3"));
        assert!(gave_way(&mut busy[0]) && !gave_way(&mut busy[1]));
        assert!(!gave_way(&mut modest) && !gave_way(&mut new));
    }

    #[test]
    fn among_sources_with_as_many_the_oldest_gives_way() {
        let all = Handshakes::new(1, 50);
        let of = |n: u32| all.begin(source(&format!("10.1.{}.{}", n / 250, n % 250)));
        let mut held: Vec<Handshake> = (0..400).map(of).collect();
        let (old, new) = held.split_at_mut(350);
        assert!(old.iter_mut().all(gave_way), "what is held open is the oldest");
        assert!(!new.iter_mut().any(gave_way), "what has just begun is not");
    }

    #[test]
    fn strangers_never_take_the_places_of_nodes_and_controllers() {
        let all = Handshakes::new(4, 2);
        all.proved(source("10.0.0.1"));
        let mut node = all.begin(source("10.0.0.1"));
        let many: Vec<_> = (0..200).map(|n| all.begin(source(&format!("10.1.0.{n}")))).collect();
        assert!(!gave_way(&mut node));
        let under_way: usize = all.state().strangers.values().map(BTreeMap::len).sum();
        assert_eq!(under_way, 2);
        drop(many);
    }

    #[test]
    fn as_many_sources_are_remembered_as_there_may_be() {
        let all = Handshakes::new(4, 2);
        let first = source("10.0.0.1");
        all.proved(first);
        for n in 0..KNOWN_SOURCES_MAX {
            let [.., b, c, d] = (n as u32).to_be_bytes();
            all.proved(Source(IpAddr::from([11, b, c, d])));
        }
        let state = all.state();
        assert_eq!(state.proved.len(), KNOWN_SOURCES_MAX);
        assert!(!state.proved.contains_key(&first));
    }
}
