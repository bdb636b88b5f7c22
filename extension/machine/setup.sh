#!/usr/bin/env bash
# Installs what is missing on a Debian machine, and nothing that is there:
#   setup.sh server   PostgreSQL, PL/Python, numpy with OpenBLAS, jsonschema, pgvector, what PGXS needs
#   setup.sh tools    .venv with tests/requirements.txt, shellcheck, pgbouncer, pg_cron
#   setup.sh bench    redis-server, procrastinate and PgQ, to measure next to
#   setup.sh image    buildah and debootstrap, where there is no docker
#   setup.sh client   psql of any version
#   setup.sh fresh    debootstrap, for tests/fresh_machine.sh
# Looks at the machine each time instead of trusting a note of an earlier run; when all is there
# that takes a fraction of a second and needs no root.
set -euo pipefail
# shellcheck source=extension/machine/common.sh
source "$(dirname "$0")/common.sh"

SERVER_PACKAGES=(
    "postgresql-$PG" "postgresql-plpython3-$PG" "postgresql-server-dev-$PG"
    python3-numpy libopenblas0-pthread python3-jsonschema make gcc libc6-dev
)
TOOL_PACKAGES=(python3-venv shellcheck pgbouncer)
BENCH_PACKAGES=(redis-server)
IMAGE_PACKAGES=(buildah debootstrap)
# pgvector's source package comes from the first Debian release that has this version.
PGVECTOR_RELEASE=trixie
PGVECTOR_PACKAGES=(dpkg-dev debian-archive-keyring)

# --- packages ---------------------------------------------------------------------------------

missing() {
    local installed package
    installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null || true)
    for package in "$@"; do
        grep -qx "installed $package" <<<"$installed" || echo "$package"
    done
}

packaged() { [[ -n $(apt-cache show --no-all-versions "$1" 2>/dev/null) ]]; }

apt() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 "$@"
}

# Some machines list a source that does not answer. What counts is whether the packages are found.
refresh_lists() {
    logged "reading the package lists" apt update || warn "apt-get update complained; going on"
}

os_name() {
    # shellcheck source=/dev/null
    (. /etc/os-release && echo "$PRETTY_NAME")
}

refuse_unpackaged() {
    local package here
    for package in "$@"; do
        packaged "$package" && continue
        if [[ $package == postgresql-* ]]; then
            here=$(apt-cache pkgnames postgresql-plpython3- | grep -o '[0-9]*$' | sort -n | xargs)
            die "$package is not packaged for $(os_name); nothing was changed" \
                "packaged here: PostgreSQL ${here:-(none)}; use for instance: make run PG=${here##* }" \
                "or add an apt source that has PostgreSQL $PG, and run make again"
        fi
        die "apt does not know the package $package; nothing was changed" \
            "try: apt-get update && apt-get install $package"
    done
}

install_packages() {
    local wanted
    mapfile -t wanted < <(missing "$@")
    ((${#wanted[@]})) || return 0
    command -v apt-get >/dev/null ||
        die "set-up knows Debian's apt only; install by hand: ${wanted[*]}"
    may_become_root "apt-get install ${wanted[*]}"
    refresh_lists
    refuse_unpackaged "${wanted[@]}"
    if [[ " ${wanted[*]} " == *" postgresql-$PG "* ]]; then
        install_without_main_cluster "${wanted[@]}"
    elif [[ " ${wanted[*]} " =~ " pgbouncer "|" redis-server "|"-pgq3 " ]]; then
        install_without_services "${wanted[@]}"
    else
        apt_install "${wanted[@]}"
    fi
}

apt_install() {
    logged "installing ${*}" apt install --no-install-recommends "$@" ||
        die "apt could not install the packages" "try: apt-get install $*"
}

# Debian's server package makes and starts a cluster of its own on port 5432, which nobody asked
# for here. Its setting is put back afterwards.
install_without_main_cluster() {
    local conf=/etc/postgresql-common/createcluster.conf drop_in
    drop_in=/etc/postgresql-common/createcluster.d/zz-caliber-setup.conf
    [[ -e $conf ]] || apt_install postgresql-common
    if grep -q '^include_dir' "$conf"; then
        as_root mkdir -p "${drop_in%/*}"
        # shellcheck disable=SC2064  # the value of now is meant
        trap "as_root rm -f '$drop_in'" EXIT
        echo 'create_main_cluster = false' | as_root tee "$drop_in" >/dev/null
    fi
    apt_install "$@"
    as_root rm -f "$drop_in"
    as_root rmdir --ignore-fail-on-non-empty "${drop_in%/*}"
    trap - EXIT
}

# Debian starts what such packages bring, and nobody asked for a service here: tests and bench
# start their own. A policy that says no, unless the machine has a policy already.
install_without_services() {
    local policy=/usr/sbin/policy-rc.d
    if [[ ! -e $policy ]]; then
        # shellcheck disable=SC2064  # the value of now is meant
        trap "as_root rm -f '$policy'" EXIT
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod 0755 "$policy"
    fi
    apt_install "$@"
    if [[ $(trap -p EXIT) == *"$policy"* ]]; then as_root rm -f "$policy"; fi
    trap - EXIT
}

# --- pgvector ---------------------------------------------------------------------------------

has_pgvector() { [[ -e $("$PG_CONFIG" --sharedir)/extension/vector.control ]]; }

install_pgvector() {
    has_pgvector && return
    if packaged "postgresql-$PG-pgvector"; then
        install_packages "postgresql-$PG-pgvector"
    else
        install_packages "${PGVECTOR_PACKAGES[@]}"
        build_pgvector
    fi
    has_pgvector || die "pgvector was installed, but not for PostgreSQL $PG ($PG_CONFIG)"
}

build_pgvector() {
    local work=$ROOT/.build/pgvector-$PG
    rm -rf "$work"
    mkdir -p "$work"
    logged "fetching pgvector's source package" fetch_pgvector "$work" ||
        die "could not fetch pgvector's source package" \
            "does the mirror in apt's configuration carry $PGVECTOR_RELEASE? any pgvector for PostgreSQL $PG will do"
    logged "building pgvector for PostgreSQL $PG" compile_pgvector "$work/source" ||
        die "pgvector did not build"
    may_become_root "make -C $work/source install PG_CONFIG=$PG_CONFIG"
    logged "installing pgvector" as_root env -u MAKEFLAGS -u MAKELEVEL make -C "$work/source" install \
        PG_CONFIG="$PG_CONFIG" OPTFLAGS= with_llvm=no || die "pgvector did not install"
    as_root rm -rf "$work"
}

# apt with a configuration of its own: its source lists stay as they are, no root, and the
# signatures are checked as always.
fetch_pgvector() {
    local work=$1 mirror options
    mirror=$(debian_mirror)
    [[ -n $mirror ]] || { echo "apt's configuration names no Debian mirror"; return 1; }
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $PGVECTOR_RELEASE main" \
        >"$work/sources.list"
    options=(
        -q -o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=
    )
    apt-get "${options[@]}" update &&
        (cd "$work" && apt-get "${options[@]}" source --download-only pgvector) &&
        dpkg-source --no-check -x "$work"/pgvector_*.dsc "$work/source"
}

# Plain CPU flags and no JIT bitcode, as Debian's own package: the machine may move.
compile_pgvector() {
    env -u MAKEFLAGS -u MAKELEVEL make -C "$1" -j2 PG_CONFIG="$PG_CONFIG" OPTFLAGS= with_llvm=no
}

# --- Python tools -----------------------------------------------------------------------------

install_venv() {
    local venv=$ROOT/.venv requirements=$ROOT/tests/requirements.txt stamp
    # A virtual environment knows its own path and its Python, so both belong into the stamp.
    stamp="$(sha256sum <"$requirements") $("$PYTHON" -V) $venv"
    [[ -x $venv/bin/pytest && $(cat "$venv/stamp" 2>/dev/null) == "$stamp" ]] && return
    logged "making .venv" "$PYTHON" -m venv --clear "$venv" || die "could not make .venv"
    logged "installing tests/requirements.txt into .venv" \
        "$venv/bin/pip" install --no-input --disable-pip-version-check -r "$requirements" ||
        die "pip could not install the tools" "try: .venv/bin/pip install -r tests/requirements.txt"
    echo "$stamp" >"$venv/stamp"
}

# --- other extensions -------------------------------------------------------------------------

# install_beside package extension "what is missed without it"
install_beside() {
    [[ -e $("$PG_CONFIG" --sharedir)/extension/$2.control ]] && return
    if ! packaged "$1"; then
        warn "$1 is not packaged here; $3"
    elif [[ $PG_CONFIG == "$APT_PG_CONFIG" ]]; then
        install_packages "$1"
    else
        copy_package "$1" "$2"
    fi
}

# The package is for the server that apt installs; another of the same version gets its files.
copy_package() { # package extension
    local work=$ROOT/.build/$1
    rm -rf "$work"
    mkdir -p "$work"
    (logged "fetching $1" unpack "$1" "$work") || die "could not fetch the package $1"
    may_become_root "$ROOT/extension/machine/setup.sh"
    as_root cp "$work/usr/lib/postgresql/$PG/lib/$2"*.so "$("$PG_CONFIG" --pkglibdir)"
    as_root cp "$work/usr/share/postgresql/$PG/extension/$2"* "$("$PG_CONFIG" --sharedir)/extension"
    rm -rf "$work"
}

# unpack package directory
unpack() {
    cd "$2" && apt-get -q -o APT::Sandbox::User= download "$1" && dpkg-deb -x ./*.deb .
}

# Its test says so too, and is skipped.
install_cron() { install_beside "postgresql-$PG-cron" pg_cron "the test with pg_cron is left out"; }

# --- what the bench measures next to ----------------------------------------------------------

# Together with the tools, so that none of them changes its version for it.
install_bench_python() {
    local venv=$ROOT/.venv requirements=$ROOT/bench/requirements.txt stamp
    stamp=$(sha256sum <"$requirements")
    [[ $(cat "$venv/bench_stamp" 2>/dev/null) == "$stamp" ]] && return
    install_venv
    logged "installing bench/requirements.txt into .venv" \
        "$venv/bin/pip" install --no-input --disable-pip-version-check \
        -r "$ROOT/tests/requirements.txt" -r "$requirements" ||
        die "pip could not install what the bench needs" "try: .venv/bin/pip install -r bench/requirements.txt"
    echo "$stamp" >"$venv/bench_stamp"
}

# Not packaged for every server; the bench says so in its rows and goes on.
install_pgq() { install_beside "postgresql-$PG-pgq3" pgq "the bench goes without PgQ"; }

# ----------------------------------------------------------------------------------------------

setup_server() {
    check_pg
    install_packages "${SERVER_PACKAGES[@]}"
    install_pgvector
}

setup_tools() {
    install_packages "${TOOL_PACKAGES[@]}"
    install_cron
    install_venv
}

setup_bench() {
    install_packages "${BENCH_PACKAGES[@]}"
    install_bench_python
    install_pgq
}

setup_image() { install_packages "${IMAGE_PACKAGES[@]}"; }

setup_fresh() { install_packages debootstrap; }

setup_client() { install_packages postgresql-client; }

(($#)) || set -- server tools
for part in "$@"; do "setup_$part"; done
