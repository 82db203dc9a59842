#!/bin/bash
# Draws docs/pictures/calendar.png, the week of a lab, for README.md: a `fleet dev` with reservations of some people, in
# Chromium. After `make web`, which installs what it needs.
set -eu -o pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
target=$root/target/web
fleet=$root/target/debug/fleet
cp "$here/picture.mjs" "$target/"

state=$(mktemp -d /tmp/fleet-web-XXXXXX)
"$fleet" dev --nodes 2 --gpus v100-pcie:8 --state "$state" >"$target/dev.log" 2>&1 &
dev=$!
trap 'kill -INT $dev 2>/dev/null; wait $dev || true; rm -rf "$state"' EXIT
until grep -q '^ready' "$target/dev.log"; do
    kill -0 $dev
    sleep 1
done
export FLEET_CONFIG=$state/fleet.toml

# Whose, which GPUs, from when, until when, what for.
reserve() {
    local gpus=()
    for number in ${2#*:}; do
        gpus+=(--gpu "${2%%:*}:$number")
    done
    "$fleet" reserve --yes --for "$1" "${gpus[@]}" --from "$3" --until "$4" --note "$5" >/dev/null 2>&1
}
day() { date -d "+$1 days" +%F; }
reserve ada "titan01:0 1 2 3" "$(day 0)T23:30" "$(day 2)T12:00" "figures for the paper"
reserve bob "titan01:4 5" "$(day 1)T09:00" "$(day 3)T18:00" "hyperparameter search"
reserve grace "titan01:6 7" "$(day 1)T08:00" "$(day 1)T20:00" "course, exercise 4"
reserve grace "titan01:6 7" "$(day 3)T08:00" "$(day 3)T20:00" "course, exercise 5"
reserve ada "titan01:0 1 2 3 4 5 6 7" "$(day 4)T08:00" "$(day 6)T18:00" "deadline"
reserve wei "titan02:0 1" "$(day 0)T23:30" "$(day 4)T09:00" "pretraining"
reserve eve "titan02:2" "$(day 1)T10:00" "$(day 2)T22:00" ""
reserve root "titan02:3 4" "$(day 2)T09:00" "$(day 4)T17:00" "driver tests"
reserve dmitri "titan02:5 6 7" "$(day 3)T00:00" "$(day 5)T12:00" "segmentation"
"$fleet" dev fault --node titan02 --gpu 7 --retired-pages 2 >/dev/null
cd "$state"
"$fleet" run -d -G 1 -t 8h --node titan02 -- sleep 600 >/dev/null

cd "$target"
node picture.mjs "$("$fleet" web)" "$root/docs/pictures/calendar.png"
