#!/bin/sh
# Installs a program that tests use, where that can be done without a question: as root, on Debian and its kin.
#   tools/system_packages.sh NAME WHY
# It says so first; NO_SYSTEM_PACKAGES=1 skips it. A program that is missing is named and is no error: its tests are
# reported as not run. After a failure it is tried again on another day.
name=$1 why=$2
command -v "$name" >/dev/null 2>&1 && exit 0

without() {
    echo "$name is not here, for $why: $1; what needs it will be reported as not run" >&2
    exit 0
}
[ -z "$NO_SYSTEM_PACKAGES" ] || without "NO_SYSTEM_PACKAGES is set"
[ "$(id -u)" -eq 0 ] || without "only root may install it"
command -v apt-get >/dev/null 2>&1 || without "there is no apt-get to install it"
failed="${VENV:-.venv}/.no-$name"
[ -z "$(find "$failed" -mtime -1 2>/dev/null)" ] || without "it could not be installed, $failed has the output"

echo "$name is not here, for $why: installing it with apt-get; NO_SYSTEM_PACKAGES=1 skips this" >&2
mkdir -p "${failed%/*}"
if { timeout 60 apt-get update -qq; DEBIAN_FRONTEND=noninteractive timeout 180 apt-get install -y -qq \
    --no-install-recommends "$name"; } >"$failed" 2>&1 </dev/null && command -v "$name" >/dev/null 2>&1; then
    rm -f "$failed"
else
    tail -n 20 "$failed" >&2
    without "it could not be installed"
fi
