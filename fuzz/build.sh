#!/usr/bin/env bash
# Builds the libFuzzer program on the stable compiler: what cargo-fuzz does without a sanitizer.
set -euo pipefail
cd "$(dirname "$0")"
flags=(-Cpasses=sancov-module)
for pass in level=4 inline-8bit-counters pc-table trace-compares; do
  flags+=("-Cllvm-args=-sanitizer-coverage-$pass")
done
export RUSTFLAGS="${flags[*]} -Ccodegen-units=1"
# With a target named, the flags are not for build scripts and macros.
cargo build --release --target x86_64-unknown-linux-gnu "$@"
