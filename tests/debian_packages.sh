#!/bin/bash
# Installs the Debian packages that tests use, where that is possible. Where it is not, those tests are skipped and say so.
set -euo pipefail

missing=()
for package in prometheus; do # prometheus brings promtool
    command -v "$package" >/dev/null || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "not installed: ${missing[*]} (needs root and apt-get); the tests that need them will be skipped"
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}"
# The package starts a service of its own, where something runs that starts services. The tests start theirs.
if [ -d /run/systemd/system ]; then
    systemctl disable --now "${missing[@]}"
fi
