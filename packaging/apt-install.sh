#!/bin/sh
# Installs Debian packages: apt-install.sh CALLER WORD... Says what it installs, in the caller's name. A word is a
# package, or COMMAND:PACKAGE: a package that is needed where the command is missing.
#
# Called by the other scripts here. As a normal user it goes through sudo, or says what to type. Tested on Debian 12.
set -eu

caller=$1
shift

# /usr/sbin is not on every user's path, but runc is there.
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
missing=""
for word in "$@"; do
    if [ "${word%%:*}" = "$word" ] || ! command -v "${word%%:*}" >/dev/null 2>&1; then
        missing="$missing ${word#*:}"
    fi
done
if [ -z "$missing" ]; then
    exit 0
fi
# shellcheck disable=SC2086 # The list is meant to be split.
set -- $missing

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
