#!/bin/bash
# Installs the Debian packages that tests use, where that is possible. Where it is not, those tests are skipped and say so.
set -euo pipefail

missing=()
command -v prometheus >/dev/null || missing+=(prometheus) # it brings promtool
command -v systemd-nspawn >/dev/null || missing+=(systemd-container)
# The distribution's own Python, whichever runs the tests: the service is installed with it in a container.
/usr/bin/python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "not installed: ${missing[*]} (needs root and apt-get); the tests that need them will be skipped"
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}"
# Prometheus starts a service of its own, where something runs that starts services. The tests start theirs.
if [ -d /run/systemd/system ] && [[ " ${missing[*]} " == *" prometheus "* ]]; then
    systemctl disable --now prometheus
fi
