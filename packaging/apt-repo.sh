#!/bin/sh
# Makes a signed repository of the packages in target/deb: apt-repo.sh KEY [OUT], called by `make apt-repo KEY=…` and
# by test-apt-repo.sh.
#
# The folder OUT (default: target/apt) is emptied first. Any web server can serve it, or apt can read it from the disk.
# KEY is any name by which gpg finds a secret key. With --unsigned instead, the lists are made and nothing is signed, for
# a comparison of bytes (packaging/release.sh). With SOURCE_DATE_EPOCH the lists have that date.
set -eu

cd "$(dirname "$0")/.."
key=${1:-}
if [ -z "$key" ]; then
    echo "apt-repo: which key signs it? make apt-repo KEY=NAME-OR-FINGERPRINT (gpg --list-secret-keys shows yours)" >&2
    exit 1
fi
if [ "$key" != --unsigned ] && ! gpg --list-secret-keys "$key" >/dev/null 2>&1; then
    echo "apt-repo: gpg knows no secret key $key; gpg --quick-generate-key NAME makes one" >&2
    exit 1
fi
out=${2:-target/apt}
rm -rf "$out"
mkdir -p "$out"
cp target/deb/*.deb "$out/"
cd "$out"
apt-ftparchive packages . > Packages
gzip -9nk Packages
date=$(LC_ALL=C date --utc --date="@${SOURCE_DATE_EPOCH:-$(date +%s)}" '+%a, %d %b %Y %H:%M:%S +0000')
apt-ftparchive -o APT::FTPArchive::Release::Origin=fleet -o APT::FTPArchive::Release::Label=fleet \
    -o APT::FTPArchive::Release::Date="$date" release . > Release.new
mv Release.new Release
if [ "$key" = --unsigned ]; then
    exit 0
fi
gpg --quiet --batch --yes --local-user "$key" --clearsign --output InRelease Release
gpg --quiet --batch --yes --local-user "$key" --armor --detach-sign --output Release.gpg Release
gpg --quiet --export "$key" > fleet-archive-keyring.gpg
cat <<END
apt-repo: $out is ready. On each machine, with that folder served at URL:
    install -D -m 644 fleet-archive-keyring.gpg /usr/share/keyrings/fleet-archive-keyring.gpg
    echo "deb [signed-by=/usr/share/keyrings/fleet-archive-keyring.gpg] URL ./" > /etc/apt/sources.list.d/fleet.list
    apt-get update && apt-get install fleet-agent
END
