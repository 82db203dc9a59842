#!/bin/sh
# Builds the programs that go into packages, for old systems too: build-programs.sh [FOLDER], called by `make deb`.
#
# A program needs a C library at least as new as the one it was linked with. So they are linked in a Debian 11, the
# oldest that labs still run (glibc 2.31; Ubuntu 20.04 has the same): a folder made by mmdebstrap, with this machine's
# Rust, and without the network. Programs come to target/debian-11/release, or FOLDER/release, and are then asked which
# symbols of the library they want. Needs root, and Debian's packages once.
#
# The same tree, the same Rust and the same Debian 11 give the same bytes, wherever the tree is: inside, every folder has
# a fixed name, and neither this machine's environment nor its cargo settings are seen. packaging/release.sh relies on it.
set -eu
umask 022

cd "$(dirname "$0")/.."
suite=bullseye
newest=2.31
out=$(realpath -m "${1:-target/debian-11}")
# The number changes when the folder is made in another way.
root=$PWD/target/tools/$suite-1
if [ "$(id -u)" -ne 0 ]; then
    echo "build-programs: root is needed to make a Debian $suite to build in" >&2
    exit 1
fi

if [ ! -d "$root" ]; then
    echo "build-programs: making a Debian $suite to build in"
    rm -rf "$root.new"
    mkdir -p "$(dirname "$root")"
    mmdebstrap --quiet --variant=minbase --include=gcc,libc6-dev "$suite" "$root.new"
    mkdir -p "$root.new/src" "$root.new/rust" "$root.new/cargo" "$root.new/out"
    mv "$root.new" "$root"
fi
mkdir -p "$out" "$root/vendor"

# cargo's own folder of sources is named after the registry that they came from, and a mirror has another name.
cargo=${CARGO:-cargo}
vendor=$PWD/target/vendor
"$cargo" vendor --locked --respect-source-config --versioned-dirs --quiet "$vendor" >/dev/null
cat > "$root/cargo/config.toml" <<'END'
[source.crates-io]
replace-with = "vendor"
[source.vendor]
directory = "/vendor"
END
rust=$(rustc --print sysroot)
epoch=${SOURCE_DATE_EPOCH:-0}
export root out rust vendor epoch
# The mounts are this shell's own and go with it. Where Rust's own sources are installed, rustc writes their folder into
# messages, so they are hidden.
# shellcheck disable=SC2016 # Expanded by the inner shell.
unshare --mount --propagation private sh -euc '
    mount --bind . "$root/src"
    mount --bind "$rust" "$root/rust"
    [ ! -d "$rust/lib/rustlib/src" ] || mount -t tmpfs tmpfs "$root/rust/lib/rustlib/src"
    mount --bind "$vendor" "$root/vendor"
    mount --bind "$out" "$root/out"
    mount --bind /dev "$root/dev"
    mount -t proc proc "$root/proc"
    exec chroot "$root" /usr/bin/env -i PATH=/rust/bin:/usr/bin:/bin HOME=/root CARGO_HOME=/cargo \
        CARGO_TARGET_DIR=/out CARGO_TERM_COLOR=never SOURCE_DATE_EPOCH="$epoch" sh -euc "
            cd /src
            exec cargo build -p fleet -p fleet-agent -p fleet-shim -p fleet-controller --bins --release --locked --offline --quiet"'

for program in fleet fleet-agent fleet-shim fleet-init fleet-controller; do
    wanted=$(packaging/glibc-wanted.sh "$out/release/$program")
    if [ -z "$wanted" ]; then
        echo "build-programs: $program needs no C library of the system"
    elif [ "$(printf '%s\n' "$newest" "$wanted" | sort -V | tail -n 1)" = "$newest" ]; then
        echo "build-programs: $program needs glibc $wanted or later"
    else
        echo "build-programs: $program needs glibc $wanted, and a system may have $newest" >&2
        exit 1
    fi
done
