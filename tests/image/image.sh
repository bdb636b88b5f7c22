#!/usr/bin/env bash
# The Docker image, with docker where an engine answers and with buildah elsewhere.
#   image.sh build   makes the image `caliber` from BASE
#   image.sh test    makes it, starts a server from it, runs smoke.sql through TCP
# Where no registry can be reached, the test builds on a stand-in base: Debian with the same major
# version of PostgreSQL, made by debootstrap, and an entrypoint with the official one's contract.
set -euo pipefail
# shellcheck source=extension/machine/common.sh
source "$(dirname "$0")/../../extension/machine/common.sh"

HERE=$ROOT/tests/image
BASE=${BASE:-$(sed -n 's/^ARG BASE=//p' "$ROOT/Dockerfile")}
IMAGE=caliber
STANDIN_RELEASE=trixie
STANDIN_PG=17
STANDIN=caliber-standin-base
STATE=$(caliber_home)/image
PASSWORD=image-test

# --- docker or buildah ------------------------------------------------------------------------

has_docker() { command -v docker >/dev/null && docker info >/dev/null 2>&1; }

choose_tool() {
    if has_docker; then
        TOOL=docker
    else
        TOOL=buildah
        "$ROOT/extension/machine/setup.sh" image
    fi
}

# The chroot isolation needs neither systemd nor a container runtime.
buildah() { command buildah "${STORE[@]}" "$@"; }

build_image() { # base
    case $TOOL in
        docker) docker build -t "$IMAGE" --build-arg "BASE=$1" "$ROOT" ;;
        buildah) buildah bud --isolation chroot -t "$IMAGE" --build-arg "BASE=$1" "$ROOT" ;;
    esac
}

reachable() { # base
    case $TOOL in
        docker) docker image inspect "$1" >/dev/null 2>&1 || timeout 600 docker pull -q "$1" >/dev/null 2>&1 ;;
        buildah) timeout 600 buildah "${STORE[@]}" pull -q "$1" >/dev/null 2>&1 ;;
    esac
}

build() {
    STORE=()
    choose_tool
    say "building the image on $BASE with $TOOL"
    build_image "$BASE" ||
        die "the image was not built" \
            "if the base cannot be pulled, name one that can: make image BASE=registry/postgres:17-trixie" \
            "or see it work without a registry: make image-test"
    say "built: $IMAGE"
}

# --- the stand-in base ------------------------------------------------------------------------

standin() {
    local tar=$STATE/$STANDIN_RELEASE-pg$STANDIN_PG.tar
    mkdir -p "$STATE"
    [[ -s $tar ]] || make_standin "$tar"
    case $TOOL in
        docker)
            docker import -c "ENV PG_MAJOR=$STANDIN_PG PATH=$(standin_path)" \
                -c 'ENTRYPOINT ["docker-entrypoint.sh"]' -c 'CMD ["postgres"]' "$tar" "$STANDIN" >/dev/null
            ;;
        buildah) import_standin "$tar" ;;
    esac
}

standin_path() { echo "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/postgresql/$STANDIN_PG/bin"; }

# The base is named after the tarball and the entrypoint it was made of, and kept.
import_standin() {
    local id container
    id=$(stat -c '%Y%s' "$1")-$(sha256sum <"$HERE/docker-entrypoint.sh" | cut -c1-8)
    STANDIN=localhost/$STANDIN:$id
    buildah inspect --type image "$STANDIN" >/dev/null 2>&1 && return
    say "importing the stand-in base"
    buildah rmi --all --force >/dev/null 2>&1 || true
    container=$(buildah from scratch)
    buildah add -q "$container" "$1" / >/dev/null
    buildah copy -q --chmod 755 "$container" "$HERE/docker-entrypoint.sh" /usr/local/bin/ >/dev/null
    buildah config --env PG_MAJOR="$STANDIN_PG" --env PATH="$(standin_path)" \
        --entrypoint '["docker-entrypoint.sh"]' --cmd postgres "$container"
    buildah commit -q --rm "$container" "$STANDIN" >/dev/null
}

make_standin() { # tar
    local root=$STATE/rootfs mirror
    mirror=$(debian_mirror)
    [[ -n $mirror ]] || die "apt's configuration names no Debian mirror" "try: apt-get update"
    logged "making the stand-in base: Debian $STANDIN_RELEASE with PostgreSQL $STANDIN_PG (minutes, once)" \
        bootstrap_standin "$root" "$mirror" || die "debootstrap could not make the stand-in base"
    tar -C "$root" --one-file-system -cf "$1.part" .
    mv "$1.part" "$1"
    rm -rf "$root"
}

bootstrap_standin() { # root mirror
    rm -rf "$1"
    debootstrap --variant=minbase --include=postgresql-common,ca-certificates "$STANDIN_RELEASE" "$1" "$2" &&
        printf '#!/bin/sh\nexit 101\n' >"$1/usr/sbin/policy-rc.d" &&
        chmod +x "$1/usr/sbin/policy-rc.d" &&
        mkdir -p "$1/etc/postgresql-common/createcluster.d" "$1/docker-entrypoint-initdb.d" &&
        echo 'create_main_cluster = false' >"$1/etc/postgresql-common/createcluster.d/no.conf" &&
        chroot "$1" apt-get update &&
        DEBIAN_FRONTEND=noninteractive chroot "$1" \
            apt-get install -y --no-install-recommends "postgresql-$STANDIN_PG" &&
        cp "$HERE/docker-entrypoint.sh" "$1/usr/local/bin/" &&
        chmod 755 "$1/usr/local/bin/docker-entrypoint.sh" &&
        chroot "$1" apt-get clean &&
        rm -rf "$1"/var/lib/apt/lists/*
}

# --- the test ---------------------------------------------------------------------------------

CONTAINER=
SERVER=

cleanup() {
    local status=$?
    trap - EXIT
    if [[ -n $SERVER ]]; then stop_server; fi
    if [[ -n $CONTAINER ]]; then
        case $TOOL in
            docker) docker rm -f "$CONTAINER" >/dev/null || true ;;
            buildah)
                buildah rm "$CONTAINER" >/dev/null || true
                buildah rmi "$IMAGE" >/dev/null || true
                ;;
        esac
    fi
    exit "$status"
}

# The server is thrown away with its data, so it need not end cleanly, but all of it has to end. The
# signal goes to its own process group; what left the group, such as the server that pg_ctl starts
# for the init scripts, ends with the process namespace.
stop_server() {
    local i
    kill -INT -- "-$SERVER" 2>/dev/null || true
    for ((i = 0; i < 100; i++)); do
        kill -0 -- "-$SERVER" 2>/dev/null || return 0
        sleep 0.1
    done
    kill -KILL -- "-$SERVER" 2>/dev/null || true
}

free_port() {
    "$PYTHON" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

start_server() { # port
    local log=$STATE/server.log
    case $TOOL in
        docker)
            CONTAINER=$(docker run -d -e "POSTGRES_PASSWORD=$PASSWORD" -p "127.0.0.1:$1:5432" "$IMAGE")
            ;;
        buildah) # which shares the network with us, so the server takes the free port itself
            CONTAINER=$(buildah from "$IMAGE")
            set -m
            unshare --pid --fork --kill-child --mount-proc \
                buildah "${STORE[@]}" run --isolation chroot --env "POSTGRES_PASSWORD=$PASSWORD" \
                "$CONTAINER" -- docker-entrypoint.sh postgres -p "$1" \
                >"$log" 2>&1 </dev/null &
            SERVER=$!
            set +m
            ;;
    esac
}

wait_for_server() {
    local i
    for ((i = 0; i < 300; i++)); do
        if psql -X -q -c 'select 1' >/dev/null 2>&1; then return; fi
        if [[ -n $SERVER ]] && ! kill -0 "$SERVER" 2>/dev/null; then break; fi
        sleep 0.2
    done
    if [[ $TOOL == docker ]]; then docker logs "$CONTAINER" >&2; else tail -n 30 "$STATE/server.log" >&2; fi
    die "the server from the image did not come up"
}

run_test() {
    local port base=$BASE
    # A store of its own: nothing of the test stays in the user's list of images.
    STORE=(--root "$STATE/storage" --runroot "$STATE/run")
    export LOGFILE=$STATE/build.log
    choose_tool
    command -v psql >/dev/null || "$ROOT/extension/machine/setup.sh" client
    trap cleanup EXIT
    if ! reachable "$base"; then
        say "$base cannot be pulled here; using a stand-in"
        standin
        base=$STANDIN
    fi
    logged "building the image on $base with $TOOL" build_image "$base" || die "the image was not built"
    port=$(free_port)
    start_server "$port"
    export PGHOST=127.0.0.1 PGPORT=$port PGUSER=postgres PGPASSWORD=$PASSWORD PGDATABASE=postgres
    say "waiting for the server on 127.0.0.1:$port"
    wait_for_server
    psql -X -q -f "$HERE/smoke.sql" || die "the smoke test failed"
    say "the image works"
}

case ${1:-} in
    build) build ;;
    test)
        # debootstrap and chroot are root's.
        if ! is_root; then
            may_become_root "make image-test"
            exec sudo env ${BASE:+BASE="$BASE"} ${CALIBER_HOME:+CALIBER_HOME="$CALIBER_HOME"} "$0" test
        fi
        run_test
        ;;
    *) die "usage: image.sh build | test" ;;
esac
