#!/usr/bin/env bash
# Stand-in for the entrypoint of the official Postgres image, with the part of its contract that
# our Dockerfile relies on: on first start POSTGRES_PASSWORD is required, initdb asks for SCRAM
# passwords over TCP, and the files in /docker-entrypoint-initdb.d run in the default database
# before anybody can connect from outside.
set -euo pipefail

if [[ ${1:-} != postgres ]]; then exec "$@"; fi

: "${PGDATA:=/var/lib/postgresql/data}" "${POSTGRES_USER:=postgres}"
: "${POSTGRES_DB:=$POSTGRES_USER}"
export PGDATA

if [[ $(id -u) == 0 ]]; then
    install -d -o postgres -g postgres -m 0700 "$PGDATA"
    install -d -o postgres -g postgres -m 3777 /var/run/postgresql
    exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi

run_sql() { psql -X -v ON_ERROR_STOP=1 --no-password -U "$POSTGRES_USER" -d "$@"; }

run_init_file() {
    echo "$0: running $1"
    # shellcheck source=/dev/null
    case $1 in
        *.sql) run_sql "$POSTGRES_DB" -f "$1" ;;
        *.sh) if [[ -x $1 ]]; then "$1"; else . "$1"; fi ;;
        *) echo "$0: ignoring $1" ;;
    esac
}

first_start() {
    local file
    if [[ -z ${POSTGRES_PASSWORD:-} ]]; then
        echo "Error: Database is uninitialized and superuser password is not specified." >&2
        exit 1
    fi
    initdb -U "$POSTGRES_USER" --auth-local=trust --auth-host=scram-sha-256 \
        --pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD")
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    echo "listen_addresses = '*'" >>"$PGDATA/postgresql.conf"
    # With the caller's options, but deaf to the network and where psql looks by default.
    pg_ctl start -w -o "$(printf '%q ' "${@:2}") -c listen_addresses='' -p ${PGPORT:-5432}"
    if [[ $POSTGRES_DB != postgres ]]; then
        run_sql postgres -v db="$POSTGRES_DB" <<<'create database :"db";'
    fi
    for file in /docker-entrypoint-initdb.d/*; do run_init_file "$file"; done
    pg_ctl stop -w -m fast
}

[[ -s $PGDATA/PG_VERSION ]] || first_start "$@"
exec "$@"
