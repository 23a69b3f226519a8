#!/bin/sh
# Installs a program that tests need, if possible without a prompt: as root, on Debian-based systems.
#   tools/system_packages.sh NAME WHY [FILE]
# FILE: what a package brings that has no command of its name.
# It prints a message first; NO_SYSTEM_PACKAGES=1 skips it. A missing program is reported, but not an error: its tests
# are reported as not run. After a failure it waits a day before the next attempt.
name=$1 why=$2 file=$3

here() {
    if [ -n "$file" ]; then [ -e "$file" ]; else command -v "$name" >/dev/null 2>&1; fi
}
here && exit 0

without() {
    echo "$name is missing, for $why: $1; tests that need it will be reported as not run" >&2
    exit 0
}
[ -z "$NO_SYSTEM_PACKAGES" ] || without "NO_SYSTEM_PACKAGES is set"
[ "$(id -u)" -eq 0 ] || without "only root may install it"
command -v apt-get >/dev/null 2>&1 || without "there is no apt-get to install it"
failed="${VENV:-.venv}/.no-$name"
[ -z "$(find "$failed" -mtime -1 2>/dev/null)" ] || without "it could not be installed; the output is in $failed"

echo "$name is missing, for $why: installing it with apt-get; NO_SYSTEM_PACKAGES=1 skips this" >&2
mkdir -p "${failed%/*}"
install() {
    DEBIAN_FRONTEND=noninteractive timeout 180 apt-get install -y -qq --no-install-recommends "$name"
}
# Lists that an earlier call has updated serve all of them.
if { install || { timeout 60 apt-get update -qq; install; }; } >"$failed" 2>&1 </dev/null && here; then
    rm -f "$failed"
else
    tail -n 20 "$failed" >&2
    without "it could not be installed"
fi
