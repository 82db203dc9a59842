#!/usr/bin/env bash
# Builds an older commit of this repository in target/previous/debug, for `make upgrade-test`.
#   build-previous.sh COMMIT
set -euo pipefail
cd "$(dirname "$0")/.."

commit=$(git rev-parse --verify --quiet "$1^{commit}") || { echo "there is no commit $1" >&2; exit 1; }

source=target/previous/source
if [ -e "$source" ]; then
    git -C "$source" checkout --quiet --detach "$commit"
else
    git worktree prune
    git worktree add --quiet --detach "$source" "$commit"
fi
echo "the previous version: $(git log -1 --format='%h %s' "$commit")"
CARGO_TARGET_DIR=$PWD/target/previous cargo build --workspace --quiet --manifest-path "$source/Cargo.toml"
