//! Metrics: the table in docs/metrics.md, the dashboard and the alerts, held to what the programs declare.
//!
//! That what is declared is also served, and nothing else, is shown by `tests/it/operations.rs` on running
//! programs.

use std::collections::{BTreeMap, BTreeSet};

use fleet_daemon::metrics::{Kind, Metric};

use crate::{Violation, tree};

const PAGE: &str = "docs/metrics.md";
const DASHBOARD: &str = "packaging/grafana/fleet.json";
/// What *GPU* among the labels stands for.
const GPU_LABELS: [&str; 5] = ["gpu", "UUID", "device", "modelName", "Hostname"];
/// Labels that Prometheus or a histogram adds.
const ADDED_LABELS: [&str; 3] = ["instance", "job", "le"];

/// A row of the table, as text: where, kind, unit, labels, meaning.
type Cells = (String, String, String, Vec<String>, String);

fn declared() -> BTreeMap<String, Cells> {
    let mut rows: BTreeMap<String, Cells> = BTreeMap::new();
    let programs =
        [("C", fleet_controller::operations::metrics()), ("A", fleet_agent::operations::metrics())];
    for (program, metrics) in programs {
        for metric in metrics {
            rows.entry(metric.name.to_owned())
                .and_modify(|row| row.0 = "B".to_owned())
                .or_insert_with(|| cells(program, &metric));
        }
    }
    rows
}

fn cells(program: &str, metric: &Metric) -> Cells {
    let labels = metric.labels.iter().map(|label| (*label).to_owned()).collect();
    let (kind, unit) = (metric.kind.word().to_owned(), metric.unit.word().to_owned());
    (program.to_owned(), kind, unit, labels, metric.help.to_owned())
}

/// The rows of the page's table.
fn explained(page: &str) -> BTreeMap<String, Cells> {
    let rows =
        page.lines().filter(|line| line.starts_with("| `") && line.matches('|').count() == 7);
    rows.map(|line| {
        let cell: Vec<&str> = line.split('|').map(str::trim).collect();
        let bare = |text: &str| text.trim_matches('`').to_owned();
        let labels = cell[5].split(", ").filter(|label| !label.is_empty()).map(bare);
        let labels = labels.flat_map(|label| match label.as_str() {
            "GPU" => GPU_LABELS.map(str::to_owned).to_vec(),
            _ => vec![label],
        });
        let (name, labels) = (bare(cell[1]), labels.collect());
        let row = (cell[2].into(), cell[3].into(), cell[4].into(), labels, cell[6].into());
        (name, row)
    })
    .collect()
}

fn differences(
    declared: &BTreeMap<String, Cells>,
    page: &BTreeMap<String, Cells>,
) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut say = |what: String| violations.push(Violation::new(PAGE, 1, what));
    for (name, row) in declared {
        match page.get(name) {
            None => say(format!("`{name}` is not explained; its row: {row:?}")),
            Some(said) if said != row => say(format!("`{name}` is {row:?}, not {said:?}")),
            Some(_) => {}
        }
    }
    for name in page.keys().filter(|name| !declared.contains_key(*name)) {
        say(format!("no program has `{name}`"));
    }
    violations
}

/// Names of metrics in a query: words that begin as ours do.
fn names(query: &str) -> BTreeSet<String> {
    let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    let ours = words.filter(|word| word.starts_with("fleet_") || word.starts_with("process_"));
    ours.map(str::to_owned).collect()
}

/// Labels a query filters and groups by: before `=`, `!` in braces, and in brackets behind `by`, `on`.
fn labels(query: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for inside in query.split('{').skip(1).filter_map(|rest| rest.split('}').next()) {
        for part in inside.split(',') {
            let label = part.split(['=', '!']).next().unwrap_or_default().trim();
            found.insert(label.to_owned());
        }
    }
    for word in ["by (", "on (", "on(", "group_left("] {
        for inside in query.split(word).skip(1).filter_map(|rest| rest.split(')').next()) {
            found.extend(inside.split(',').map(|label| label.trim().to_owned()));
        }
    }
    found.remove("");
    found
}

/// What is wrong with a query.
fn bad_query(query: &str, declared: &BTreeMap<String, Cells>) -> Vec<String> {
    let mut problems = Vec::new();
    let mut known: BTreeSet<&str> = ADDED_LABELS.into();
    let names = names(query);
    if names.is_empty() {
        problems.push(format!("no metric in `{query}`"));
    }
    for name in &names {
        let histogram = |ending| {
            let base = name.strip_suffix(ending)?;
            declared.get(base).filter(|row| row.1 == Kind::Histogram.word())
        };
        let row = declared
            .get(name)
            .filter(|row| row.1 != Kind::Histogram.word())
            .or_else(|| ["_bucket", "_sum", "_count"].into_iter().find_map(histogram));
        match row {
            Some(row) => known.extend(row.3.iter().map(String::as_str)),
            None => problems.push(format!("no program has `{name}`, in `{query}`")),
        }
    }
    let strange = labels(query).into_iter().filter(|label| !known.contains(label.as_str()));
    problems.extend(strange.map(|label| format!("nothing has the label `{label}`, in `{query}`")));
    problems
}

/// All texts in a JSON value under one of these keys.
fn texts(value: &serde_json::Value, key: &str, into: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str() {
                    Some(text) if name == key => into.push(text.to_owned()),
                    _ => texts(value, key, into),
                }
            }
        }
        serde_json::Value::Array(items) => items.iter().for_each(|item| texts(item, key, into)),
        _ => {}
    }
}

fn page() -> String {
    let page = tree::files_ending(".md").into_iter().find(|file| file.path == PAGE);
    page.expect("the page is there").text
}

#[test]
fn the_table_is_what_the_programs_declare() {
    let (declared, page) = (declared(), explained(&page()));
    assert!(page.len() > 40, "found only {} rows: the search is broken", page.len());
    crate::assert_none(&differences(&declared, &page));
}

#[test]
fn the_dashboard_asks_for_what_there_is() {
    let file = tree::files_ending(".json").into_iter().find(|file| file.path == DASHBOARD);
    let file = file.expect("the dashboard is there");
    let value: serde_json::Value = serde_json::from_str(&file.text).expect("it is JSON");
    let mut queries = Vec::new();
    texts(&value, "expr", &mut queries);
    assert!(queries.len() > 20, "found only {} queries: the search is broken", queries.len());
    let declared = declared();
    let problems = queries.iter().flat_map(|query| bad_query(query, &declared));
    let violations: Vec<_> = problems.map(|what| Violation::new(DASHBOARD, 1, what)).collect();
    crate::assert_none(&violations);
    // The variable's own query has another form.
    let mut variables = Vec::new();
    texts(&value, "definition", &mut variables);
    assert_eq!(variables, ["label_values(fleet_gpu_info, Hostname)"]);
    assert!(declared["fleet_gpu_info"].3.contains(&"Hostname".to_owned()));
    let mut ids: Vec<u64> = value["panels"]
        .as_array()
        .expect("panels")
        .iter()
        .map(|panel| panel["id"].as_u64().expect("an id"))
        .collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "two panels have one id");
}

#[test]
fn the_alerts_ask_for_what_there_is() {
    let page = page();
    let (_, alerts) = page.split_once("## Alerts").expect("the alerts are there");
    let lines = alerts.lines().skip_while(|line| *line != "```").skip(1);
    let queries: Vec<&str> = lines
        .take_while(|line| *line != "```")
        .map(|line| line.split(" #").next().unwrap_or_default().trim())
        .collect();
    assert!(queries.len() > 5, "found only {queries:?}: the search is broken");
    let declared = declared();
    let problems = queries.iter().flat_map(|query| bad_query(query, &declared));
    crate::assert_none(&problems.map(|what| Violation::new(PAGE, 1, what)).collect::<Vec<_>>());
}

#[test]
fn a_wrong_row_or_query_is_found() {
    let declared: BTreeMap<String, Cells> = [
        ("fleet_a", "gauge", vec!["state"]),
        ("fleet_b_seconds", "histogram", vec![]),
        ("fleet_gpu_c", "gauge", GPU_LABELS.to_vec()),
    ]
    .into_iter()
    .map(|(name, kind, labels)| {
        let labels = labels.into_iter().map(str::to_owned).collect();
        (name.to_owned(), ("C".into(), kind.into(), String::new(), labels, "M.".into()))
    })
    .collect();
    let good = "| `fleet_a` | C | gauge |  | `state` | M. |\n\
                | `fleet_b_seconds` | C | histogram |  |  | M. |\n\
                | `fleet_gpu_c` | C | gauge |  | GPU | M. |\n";
    assert_eq!(differences(&declared, &explained(good)), []);
    for bad in [
        good.replace("`state`", "`kind`"),
        good.replace("| gauge |  | `state`", "| counter |  | `state`"),
        good.replace("| `fleet_a` | C", "| `fleet_a` | A"),
        good.replace("`fleet_b_seconds`", "`fleet_a`"),
        format!("{good}| `fleet_d` | C | gauge |  |  | M. |\n"),
    ] {
        assert!(!differences(&declared, &explained(&bad)).is_empty(), "{bad}");
    }
    for good in [
        "sum by (state) (fleet_a{state=~\"x\"})",
        "histogram_quantile(0.9, sum by (le) (rate(fleet_b_seconds_bucket[5m])))",
        "fleet_gpu_c and on (UUID) fleet_a",
    ] {
        assert_eq!(bad_query(good, &declared), Vec::<String>::new(), "{good}");
    }
    for bad in [
        "fleet_z",
        "fleet_b_seconds",
        "fleet_a_bucket",
        "fleet_a{kind=\"x\"}",
        "sum by (node) (fleet_a)",
        "vector(1)",
    ] {
        assert!(!bad_query(bad, &declared).is_empty(), "{bad}");
    }
}
