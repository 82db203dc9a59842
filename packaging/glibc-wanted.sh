#!/bin/sh
# The oldest glibc with which programs start: glibc-wanted.sh PROGRAM... prints as 2.30 what the newest symbol that any
# of them asks for came with, or nothing where all of them are linked statically.
#
# Called by build-programs.sh and build-debs.sh. A library besides the C library's own ones is a failure: the packages
# depend on no other.
set -eu

versions=$(for program in "$@"; do
    headers=$(objdump -p "$program")
    others=$(echo "$headers" | sed -n 's/^ *NEEDED *//p' |
        grep -v -x -E 'lib(c|m|dl|rt|util|gcc_s|pthread)\.so\.[0-9]+|ld-linux-[a-z0-9-]+\.so\.[0-9]' || true)
    if [ -n "$others" ]; then
        echo "glibc-wanted: $program needs $others" >&2
        exit 1
    fi
    if echo "$headers" | grep -q NEEDED; then
        symbols=$(objdump -T "$program")
        echo "$symbols" | sed -n 's/.*GLIBC_\([0-9.]*\).*/\1/p'
    fi
done)
printf '%s\n' "$versions" | sort -uV | tail -n 1
