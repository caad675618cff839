#!/bin/sh
# Boots systemd in a container of this machine's own root, and ends it when told to (SIGTERM). $1: an empty folder.
# Run as root in a mount namespace of its own (`unshare --mount`): no mount is seen outside, and all go with the last process.
set -eu
here=$1

# What the container writes stays in memory.
mount -t tmpfs -o mode=0755 tmpfs "$here"
mkdir "$here/upper" "$here/work" "$here/root" "$here/cgroup"
mount -t overlay -o "lowerdir=/,upperdir=$here/upper,workdir=$here/work" overlay "$here/root"

# Of this machine's own services, mounts and identity it has none.
rm -rf "$here"/root/etc/systemd/system/*.wants "$here"/root/etc/systemd/system/*.requires
: >"$here/root/etc/fstab"
tr -d - </proc/sys/kernel/random/uuid >"$here/root/etc/machine-id"
mkdir -p /run/systemd/nspawn # its locks
mount -t tmpfs tmpfs /run/systemd/nspawn

# One control group holds everything: by it all is found at the end. Mounted anew, for /sys may be read-only, or of the
# older kind; the container sees the unified hierarchy, as on the distributions of today.
mount -t cgroup2 cgroup2 "$here/cgroup"
own="$here/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)/vllmd-machine-$$"
mkdir "$own"

end() {
    trap '' TERM INT HUP
    echo 1 >"$own/cgroup.kill" || kill -KILL "$machine" || true
    wait "$machine" || true
    find "$own" -depth -type d -exec rmdir {} +
}
trap 'end; exit 143' TERM INT HUP

# The first process of a process namespace takes all others with it. It ends, too, if this script is killed.
setpriv --pdeathsig KILL unshare --pid --fork --kill-child --mount-proc sh -euc '
    echo 0 >"$1/cgroup.procs"
    exec unshare --cgroup sh -euc "
        mount -t tmpfs tmpfs /sys/fs/cgroup # between it and the same hierarchy, which is not mounted over itself
        mount -t cgroup2 cgroup2 /sys/fs/cgroup
        exec systemd-nspawn --register=no --keep-unit --quiet --console=pipe --link-journal=no \
            --machine=vllmd-test --directory=\"\$1\" --boot systemd.unit=basic.target
    " sh "$2"
' sh "$own" "$here/root" </dev/null &
machine=$!
wait "$machine" || true
end
