# PostgreSQL with CALIBER in it, and created in the default database on first start:
#
#   docker build -t caliber .
#   docker run -e POSTGRES_PASSWORD=secret -p 5432:5432 caliber
#
# BASE is the official image or anything that keeps its contract: PG_MAJOR is set, an apt source
# has the packages of that version, docker-entrypoint.sh runs /docker-entrypoint-initdb.d.
ARG BASE=postgres:17-trixie

FROM ${BASE} AS runtime
RUN set -eux; \
    apt-get update; \
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        "postgresql-plpython3-$PG_MAJOR" \
        "postgresql-$PG_MAJOR-pgvector" \
        python3-numpy \
        libopenblas0-pthread \
        python3-jsonschema; \
    rm -rf /var/lib/apt/lists/*

# numpy brought a python3 along, and the build needs nothing else.
FROM runtime AS build
COPY . /caliber
WORKDIR /caliber
RUN python3 extension/build.py --subsystems "$(sed -n 's/^SUBSYSTEMS := //p' Makefile)" \
    && mkdir /installed \
    && cp control/caliber.control extension/caliber--*.sql /installed/

FROM runtime
COPY --from=build /installed/ /installed/
RUN set -eux; \
    mv /installed/* "/usr/share/postgresql/$PG_MAJOR/extension/"; \
    rmdir /installed; \
    echo 'create extension if not exists caliber cascade;' \
        > /docker-entrypoint-initdb.d/10-caliber.sql
