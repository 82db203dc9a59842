#!/bin/sh
# Installs the packages of target/deb from a signed repository in a fresh Debian, and sees that apt takes it from nobody
# else: test-apt-repo.sh SUITE, called by `make deb-test`.
#
# The repository is made by apt-repo.sh as for a lab, with a key that is made for it and thrown away, in a folder of its
# own: neither the caller's keys nor target/apt are touched. The Debian has no other source of packages, so that what is
# installed comes from there. Leaves nothing behind. Needs root.
set -eu

suite=$1
cd "$(dirname "$0")/.."
if [ "$(id -u)" -ne 0 ]; then
    echo "test-apt-repo: root is needed to make a Debian to install into" >&2
    exit 1
fi
scratch=$(mktemp -d)
root=$scratch/root
GNUPGHOME=$scratch/gnupg
export GNUPGHOME
clean() {
    gpgconf --kill gpg-agent >/dev/null 2>&1 || true
    rm -rf "$scratch"
}
trap clean EXIT
trap 'exit 1' HUP INT TERM

say() { echo "test-apt-repo: $suite: $*"; }
fail() {
    echo "test-apt-repo: $suite: FAILED: $*" >&2
    exit 1
}
# shellcheck source=packaging/inside-debian.sh
. packaging/inside-debian.sh
key() { gpg --quiet --batch --pinentry-mode loopback --passphrase '' --quick-generate-key "$1" default default never; }
update() { inside apt-get update > "$scratch/update.log" 2>&1; }
# apt must neither succeed nor know any package of ours.
refused() {
    if update; then fail "$1 is taken: $(cat "$scratch/update.log")"; fi
    if inside apt-cache show fleet >/dev/null 2>&1; then fail "$1: fleet is offered"; fi
    rm -rf "$root/var/lib/apt/lists"
}
installed() { inside dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null || true; }

say "a signed repository"
install -d -m 700 "$GNUPGHOME"
key ops@lab.example
key stranger@lab.example
packaging/apt-repo.sh ops@lab.example "$scratch/apt" > "$scratch/made.log"
grep -q "apt-get install fleet-agent" "$scratch/made.log" || fail "what to type on each machine is not said"

say "a fresh Debian without any other source"
mmdebstrap --quiet --variant=apt --include=systemd,dbus,crun,man-db,ca-certificates "$suite" "$root"
rm -rf "$root/etc/apt/sources.list" "$root/etc/apt/sources.list.d" "$root/var/lib/apt/lists"
mkdir -p "$root/etc/apt/sources.list.d"
cp -r "$scratch/apt" "$root/srv/apt"
# apt reads it as a user of its own.
chmod -R a+rX "$root/srv/apt"
keyring=/usr/share/keyrings/fleet-archive-keyring.gpg
echo "deb [signed-by=$keyring] file:/srv/apt ./" > "$root/etc/apt/sources.list.d/fleet.list"

say "nobody else's"
gpg --quiet --export stranger@lab.example > "$scratch/stranger.gpg"
install -D -m 644 "$scratch/stranger.gpg" "$root$keyring"
refused "another key"
install -m 644 "$scratch/apt/fleet-archive-keyring.gpg" "$root$keyring"
echo >> "$root/srv/apt/Packages"
gzip -9nkf "$root/srv/apt/Packages"
refused "a list that was changed"
cp "$scratch/apt/Packages" "$scratch/apt/Packages.gz" "$root/srv/apt/"

say "update and install"
update || fail "update: $(cat "$scratch/update.log")"
if grep -E '^[EW]:' "$scratch/update.log"; then fail "apt is not content with the repository"; fi
inside apt-get install --yes fleet > "$scratch/install.log" 2>&1 || fail "install fleet: $(cat "$scratch/install.log")"
inside fleet --version >/dev/null || fail "fleet --version"
[ "$(installed fleet-agent)" != installed ] || fail "fleet brought an agent along"
inside apt-get install --yes fleet-agent fleet-controller > "$scratch/install.log" 2>&1 || fail "install the rest: $(cat "$scratch/install.log")"
for package in fleet fleet-agent fleet-controller; do
    [ "$(installed "$package")" = installed ] || fail "$package is not installed"
done
say "all good"
