#!/bin/bash
# Installs the frameworks into target/frameworks and plays stories.py with the programs of target/debug.
# `make frameworks` calls it. It never installs anything outside target/.
set -eu -o pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
target=$root/target/frameworks
fleet=${FLEET:-$root/target/debug/fleet}
# PyTorch comes with CUDA's libraries, though the stories run on CPUs.
needed_gb=8
wait_s=1200

skipped() {
    echo "SKIPPED: frameworks: $*"
    exit 0
}

[ "$(id -u)" = 0 ] || skipped "jobs of fleet dev need root"
python=$target/venv/bin/python
if ! [ -e "$target/installed" ] || ! cmp -s "$here/requirements.txt" "$target/installed"; then
    mkdir -p "$target"
    free_gb=$(df --output=avail -BG "$target" | tail -1 | tr -dc 0-9)
    [ "$free_gb" -ge "$needed_gb" ] || skipped "$target needs $needed_gb GB, $free_gb GB are free"
    echo "installing PyTorch, Transformers and Lightning into $target/venv (5 GB)"
    ${PYTHON:-python3} -m venv "$target/venv" || skipped "${PYTHON:-python3} cannot make a virtual environment"
    timeout "$wait_s" "$python" -m pip install --quiet -r "$here/requirements.txt" ||
        skipped "pip cannot install requirements.txt"
    cp "$here/requirements.txt" "$target/installed"
fi
exec "$python" -uB "$here/stories.py" --fleet "$fleet" "$@"
