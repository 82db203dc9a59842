#!/bin/sh
# Installs what `make release` needs besides what `make deb` does, if it is not there already: cargo-cyclonedx, which lists
# the crates in the programs. Prints the folder that it is in.
#
# Called by release.sh. The version is pinned: another one writes other bytes. It stays in target/tools.
set -eu

cd "$(dirname "$0")/.."
version=0.5.9
folder=$PWD/target/tools/cargo-cyclonedx-$version
if [ ! -x "$folder/bin/cargo-cyclonedx" ]; then
    echo "install-release-tools: building cargo-cyclonedx $version" >&2
    "${CARGO:-cargo}" install --quiet --locked --root "$folder" --version "=$version" cargo-cyclonedx >&2
fi
echo "$folder"
