//! Bars on standard error for what nodes pull, one for each; nothing where that is no terminal. Called by
//! [`super::image`]. They are gone before anything else is printed.

use std::collections::BTreeMap;

use fleet_proto::v1::ImageProgress;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::output::text::harmless;

/// How much of what, how fast, how long still. Nothing is known of the second kind but what is waited for.
const WITH_BYTES: &str = "{prefix} {msg:9} [{bar:24}] {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left";
const WITHOUT: &str = "{prefix} {msg}";
const LEFT: &str = "{pos} of {len} nodes are done";

pub(super) struct Bars {
    all: MultiProgress,
    /// How many nodes are done, where there are several.
    count: ProgressBar,
    nodes: BTreeMap<String, ProgressBar>,
}

impl Bars {
    /// For so many nodes.
    pub(super) fn new(nodes: usize) -> Self {
        let all = MultiProgress::new();
        let count = ProgressBar::hidden().with_style(style(LEFT));
        count.set_length(u64::try_from(nodes).unwrap_or(u64::MAX));
        let count = if nodes > 1 { all.add(count) } else { count };
        Self { all, count, nodes: BTreeMap::new() }
    }

    /// How far one of them is.
    pub(super) fn step(&mut self, node: &str, step: &ImageProgress) {
        let phase = harmless(&step.phase);
        let known = self.nodes.get(node).cloned();
        let bar =
            known.clone().unwrap_or_else(|| ProgressBar::hidden().with_prefix(node.to_owned()));
        if bar.message() != phase {
            // Another phase counts from 0 again.
            bar.reset();
            bar.set_style(style(if step.bytes_total > 0 { WITH_BYTES } else { WITHOUT }));
            bar.set_message(phase);
        }
        bar.set_length(step.bytes_total);
        bar.set_position(step.bytes_done);
        if known.is_none() {
            // Not drawn before all of it is known.
            let bar = self.all.add(bar);
            bar.tick();
            self.nodes.insert(node.to_owned(), bar);
        }
        self.count.tick();
    }

    /// It is done, or could not do it.
    pub(super) fn ended(&mut self, node: &str) {
        if let Some(bar) = self.nodes.remove(node) {
            bar.finish_and_clear();
            self.all.remove(&bar);
        }
        self.count.inc(1);
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        for bar in self.nodes.values().chain([&self.count]) {
            bar.finish_and_clear();
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .expect("the templates of this file are good")
        .progress_chars("=> ")
}
