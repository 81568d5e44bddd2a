#!/bin/sh
# Builds the Debian package from an sdist: deploy/deb.sh SDIST OUTPUT. The same sdist and
# SOURCE_DATE_EPOCH give the same bytes, on the same release of Debian.
set -eu

sdist=$1 output=$2
: "${SOURCE_DATE_EPOCH:?the time of the newest change, in seconds}"
export SOURCE_DATE_EPOCH LC_ALL=C.UTF-8 TZ=UTC
umask 022

build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
tar -xzf "$sdist" -C "$build" --no-same-owner
source=$(echo "$build"/raftcron-*)
version=${source##*/raftcron-}
cp -r "$source/deploy/debian" "$source/debian"
cat > "$source/debian/changelog" <<CHANGELOG
raftcron ($version) unstable; urgency=medium

  * See /usr/share/doc/raftcron/CHANGELOG.md.

 -- raftcron developers <raftcron@localhost>  $(date -R -d "@$SOURCE_DATE_EPOCH")
CHANGELOG
(cd "$source" && dpkg-buildpackage --build=binary --no-sign ${DPKG_OPTIONS-})
mkdir -p "$output"
cp "$build"/raftcron_*.deb "$output"
