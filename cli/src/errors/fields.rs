//! Fields of requests, as people type them: a refusal names the option, not the field behind it.

/// What stands for a field in a message: `--from` for `starts_at`. A field that nobody types stays as it is.
pub(super) fn as_typed(field: &str) -> String {
    let bare = field.strip_prefix("spec.").unwrap_or(field);
    // Which one of a list, counted from 0, is seen by what the problem says of it.
    let bare = bare.split_once('[').map_or(bare, |(list, _)| list);
    let typed = match bare {
        "starts_at" | "window.starts_at" => "--from",
        "ends_at" | "window.ends_at" => "the end",
        "length_ms" | "time_limit" => "--time",
        "latest_start" | "wait_ms" => "--wait",
        "ask_reason" => "--ask",
        "owner" => "the user",
        "gpus" | "gpus.count" | "gpus.model" => "-G",
        "gpus.uuids" => "--gpu",
        "gpus.node" | "adopts.node" | "feed.node" => "--node",
        "gpus.memory_bytes_min" => "--gpu-memory",
        "adopts" | "adopts.pids" => "--adopt",
        "argv" => "the command",
        "env" => "--env",
        "volumes" => "--volume",
        "workdir" => "--workdir",
        "checkpoint.dir" => "--checkpoint-dir",
        "checkpoint.pattern" => "--checkpoint-pattern",
        "dates" => "--every",
        "limits.gpus" => "--gpus",
        "limits.group" | "add_groups" => "the group",
        "project.name" => "the project",
        "class.name" => "the class",
        "at_end" | "offer" | "begin" | "by" | "class" | "everybody" | "gpus_each" | "gpu_hours"
        | "gpu_hours_each" | "min_run" | "preemptible" | "priority" | "save_limit" | "deadline"
        | "image" | "max_deferral" | "memory" | "cpus" | "from" | "name" | "half_life"
        | "names" | "note" | "project" | "reason" | "restarts" | "stop_after" | "stop_grace"
        | "transfer_to" | "ttl" | "weight" | "with" | "until" | "without_gpus" | "places_kept"
        | "hold" | "mail" | "on" | "off" | "idle_after" | "idle_below" | "idle_release" => {
            return format!("--{}", bare.replace('_', "-"));
        }
        _ => return field.to_owned(),
    };
    typed.to_owned()
}

#[cfg(test)]
mod tests {
    use super::as_typed;

    #[test]
    fn refusals_name_what_was_typed() {
        let cases = [
            ("starts_at", "--from"),
            ("gpus.count", "-G"),
            ("latest_start", "--wait"),
            ("with[2]", "--with"),
            ("transfer_to", "--transfer-to"),
            ("spec.argv", "the command"),
            ("names[0]", "--names"),
            ("--retry-on", "--retry-on"),
            ("hello.facts_json", "hello.facts_json"),
        ];
        for (field, typed) in cases {
            assert_eq!(as_typed(field), typed, "{field}");
        }
    }
}
