#!/bin/sh
# Builds the commit that is checked out again and compares the bytes: check-release.sh [SHA256SUMS], called by
# `make release-check`.
#
# With SHA256SUMS, the file of a published release, it builds once and compares with that. Without, it builds twice, in
# folders with names of different lengths, under another time zone and another umask. Nothing is signed. What was built
# stays in target/release-check, for a look at what differs. Needs what release.sh needs.
set -eu

# It may be one in the folder that is emptied here.
published=${1:+$(cat "$1")}
cd "$(dirname "$0")/.."
folder=$PWD/target/release-check
one=$folder/one
rm -rf "$folder"
mkdir -p "$folder"

packaging/release.sh --unsigned "$one"
if [ -n "$published" ]; then
    other=$folder/published
    echo "$published" > "$other"
else
    other=$folder/another-folder-with-a-longer-name/two
    mkdir -p "$(dirname "$other")"
    (umask 077 && TZ=Pacific/Kiritimati LC_ALL=C packaging/release.sh --unsigned "$other")
    other=$other/SHA256SUMS
fi

if ! diff -u "$other" "$one/SHA256SUMS"; then
    echo "release-check: the bytes differ, in the files above. First compare built-with.txt; diffoscope shows the rest" >&2
    exit 1
fi
echo "release-check: the same bytes: $(sha256sum < "$one/SHA256SUMS" | cut -d ' ' -f 1) (SHA256SUMS)"
