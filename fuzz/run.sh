#!/usr/bin/env bash
# run.sh TARGET [libFuzzer options]: see README.md.
set -euo pipefail
cd "$(dirname "$0")"
name="${1:?which target? cargo run -p freebs-fuzz -- --list names them}"
shift
mkdir -p "corpus/$name" "artifacts/$name"
export FREEBS_FUZZ="$name"
exec "${CARGO_TARGET_DIR:-target}/x86_64-unknown-linux-gnu/release/any" \
  -artifact_prefix="artifacts/$name/" -timeout=20 -rss_limit_mb=2048 "$@" "corpus/$name" "../crates/fuzz/corpus/$name"
