#!/bin/sh
# Installs Debian packages: apt-install.sh CALLER PACKAGE... Says what it installs, in the caller's name.
#
# Called by the other scripts here. As a normal user it goes through sudo, or says what to type. Tested on Debian 12.
set -eu

caller=$1
shift

if ! command -v apt-get >/dev/null 2>&1; then
    echo "$caller: missing: $*. There is no apt-get here: install them by your package manager." >&2
    exit 1
fi
if [ "$(id -u)" -eq 0 ]; then
    as_root=""
elif command -v sudo >/dev/null 2>&1; then
    as_root="sudo"
else
    echo "$caller: missing: $*. Root is needed once, to install them:" >&2
    echo "    apt-get install --no-install-recommends $*" >&2
    exit 1
fi

echo "$caller: installing from Debian: $*"
# The package lists may be missing or old: fetch them only when it does not work without.
install="$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends"
# shellcheck disable=SC2086 # These are words of a command.
$install "$@" || { $as_root apt-get update -q && $install "$@"; }
