#!/usr/bin/env bash
# The private cluster of this checkout: on a Unix socket only, in a directory nobody else may
# enter, so that it needs no password and meets no other server.
#   cluster.sh start | stop | dsn | demo | tour | top [database] | psql [args] | with command... |
#       scratch command...
# Run by root, the server is the user postgres; run by anybody else, it is that user.
set -euo pipefail
# shellcheck source=extension/machine/common.sh
source "$(dirname "$0")/common.sh"

CLUSTER=$(caliber_home)/pg$PG
DATA=$CLUSTER/data
SOCKETS=$CLUSTER/socket
LOG=$CLUSTER/log
PORT=${PORT:-5432}
MAX_SOCKET_PATH=107 # sun_path of Linux, without the final zero

# --- who and where ----------------------------------------------------------------------------

# With an empty environment: PL/Python finds its library through PATH and PYTHON*, and an active
# virtual environment of the caller must not become the server's.
as_server() {
    local clean=(env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 HOME="$CLUSTER")
    (cd / && if is_root; then runuser -u postgres -- "${clean[@]}" "$@"; else "${clean[@]}" "$@"; fi)
}

running() { server_of "$DATA/postmaster.pid" >/dev/null; }

# The process that a lock file names, if it lives and is the server of this data directory. After
# a crash or a reboot the number may belong to somebody else, so the number alone says nothing.
server_of() {
    local pid
    pid=$(lock_pid "$1") && [[ $(readlink "/proc/$pid/cwd") == "$(readlink -f "$DATA")" ]] && echo "$pid"
}

lock_pid() {
    local pid
    pid=$(head -n 1 "$1" 2>/dev/null) && [[ $pid =~ ^-?[0-9]+$ ]] && echo "${pid#-}"
}

running_port() { sed -n 4p "$DATA/postmaster.pid"; }

need_running() {
    running || die "the cluster for PostgreSQL $PG is not running" "run: make up$(pg_option)"
}

# What to add to a make command so that it means the same server.
pg_option() { if ((PG != 15)); then echo " PG=$PG"; fi; }

# --- connecting -------------------------------------------------------------------------------

quoted() { # a value of a libpq connection string
    local value=$1
    if [[ $value == *[[:space:]\'\\]* ]]; then
        value=${value//\\/\\\\}
        value="'${value//\'/\\\'}'"
    fi
    printf %s "$value"
}

dsn() {
    need_running
    echo "host=$(quoted "$SOCKETS") port=$(running_port) user=postgres dbname=caliber"
}

# with database command...: the command, connected by default to the running cluster.
with() {
    local database=$1
    shift
    need_running
    unset PGHOSTADDR PGSERVICE PGOPTIONS PGPASSWORD PGPASSFILE PGSSLMODE
    export PGHOST=$SOCKETS PGUSER=postgres PGDATABASE=$database PATH=$BINDIR:$PATH PG PG_CONFIG
    PGPORT=$(running_port)
    export PGPORT
    "$@"
}

# sql database [psql arguments]; statements come from the arguments or from standard input.
sql() {
    local database=$1
    shift
    PGAPPNAME=caliber-make with "$database" "$BINDIR/psql" -X -q -A -t -v ON_ERROR_STOP=1 "$@"
}

# --- start and stop ---------------------------------------------------------------------------

make_directories() {
    local socket=$SOCKETS/.s.PGSQL.$PORT
    ((${#socket} <= MAX_SOCKET_PATH)) ||
        die "the socket's path is longer than $MAX_SOCKET_PATH bytes: $socket" \
            "choose a shorter directory: make up CALIBER_HOME=/some/where"
    mkdir -p "$CLUSTER" || die "cannot make $CLUSTER" "choose another: make up CALIBER_HOME=/some/where"
    mkdir -p "$SOCKETS" "$LOG"
    if is_root; then chown postgres: "$CLUSTER" "$SOCKETS" "$LOG"; fi
    chmod 0700 "$CLUSTER" "$SOCKETS" "$LOG"
    as_server test -w "$SOCKETS" ||
        die "the server's user cannot enter $CLUSTER" \
            "every directory above it must be open to it, or: make up CALIBER_HOME=/some/where"
}

# initdb works beside and is moved into place when whole, so that an interrupted one leaves nothing
# that looks like a cluster.
init() {
    [[ -s $DATA/PG_VERSION && -s $DATA/global/pg_control ]] && return
    say "making the cluster in $CLUSTER"
    rm -rf "$DATA.new"
    if [[ -e $DATA ]]; then
        warn "$DATA is not a whole cluster; it is kept as $DATA.broken"
        rm -rf "$DATA.broken"
        mv "$DATA" "$DATA.broken"
    fi
    as_server "$BINDIR/initdb" -D "$DATA.new" -U postgres -A trust -E UTF8 --locale=C.UTF-8 \
        >"$LOG/initdb.log" 2>&1 || { tail "$LOG/initdb.log" >&2 && die "initdb failed"; }
    echo "include 'caliber.conf'" >>"$DATA.new/postgresql.conf"
    mv "$DATA.new" "$DATA"
}

configure() {
    cat >"$DATA/caliber.conf" <<CONF
# Written by extension/machine/cluster.sh at each start.
listen_addresses = ''
unix_socket_directories = '${SOCKETS//\'/\'\'}'
unix_socket_permissions = 0700
port = $PORT
max_connections = 200
shared_buffers = 256MB
logging_collector = off
CONF
    if is_root; then chown postgres: "$DATA/caliber.conf"; fi
}

# Removes what a dead server left; refuses when a live one has the socket.
claim_socket() {
    local socket=$SOCKETS/.s.PGSQL.$PORT pid
    if [[ -e $DATA/postmaster.pid ]]; then
        say "removing postmaster.pid of a server that is gone"
        rm -f "$DATA/postmaster.pid"
    fi
    if pid=$(lock_pid "$socket.lock") && [[ $(readlink "/proc/$pid/exe") == */postgres* ]]; then
        socket_taken "$socket" "process $pid"
    fi
    if "$BINDIR/pg_isready" -q -t 2 -h "$SOCKETS" -p "$PORT"; then socket_taken "$socket" "a server"; fi
    rm -f "$socket" "$socket.lock"
}

socket_taken() {
    die "$2 already has the socket $1; nothing was started" \
        "stop it, or use another port: make up PORT=$((PORT + 1))" \
        "or another directory: make up CALIBER_HOME=/some/where"
}

check_machine() {
    check_pg
    [[ -x $BINDIR/postgres ]] || die "PostgreSQL $PG is not installed" "run: make setup$(pg_option)"
    if ! [[ $PORT =~ ^[1-9][0-9]{0,4}$ ]] || ((PORT > 65535)); then die "PORT=$PORT is not a port number"; fi
}

one_at_a_time() {
    exec 9>"$CLUSTER/lock"
    flock 9
}

start() {
    check_machine
    make_directories
    # The server itself must not inherit the lock.
    one_at_a_time
    if running; then
        (($(running_port) == PORT)) ||
            die "the cluster is running on port $(running_port), not $PORT" "to move it: make down up PORT=$PORT"
        say "PostgreSQL $PG is running"
    else
        init
        configure
        claim_socket
        launch
    fi
    exec 9>&-
}

launch() {
    if ! as_server "$BINDIR/pg_ctl" start -w -t 120 -s -D "$DATA" -l "$LOG/server.log" </dev/null 9>&-; then
        as_server "$BINDIR/pg_ctl" stop -m immediate -s -D "$DATA" >/dev/null 2>&1 || true
        tail -n 15 "$LOG/server.log" >&2
        die "the server did not start; its log is $LOG/server.log"
    fi
    say "PostgreSQL $PG started, socket in $SOCKETS"
}

stop() {
    if running; then
        as_server "$BINDIR/pg_ctl" stop -w -m fast -s -D "$DATA" </dev/null
        say "PostgreSQL $PG stopped; the data stays in $CLUSTER"
    else
        say "PostgreSQL $PG is not running"
    fi
}

# scratch command...: the command with a cluster of its own, which is gone afterwards.
scratch() {
    check_machine
    CALIBER_HOME=$(mktemp -d "$(scratch_place)/caliber_scratch_XXXXXX")
    export CALIBER_HOME
    # The server's user has to get through; what is inside is closed.
    chmod 0711 "$CALIBER_HOME"
    trap '"$0" stop >/dev/null; rm -rf "$CALIBER_HOME"' EXIT
    # For the clusters that the command itself makes.
    mkdir -m 1777 "$CALIBER_HOME/tmp"
    "$0" start
    TMPDIR=$CALIBER_HOME/tmp "$0" with "$@"
}

# In memory, if there is plenty: every test gets a database of its own, which is hundreds of files,
# and making them on a disk can take ten times as long. What survives kill -9 is the same there.
scratch_place() {
    local place=/dev/shm free
    free=$(df --output=avail -B1M "$place" 2>/dev/null | tail -n 1) || free=0
    if [[ -w $place ]] && ((free >= 4096 && $(available_memory) >= 6144)); then
        echo "$place"
    else
        echo "${TMPDIR:-/tmp}"
    fi
}

available_memory() { awk '/^MemAvailable:/ { print int($2 / 1024) }' /proc/meminfo; }

# --- databases --------------------------------------------------------------------------------

# What a database with the extension was made from. Until a release the script changes without a
# new version number, so the number says too little.
build_id() {
    cat "$ROOT"/control/caliber.control "$ROOT"/extension/caliber--*.sql | sha256sum | cut -c1-16
}

# fresh database comment: with the extension, in place only when whole.
fresh() {
    sql postgres <<SQL
set client_min_messages = warning;
drop database if exists ${1}_new with (force);
create database ${1}_new template template0;
SQL
    sql "${1}_new" <<SQL || die "create extension failed; where in the script, says $LOG/server.log"
set client_min_messages = warning;
create extension caliber cascade;
SQL
    sql postgres <<SQL
set client_min_messages = warning;
comment on database ${1}_new is '$2';
drop database if exists $1 with (force);
alter database ${1}_new rename to $1;
SQL
}

# The database `caliber` belongs to the demo: it is made again whenever the extension changed.
demo() {
    local comment known
    need_running
    one_at_a_time
    comment="CALIBER demo, re-created by make up when the extension changes; build $(build_id)"
    known=$(sql postgres <<<"select coalesce(shobj_description(oid, 'pg_database'), 'unknown')
        from pg_database where datname = 'caliber'")
    if [[ $known == "$comment" ]]; then
        say "the demo database caliber is up to date"
        return
    fi
    if [[ -n $known ]]; then
        say "the extension changed: dropping the demo database caliber and making it again"
    else
        say "making the demo database caliber with the extension in it"
    fi
    fresh caliber "$comment"
}

# In a database of its own, made again each time, so that each run shows the same.
tour() {
    need_running
    one_at_a_time
    fresh caliber_tour "CALIBER tour, re-created by make run"
    # Relative, because psql puts the file's name before errors.
    (cd "$ROOT" && with caliber_tour "$BINDIR/psql" -X -q -v ON_ERROR_STOP=1 -f examples/tour.sql)
    cat <<END

The server keeps running. Connect with

    $(dsn)

and try next:

    make psql$(pg_option)                        a prompt in the demo database
    select * from caliber_agents;   there: the agents and whether they live
    make test$(pg_option)                        every test
END
}

# The screen again and again until it is interrupted; once, if nobody looks.
top() {
    local database=${1:-${DB:-caliber}} screen
    while screen=$(with "$database" "$BINDIR/psql" -X -q -v ON_ERROR_STOP=1 -f "$ROOT/extension/machine/top.sql"); do
        if [[ ! -t 1 ]]; then
            printf '%s\n' "$screen"
            return
        fi
        printf '\033[H\033[2J%s\n\n%s, every %s s, Ctrl-C to end\n' "$screen" "$database" "${EVERY:-2}"
        sleep "${EVERY:-2}"
    done
}

# ----------------------------------------------------------------------------------------------

command=${1:-}
(($#)) && shift
case $command in
    start | stop | dsn | demo | tour | top | scratch) "$command" "$@" ;;
    psql) with caliber "$BINDIR/psql" "$@" ;;
    with) with postgres "$@" ;;
    *) die "usage: cluster.sh start | stop | dsn | demo | tour | top [database] | psql [args] | with command... | scratch command..." ;;
esac
