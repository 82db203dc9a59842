#!/bin/sh
# Installs, upgrades, removes and purges the packages of target/deb in a fresh Debian: test-debs.sh SUITE, called by
# `make deb-test`.
#
# The Debian is a folder made by mmdebstrap, not booted: what systemd does with the units is not seen here, all that
# the packages' own scripts do is. Leaves nothing behind. Needs root.
set -eu

suite=$1
cd "$(dirname "$0")/.."
if [ "$(id -u)" -ne 0 ]; then
    echo "test-debs: root is needed to make a Debian to install into" >&2
    exit 1
fi
debs=$PWD/target/deb
scratch=$(mktemp -d)
root=$scratch/root
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM

say() { echo "test-debs: $suite: $*"; }
fail() {
    echo "test-debs: $suite: FAILED: $*" >&2
    exit 1
}
# shellcheck source=packaging/inside-debian.sh
. packaging/inside-debian.sh
# What is on the machine, but for what dpkg and systemd note about themselves.
files() {
    (cd "$root" && find . -xdev ! -path './var/lib/dpkg/*' ! -path './var/log/*' ! -path './var/cache/*' \
        ! -path './tmp/*' ! -path './root/*' ! -path './var/lib/systemd/deb-systemd-helper-*' | LC_ALL=C sort)
}
user_known() { inside getent passwd fleet >/dev/null && inside getent group fleet-admin >/dev/null; }

say "a fresh Debian"
mmdebstrap --quiet --variant=minbase --include=systemd,dbus,crun,man-db "$suite" "$root"
files > "$scratch/before"

say "install"
cp "$debs"/*.deb "$root/root/"
inside sh -c 'dpkg -i /root/*.deb' > "$scratch/install.log" 2>&1 || fail "install: $(cat "$scratch/install.log")"
grep -q "fleet node token create" "$scratch/install.log" || fail "the agent's next command is not said"
grep -q "fleet-controller init" "$scratch/install.log" || fail "the controller's next command is not said"
user_known || fail "the user fleet or the group fleet-admin is missing"
[ "$(inside stat -c '%U %a' /var/lib/fleet/controller)" = "fleet 700" ] || fail "the controller's folder"
[ -z "$(find "$root/etc/systemd/system" -name 'fleet*')" ] || fail "a unit was enabled by the installation"

say "what was installed works"
inside fleet --version >/dev/null || fail "fleet --version"
inside fleet-agent check-config || fail "the agent's configuration"
inside su -s /bin/sh fleet -c 'fleet-controller check-config' || fail "the controller's configuration"
inside su -s /bin/sh fleet -c 'fleet-controller init' > "$scratch/init.log" 2>&1 || fail "init: $(cat "$scratch/init.log")"
inside test -x /usr/lib/fleet/fleet-shim || fail "the shim"
said=$(inside sh -euic '. /etc/profile.d/fleet.sh; echo "${CUDA_VISIBLE_DEVICES-all}"' 2>/dev/null) || fail "a login without an agent"
[ "$said" = all ] || fail "a login without an agent: $said"
for page in "1 fleet-run" "8 fleet-agent" "8 fleet-controller-restore" "5 fleet.toml" "5 agent.toml" "5 controller.toml"; do
    # shellcheck disable=SC2086 # Section and name.
    inside man -w $page >/dev/null || fail "no manual page $page"
done
for program in fleet fleet-agent fleet-controller; do
    # shellcheck disable=SC2016 # Expanded by the inner shell.
    inside bash -c '. "/usr/share/bash-completion/completions/$0" && complete -p "$0"' "$program" >/dev/null ||
        fail "bash does not complete $program"
done

say "upgrade keeps what was changed and what is stored"
echo '# changed by the admin' >> "$root/etc/fleet/agent.toml"
(cd "$root" && sha256sum etc/fleet/agent.toml && find var/lib/fleet -type f -exec sha256sum {} +) > "$scratch/kept"
inside sh -c 'dpkg -i /root/*.deb' > "$scratch/upgrade.log" 2>&1 || fail "upgrade: $(cat "$scratch/upgrade.log")"
(cd "$root" && sha256sum --quiet -c "$scratch/kept") || fail "the upgrade changed files"
if grep -q "fleet-controller init" "$scratch/upgrade.log"; then fail "an upgrade offers to make a cluster"; fi

say "remove keeps configuration and state"
inside dpkg -r fleet-agent fleet-controller fleet > "$scratch/remove.log" 2>&1 || fail "remove: $(cat "$scratch/remove.log")"
[ ! -e "$root/usr/bin/fleet-agent" ] || fail "a program is still there"
(cd "$root" && sha256sum --quiet -c "$scratch/kept") || fail "the removal changed files"

say "purge leaves nothing but the users"
inside dpkg -P fleet-agent fleet-controller fleet > "$scratch/purge.log" 2>&1 || fail "purge: $(cat "$scratch/purge.log")"
files > "$scratch/after"
# Users stay, as Debian's policy has it: files elsewhere may be theirs. The accounts' backup files come with them.
left=$(LC_ALL=C comm -13 "$scratch/before" "$scratch/after" | grep -v -E '^\./etc/(passwd|group|shadow|gshadow|subuid|subgid)-$' || true)
[ -z "$left" ] || fail "left behind: $left"
gone=$(LC_ALL=C comm -23 "$scratch/before" "$scratch/after")
[ -z "$gone" ] || fail "taken away though not ours: $gone"
say "all good"
