#!/bin/bash
# Builds the workers with nvcc and measures on this machine's card.
#
#   bench/isolation/run-on-card.sh PENSTOCK ISOLATION [flags of isolation]
#
# PENSTOCK and ISOLATION are the two programs, built with CGO_ENABLED=0 (no Go is needed here). Results go
# to ${OUT:-out}. Everything fits in two calls of at most nine minutes, joined by -merge afterwards:
#
#   run-on-card.sh bin/penstock bin/isolation -commit C -sections solo,caps,calls,memory,kill
#   run-on-card.sh bin/penstock bin/isolation -commit C -sections pairs,four,three,idle,latency,native,mps
#   run-on-card.sh bin/penstock bin/isolation -commit C -quick          # three minutes, all sections
set -euo pipefail

if [ $# -lt 2 ]; then
  sed -n '2,13p' "$0" >&2
  exit 2
fi
penstock=$1 isolation=$2
shift 2

here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-out}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"

nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
build() { "$nvcc" -O3 -arch="${CUDA_ARCH:-sm_90}" -o "$work/$1" "$here/workloads/$1.cu" -lcuda; }
build memory &
build burn
wait $!
cp "$here"/workloads/*.py "$work/"

status=0
"$isolation" -penstock "$penstock" -workloads "$work" -out "$out" "$@" 2>&1 | tee "$out/isolation.log" || status=$?
exit "$status"
