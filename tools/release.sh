#!/bin/bash
# Builds out/outlast, optimised and with everything in it, and the libraries that it loads into unmodified servers:
# out/liboutlast_preload.so, out/liboutlast_clock.so. The C library is linked into the program, too: since glibc 2.34 that
# includes looking up names in files and DNS, so that the file runs on any Linux with this processor.
set -eu
cd "$(dirname "$0")/.."
host=$(rustc -vV | sed -n 's/^host: //p')
# A target of one's own keeps build scripts and macros, which cannot be static, out of it.
RUSTFLAGS="${RUSTFLAGS:-} -C target-feature=+crt-static" \
    cargo build --locked --release -p outlast --target "$host"
mkdir -p out
install -m 755 "${CARGO_TARGET_DIR:-target}/$host/release/outlast" out/outlast
strip out/outlast 2>/dev/null || true
# It is loaded into programs that have the C library already.
cargo build --locked --release -p outlast-preload
install -m 755 "${CARGO_TARGET_DIR:-target}/release/liboutlast_preload.so" out/liboutlast_preload.so
cargo build --locked --release -p outlast-clock
install -m 755 "${CARGO_TARGET_DIR:-target}/release/liboutlast_clock.so" out/liboutlast_clock.so
if command -v file >/dev/null; then file out/outlast; fi
ls -l out/outlast out/liboutlast_preload.so out/liboutlast_clock.so
