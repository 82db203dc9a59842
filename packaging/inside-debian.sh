# shellcheck shell=sh
# How test-debs.sh and test-apt-repo.sh run a command in the Debian they made in the folder $root; read by them,
# never run by itself.

# With /proc, without which Debian 11's systemd-sysusers makes nobody; the mount goes with the command.
inside() {
    # shellcheck disable=SC2016 # Expanded by the inner shell.
    unshare --mount --propagation private sh -euc 'mount -t proc proc "$0/proc"; exec chroot "$0" "$@"' "$root" \
        /usr/bin/env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 "$@"
}
