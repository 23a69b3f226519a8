#!/bin/sh
# Installs what tests use of the system, where that can be done without asking: as root, on Debian and its kin.
# What cannot be installed is named and is no error: its tests are reported as not run. A command that is there is not
# looked at again, and what could not be installed is tried again after a day.
for name in "$@"; do
    command -v "$name" >/dev/null 2>&1 && continue
    tried="${TMPDIR:-/tmp}/segstore-no-$name"
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        echo "$name is not here; its tests will be reported as not run" >&2
        continue
    fi
    if [ -n "$(find "$tried" -mtime -1 2>/dev/null)" ]; then
        echo "$name could not be installed; its tests will be reported as not run" >&2
        continue
    fi
    echo "installing $name"
    if { timeout 60 apt-get update -qq; DEBIAN_FRONTEND=noninteractive timeout 180 apt-get install -y -qq \
        --no-install-recommends "$name"; } >/dev/null 2>&1 && command -v "$name" >/dev/null 2>&1; then
        rm -f "$tried"
    else
        touch "$tried" 2>/dev/null
        echo "$name could not be installed; its tests will be reported as not run" >&2
    fi
done
exit 0
