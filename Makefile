# CALIBER. `make help` lists the targets; `make run` is the place to start.

# The subsystems in the order they are loaded. This is the only such list.
SUBSYSTEMS := identity bounds config ids events teams agents grants access logins reach trajectories memory search context locks state checkpoints tokens regions regions_access permissions permissions_access message_types messages messages_claim messages_wake messages_read conflicts delegations delegations_read audit audit_verify variables handoffs handoffs_read timeline_marks timeline maintenance overview

# Server version: 15 to 18, as far as the machine packages it.
PG ?= 15
PG_CONFIG ?= /usr/lib/postgresql/$(PG)/bin/pg_config
export PG PG_CONFIG
# Further settings: PORT and CALIBER_HOME of the private cluster, ARGS for pytest, BASE of the image.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
MACHINE := extension/machine

# --- The extension: one script per version, made from sql/ and plpython/ ---

CALIBER_VERSION := $(shell sed -n "s/^default_version *= *'\(.*\)'.*/\1/p" control/caliber.control)
SCRIPT := extension/caliber--$(CALIBER_VERSION).sql
STEPS := $(patsubst sql/upgrade/%.sql,extension/caliber--%.sql,$(wildcard sql/upgrade/*--$(CALIBER_VERSION).sql))
SOURCES := control/caliber.control extension/build.py \
	$(wildcard sql/*/*.sql plpython/caliber/*.py)

# What PGXS installs. EXTENSION names the control file, without its ending.
EXTENSION := control/caliber
# Scripts of releases before this one are not built again; they lie there, committed.
DATA := $(sort $(SCRIPT) $(STEPS) $(wildcard extension/caliber--*.sql))

# The directories are prerequisites too: a file that is gone makes the script stale as well.
$(SCRIPT): $(SOURCES) $(filter sql/% plpython/%,$(sort $(dir $(SOURCES)))) Makefile
	@echo "caliber: building $@"
	@/usr/bin/python3 extension/build.py --subsystems "$(SUBSYSTEMS)"
	@touch $@

$(STEPS): $(SCRIPT) ;

build: $(DATA) ## Generate the extension's script from sql/ and plpython/

install: build ## Install the extension into the server of PG_CONFIG (PGXS)

all: build

# PGXS brings install, uninstall, installcheck and clean. It comes with the server's development
# package, which a new machine gets by `make setup`.
PGXS := $(if $(wildcard $(PG_CONFIG)),$(shell $(PG_CONFIG) --pgxs))
ifneq ($(wildcard $(PGXS)),)
include $(PGXS)
else
install:
	@echo "caliber: $(PG_CONFIG) or its PGXS is missing; run: make setup PG=$(PG)" >&2; exit 1
endif

# --- The machine: packages, private cluster, databases ---

setup: ## Install what is missing: packages, pgvector, Python tools
	@$(MACHINE)/setup.sh server tools

server-ready: server-installed
	@$(MACHINE)/cluster.sh start

# A make of its own, because PGXS may have been missing when this one started.
server-installed:
	@$(MACHINE)/setup.sh server
	@$(MAKE) server-current

server-current: build
	@$(MACHINE)/install.sh $(EXTENSION).control $(DATA)

run: up ## Set up everything, start the private cluster, show the tour
	@$(MACHINE)/cluster.sh tour

up: server-ready ## Start the private cluster with the extension in database caliber
	@$(MACHINE)/cluster.sh demo

down: ## Stop the private cluster; its data stays
	@$(MACHINE)/cluster.sh stop

dsn: ## Print the connection string of the running cluster, and nothing else
	@$(MACHINE)/cluster.sh dsn

psql: ## Open psql in the demo database of the running cluster
	@$(MACHINE)/cluster.sh psql

top: ## Watch agents, queues, leases and problems; DB=name for another database
	@$(MACHINE)/cluster.sh top

# --- Quality ---

test: server-installed ## Run every test on a cluster of its own; ARGS="-k agents" for some
	@$(MACHINE)/setup.sh tools
	@$(MACHINE)/cluster.sh scratch .venv/bin/pytest $(ARGS)

chaos: server-ready ## Break server and clients for a minute and check every promise; ARGS="--seconds 600 --seed 7"
	@$(MACHINE)/setup.sh tools
	@PYTHONPATH=tests $(MACHINE)/cluster.sh with .venv/bin/python -m harness.chaos $(ARGS)

promises: server-ready ## Every promise with its number, some ten minutes; ARGS="--only lock"
	@$(MACHINE)/setup.sh tools
	@PYTHONPATH=tests $(MACHINE)/cluster.sh with .venv/bin/python -m harness.promises $(ARGS)

failover: server-ready ## The same on a primary and its standby, which takes over; ARGS="--kills 5"
	@$(MACHINE)/setup.sh tools
	@PYTHONPATH=tests $(MACHINE)/cluster.sh with .venv/bin/python -m harness.failover $(ARGS)

TYPED := plpython/caliber extension/build.py \
	$(wildcard tests/*.py tests/*/*.py bench/*.py docs/*.py examples/*.py)
SHELL_SCRIPTS := .ci/run $(wildcard $(MACHINE)/*.sh tests/*.sh tests/*/*.sh)

lint: ## Check style and types of Python, SQL and shell
	@$(MACHINE)/setup.sh tools
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@MYPYPATH=plpython:extension:tests:docs:bench .venv/bin/mypy --strict $(TYPED)
	@.venv/bin/sqlfluff lint sql
	@shellcheck -x $(SHELL_SCRIPTS)

bench: up ## Measure against plain SQL and peers, write docs/benchmarks.md and its chart
	@$(MACHINE)/setup.sh tools bench
	@$(MACHINE)/cluster.sh with .venv/bin/python bench/run.py $(ARGS)

docs: up ## Generate docs/reference.md from the catalog
	@$(MACHINE)/setup.sh tools
	@$(MACHINE)/cluster.sh with .venv/bin/python docs/build_reference.py $(ARGS)

# --- Docker ---

image: ## Build the image caliber, with docker or buildah
	@tests/image/image.sh build

image-test: ## Build the image, start it, and run the smoke test through TCP
	@tests/image/image.sh test

# --- The rest ---

clean: clean-products ## Remove what was built; the cluster and .venv stay

clean-products:
	@rm -rf $(SCRIPT) $(STEPS) .build .mypy_cache .pytest_cache .ruff_cache .hypothesis

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: all bench build chaos clean clean-products docs down dsn failover help image image-test install lint promises psql \
	run server-current server-installed server-ready setup test top up
