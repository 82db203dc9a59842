#!/bin/bash
# Tries the web page of a `fleet dev` in Chromium, as two people. `make web` calls it, with cases to choose some.
# Debian's packages apart, it installs into target/web only.
set -eu -o pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
target=$root/target/web
fleet=${FLEET:-$root/target/debug/fleet}
install_s=900
ready_s=60

skipped() {
    echo "SKIPPED: web: $*"
    exit 0
}

[ "$(id -u)" = 0 ] || skipped "fleet dev needs root"
# Not what is there already: another node may be newer than Debian's.
"$root/packaging/apt-install.sh" web chromium:chromium node:nodejs npm:npm ||
    skipped "apt-get cannot install Chromium and node"
mkdir -p "$target/shots"
cp "$here"/*.mjs "$here/package.json" "$target/"
(cd "$target" && timeout "$install_s" npm install --silent --no-audit --no-fund) ||
    skipped "npm cannot install playwright-core"

state=$(mktemp -d /tmp/fleet-web-XXXXXX)
chmod 755 "$state"
"$fleet" dev --nodes 2 --gpus v100-pcie:4 --state "$state" >"$target/dev.log" 2>&1 &
dev=$!
# Ctrl-C ends the clusters of `fleet dev`, and so does this.
trap 'kill -INT $dev 2>/dev/null; wait $dev || true; rm -rf "$state"' EXIT
for _ in $(seq "$ready_s"); do
    grep -q '^ready' "$target/dev.log" && break
    kill -0 $dev || { cat "$target/dev.log"; exit 1; }
    sleep 1
done
export FLEET_CONFIG=$state/fleet.toml
# The second person asks for approval above this.
"$fleet" reservation limits '*' --time 48h >"$target/limits.log"
: >"$target/offers.log"
one=$("$fleet" web)
# An account of every machine, which fleet dev lets in.
other=$(setpriv --reuid nobody --clear-groups "$fleet" web)
cd "$target"
# It prints while the test reads it.
job=$("$fleet" run -d -G 1 --node titan02 -t 1h -- sh -c \
    'for i in $(seq 3000); do printf "\033[32mstep %s\033[0m <script>alert(1)</script>\n" "$i"; sleep 1; done')
offers=()
for _ in 1 2; do
    id=$(setpriv --reuid nobody --clear-groups "$fleet" reserve -d -G 1 -t 1h --wait 1d --offer 0-24 2>>"$target/offers.log")
    offers+=(--offered "$id")
done
node page.mjs --url "${one%%/login*}" --login "$one" --login "$other" --shots "$target/shots" \
    --job "$job" "${offers[@]}" "$@"
echo "screenshots are in $target/shots"
