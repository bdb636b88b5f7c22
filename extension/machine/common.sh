# shellcheck shell=bash
# What set-up, cluster and image scripts share: messages, root, where things are. Sourced.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
PG=${PG:-15}
# A PG_CONFIG of one's own brings its own server; where apt installs is the default.
APT_PG_CONFIG=/usr/lib/postgresql/$PG/bin/pg_config
PG_CONFIG=${PG_CONFIG:-$APT_PG_CONFIG}
# shellcheck disable=SC2034  # used by the scripts that source this
BINDIR=${PG_CONFIG%/*}
# The server's Python. A pyenv or an active virtual environment earlier on PATH is another one.
# shellcheck disable=SC2034  # used by the scripts that source this
PYTHON=/usr/bin/python3
OLDEST_PG=15

say() { printf '%s\n' "caliber: $*"; }
warn() { printf '%s\n' "caliber: $*" >&2; }

# die "what is wrong" ["what to do" ...]
die() {
    warn "$1"
    shift
    local line
    for line in "$@"; do printf '         %s\n' "$line" >&2; done
    exit 1
}

check_pg() {
    [[ $PG =~ ^[0-9]+$ ]] || die "PG=$PG is not a major version" "use for instance: make run PG=15"
    ((PG >= OLDEST_PG)) || die "PostgreSQL $PG is too old; CALIBER needs $OLDEST_PG or newer" \
        "use for instance: make run PG=15"
    # Where apt installs it may be missing still; a path somebody gave has to be right.
    [[ $PG_CONFIG == "$APT_PG_CONFIG" ]] && return
    [[ $PG_CONFIG == /* && -x $PG_CONFIG ]] ||
        die "PG_CONFIG=$PG_CONFIG is not the path of a pg_config" "give it in full, or leave it out"
    [[ $("$PG_CONFIG" --version) == "PostgreSQL $PG"[.a-z\ ]* ]] ||
        die "$PG_CONFIG is of $("$PG_CONFIG" --version), not of PostgreSQL $PG" "say which with PG=…"
}

is_root() { [[ $EUID -eq 0 ]]; }

# may_become_root "the command a person could run instead"
# Asks for a password only where somebody can type one.
may_become_root() {
    is_root && return
    command -v sudo >/dev/null ||
        die "this needs root, and sudo is not installed" "as root: $1" "then run make again"
    sudo -n true 2>/dev/null && return
    [[ -t 0 && -t 2 ]] ||
        die "this needs root, and sudo wants a password" "run: sudo $1" "then run make again"
    say "sudo may ask for your password, for: $1"
}

as_root() {
    if is_root; then "$@"; else sudo "$@"; fi
}

# logged "what is being done" command... ; output goes to the log, and to the screen on failure.
logged() {
    local what=$1 log=${LOGFILE:-$ROOT/.build/setup.log}
    shift
    say "$what"
    mkdir -p "${log%/*}"
    if ! "$@" >"$log" 2>&1 </dev/null; then
        tail -n 25 "$log" >&2
        return 1
    fi
}

# Everything the cluster keeps is below here. The path of the checkout is part of it, so that two
# checkouts have two clusters.
caliber_home() {
    local id
    id=$(printf %s "$ROOT" | sha256sum | cut -c1-8)
    if [[ -n ${CALIBER_HOME:-} ]]; then
        realpath -ms -- "$CALIBER_HOME"
    elif is_root; then
        echo "/var/lib/caliber/$id"
    else
        echo "${XDG_STATE_HOME:-$HOME/.local/state}/caliber/$id"
    fi
}

# The mirror of the distribution this machine already uses, from apt's own configuration.
debian_mirror() {
    # shellcheck disable=SC2016  # apt fills these in, not the shell
    apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(REPO_URI)' 'Created-By: Packages' |
        awk -F'|' '$1 == "Debian" && $2 == "Debian" { print $3; exit }'
}
