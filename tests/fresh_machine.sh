#!/usr/bin/env bash
# Proof that a newcomer's machine is enough: `make run`, again, and `make test` on a Debian 12 that
# has only what it takes to clone (make, git, sudo), once as root and once as an ordinary user with
# sudo, each on a machine of its own. Not part of `make test`: it takes minutes, root, debootstrap.
#
#   tests/fresh_machine.sh [root] [user]     both unless told
#   WORKTREE=1 tests/fresh_machine.sh        the files as they are here, instead of the last commit
#
# Mounts and processes live in namespaces of their own and are gone when the script ends.
set -euo pipefail
# shellcheck source=extension/machine/common.sh
source "$(dirname "$0")/../extension/machine/common.sh"

RELEASE=bookworm
SYSTEM_PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

if [[ -z ${CALIBER_FRESH_WORK:-} ]]; then
    is_root || die "this needs root" "run: sudo $0"
    "$ROOT/extension/machine/setup.sh" fresh
    CALIBER_FRESH_WORK=$(mktemp -d "${TMPDIR:-/var/tmp}/caliber-fresh.XXXXXX")
    export CALIBER_FRESH_WORK LOGFILE=$CALIBER_FRESH_WORK/log
    status=0
    unshare --mount --pid --fork --kill-child --propagation private "$0" "$@" || status=$?
    rm -rf "$CALIBER_FRESH_WORK"
    exit "$status"
fi
WORK=$CALIBER_FRESH_WORK

# --- a machine --------------------------------------------------------------------------------

debian_sources() { # the same mirrors as here, of Debian only
    # shellcheck disable=SC2016  # apt fills these in
    apt-get indextargets --format '$(ORIGIN)|deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
        sed -n 's/^Debian|//p' | sort -u
}

bootstrap() {
    debootstrap --variant=minbase --include=make,git,sudo,ca-certificates \
        "$RELEASE" "$WORK/base" "$(debian_mirror)"
}

# How this machine reaches mirrors and package indexes; no packages, no tools.
copy_network_settings() { # root
    debian_sources >"$1/etc/apt/sources.list"
    apt-config dump | grep -i '^Acquire::[a-z]*::proxy' >"$1/etc/apt/apt.conf.d/80proxy" || true
    cp /etc/resolv.conf /etc/hosts "$1/etc/"
    cp /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/"
    if [[ -e /etc/pip.conf ]]; then cp /etc/pip.conf "$1/etc/"; fi
}

new_machine() { # root
    cp -a "$WORK/base" "$1"
    copy_network_settings "$1"
    mount -t proc proc "$1/proc"
    mount -t tmpfs -o mode=1777 shm "$1/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$1/dev/pts"
}

# inside root user command...: with the environment of a fresh login.
inside() {
    local root=$1 user=$2 home settings
    shift 2
    home=$(chroot "$root" getent passwd "$user" | cut -d: -f6)
    mapfile -t settings < <(env | grep -E '^(PIP_[A-Z_]+|https?_proxy|no_proxy)=' || true)
    env -i PATH=$SYSTEM_PATH HOME="$home" USER="$user" LANG=C.UTF-8 "${settings[@]}" \
        chroot "$root" runuser -u "$user" -- "$@" </dev/null
}

copy_checkout() { # directory
    if [[ -n ${WORKTREE:-} ]]; then
        mkdir -p "$1"
        (cd "$ROOT" && git ls-files -coz --exclude-standard | tar --null -T - -c) | tar -xC "$1"
    else
        git -c safe.directory='*' clone -q --no-local "$ROOT" "$1"
    fi
}

# --- what has to work there -------------------------------------------------------------------

prove() { # user
    local user=$1 root=$WORK/$1 home
    new_machine "$root"
    if [[ $user != root ]]; then
        chroot "$root" useradd -m -s /bin/bash "$user"
        echo "$user ALL=(ALL) NOPASSWD: ALL" >"$root/etc/sudoers.d/$user"
    fi
    home=$(chroot "$root" getent passwd "$user" | cut -d: -f6)
    copy_checkout "$root$home/caliber"
    chroot "$root" chown -R "$user:" "$home"

    timed "$user: make run, first" "$root" "$user" make -C "$home/caliber" run
    timed "$user: make run, second" "$root" "$user" make -C "$home/caliber" run
    timed "$user: make test" "$root" "$user" make -C "$home/caliber" test
    timed "$user: make dsn" "$root" "$user" make -s -C "$home/caliber" dsn
    timed "$user: make down" "$root" "$user" make -C "$home/caliber" down
    no_trace "$root"
}

timed() { # title root user command...
    local title=$1 since=$SECONDS
    shift
    printf '\n=== %s\n' "$title"
    inside "$@" || die "failed: $title"
    printf '=== %s: %d s\n' "$title" $((SECONDS - since))
}

# Set-up leaves no server of Debian's and no changed setting behind.
no_trace() { # root
    [[ -z $(ls -A "$1/etc/postgresql" 2>/dev/null) ]] || die "set-up made a cluster of Debian's"
    [[ ! -e $1/etc/postgresql-common/createcluster.d ]] || die "set-up left its setting behind"
}

mount -t proc proc /proc # of this namespace
logged "making a fresh Debian $RELEASE" bootstrap || die "debootstrap failed"
(($#)) || set -- root user
for who in "$@"; do
    case $who in
        root) prove root ;;
        user) prove dev ;;
        *) die "usage: $0 [root] [user]" ;;
    esac
done
say "a fresh machine is enough: $*"
