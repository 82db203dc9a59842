#!/bin/sh
# Installs the Debian packages that building, testing and the demo need, and nothing that is there already.
#
# Called by `make test` and `make demo`. Says what it installs. Needs root for apt-get only: as a normal user it
# goes through sudo, or says what to install. Tested on Debian 12.
set -eu

wanted="cc:gcc crun:crun runc:runc python3:python3 busybox:busybox-static faketime:faketime script:bsdutils docker-registry:docker-registry zsh:zsh fish:fish man:man-db"

# A compiler without the headers of libc links nothing.
if [ ! -e /usr/include/stdio.h ]; then
    wanted="$wanted libc6-dev"
fi
# On distributions that have a Rust package the toolchain may come from there; we ask for rustup's.
if ! command -v cargo >/dev/null 2>&1; then
    echo "install-deps: there is no cargo; install Rust with rustup: https://rustup.rs" >&2
    exit 1
fi

# The package of docker-registry starts one for everybody on port 5000. Tests start their own; nobody else asked for it.
if ! command -v docker-registry >/dev/null 2>&1 && [ -d /run/systemd/system ]; then
    as_root=""
    [ "$(id -u)" -eq 0 ] || as_root="sudo"
    $as_root systemctl mask docker-registry.service >/dev/null 2>&1 || true
fi

# shellcheck disable=SC2086 # The list is meant to be split.
exec "$(dirname "$0")/apt-install.sh" install-deps $wanted
