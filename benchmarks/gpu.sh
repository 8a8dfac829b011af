#!/usr/bin/env bash
# Sampling and a step of TRL's trainer on one GPU: a JSON line for each measurement (benchmarks/sampling.py).
#
#   OUT=figures.jsonl bash benchmarks/gpu.sh          # at most TOTAL seconds, 570; PYTHON=... names another Python
#   OUT=figures.jsonl bash benchmarks/gpu.sh --tiny   # a tiny model, on a CPU: shows that all pieces run
#
# Each piece has a time limit. One that fails or takes longer is a line with `failed`; the reason is in LOG (stderr).
set -u
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
python=${PYTHON:-python} out=${OUT:-/dev/stdout} log=${LOG:-/dev/stderr} total=${TOTAL:-570}

piece() { # seconds at most, then what is measured, in which way, of which model
    local limit=$((total - SECONDS < $1 ? total - SECONDS : $1)) line=
    if [ $limit -gt 0 ]; then
        line=$(timeout -k 5 $limit "$python" benchmarks/sampling.py "$2" --way "$3" --model "$4" 2>>"$log" | tail -n 1)
    fi
    case $line in
    '{'*) ;;
    *) line="{\"piece\": \"$2\", \"way\": \"$3\", \"model\": \"$4\", \"failed\": true, \"limit\": $limit}" ;;
    esac
    echo "$line" >>"$out"
}

# The most important pieces come first: the time may not suffice for all.
small=smollm2 large=1b
if [ "${1:-}" = --tiny ]; then small= large=tiny; fi
for way in loop batched batched_graphs; do piece 60 sample $way $large; done
for way in loop batched; do piece 90 trl $way $large; done
if [ -n "$small" ]; then
    for way in loop batched batched_graphs; do piece 60 sample $way $small; done
    piece 120 sample static_graphs $small
fi
piece 120 sample static_graphs $large
