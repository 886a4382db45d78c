# syntax=docker/dockerfile:1
# The optimised binary with both engines on a small Debian.
#
#   docker build -t tidemark .
#   docker run -v tidemark:/var/lib/tidemark -p 7400:7400 \
#       -e TIDEMARK_LISTEN=0.0.0.0:7400 -e TIDEMARK_INSECURE=true tidemark
#
# Connections are neither encrypted nor authenticated yet: the two variables open the node to whoever can reach it, so
# they are not set here.

FROM rust:1.95.0-bookworm AS build
WORKDIR /src
COPY rust-toolchain.toml ./
# Installs the components that the tool chain file names.
RUN cargo --version
# RocksDB by itself: this layer is built again only when its version or the scripts change.
COPY scripts scripts
COPY storage/rocksdb-lib storage/rocksdb-lib
RUN scripts/system-packages.sh rocksdb && scripts/rocksdb-lib.sh
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    scripts/with-rocksdb.sh cargo build --locked --release -p tidemark-node --features rocksdb \
    && install -D target/release/tidemark /out/tidemark

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends libstdc++6 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --home-dir /var/lib/tidemark --create-home tidemark
COPY --from=build /out/tidemark /usr/local/bin/tidemark
USER tidemark
WORKDIR /var/lib/tidemark
ENV TIDEMARK_DATA_DIR=/var/lib/tidemark/data
VOLUME /var/lib/tidemark
EXPOSE 7400 7401
# The node hands leadership over and flushes within ten seconds.
STOPSIGNAL SIGTERM
ENTRYPOINT ["tidemark"]
CMD ["server"]
