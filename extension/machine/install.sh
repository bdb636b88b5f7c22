#!/usr/bin/env bash
# install.sh file...: `make install`, but only when the server has other files than these, so that
# a second run needs no root.
set -euo pipefail
# shellcheck source=extension/machine/common.sh
source "$(dirname "$0")/common.sh"

installed=$("$PG_CONFIG" --sharedir)/extension
for file in "$@"; do
    cmp -s "$file" "$installed/${file##*/}" && continue
    may_become_root "make install PG=$PG"
    say "installing the extension into $installed"
    as_root env -u MAKEFLAGS -u MAKELEVEL make -s --no-print-directory -C "$ROOT" install \
        PG="$PG" PG_CONFIG="$PG_CONFIG"
    exit
done
