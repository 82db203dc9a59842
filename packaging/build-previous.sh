#!/usr/bin/env bash
# Builds an older commit of this repository in target/previous/debug, for `make upgrade-test`.
#   build-previous.sh [COMMIT]      without one: that before the newest cluster version
set -euo pipefail
cd "$(dirname "$0")/.."

commit=${1:-}
if [ -z "$commit" ]; then
    newest=$(git log -1 --format=%H -G'^pub const CLUSTER_VERSION_MAX' -- core/src/fsm/mod.rs)
    [ -n "$newest" ] || { echo "no commit changed CLUSTER_VERSION_MAX: is this a shallow clone?" >&2; exit 1; }
    commit=$newest^
fi
commit=$(git rev-parse --verify --quiet "$commit^{commit}") || { echo "there is no commit ${1:-$commit}" >&2; exit 1; }

source=target/previous/source
if [ -e "$source" ]; then
    git -C "$source" checkout --quiet --detach "$commit"
else
    git worktree prune
    git worktree add --quiet --detach "$source" "$commit"
fi
echo "the previous version: $(git log -1 --format='%h %s' "$commit")"
CARGO_TARGET_DIR=$PWD/target/previous cargo build --workspace --quiet --manifest-path "$source/Cargo.toml"
