#!/usr/bin/env bash
# Agents on one GPU: one seed of every method on both agent tasks, side by side, in 15 minutes.
#
#   OUT=runs/gpu_agents bash lab/text2grad_lab/experiments/gpu_agents.sh          # MODEL names another model (Qwen/Qwen2.5-Coder-0.5B-Instruct)
#   bash lab/text2grad_lab/experiments/gpu_agents.sh --plan                       # only counts the commands
#   bash lab/text2grad_lab/experiments/gpu_agents.sh --tiny                       # one step of a tiny model on a CPU: shows that all pieces run
#
# At most TOTAL seconds (840); the same command resumes. SEED names the seed. The tables are in OUT/<task>/compare.md.
set -u
cd "$(dirname "$0")/../../.."
export PYTHONPATH="$PWD/src:$PWD/lab${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
python=${PYTHON:-python} out=${OUT:-runs/gpu_agents} total=${TOTAL:-840}
methods=(sft scalar grpo grpo_turns sdpo text2grad text2grad+ppo.advantage=group)
settings=(--policy.model "${MODEL:-smollm2}" --policy.device cuda --ppo.steps 32 --ppo.micro_batch_size 32 --sft.micro_batch_size 8
    --generation.batch_size 128)
at_once=${#methods[@]}
if [ "${1:-}" = --tiny ]; then
    shift
    settings=(--policy.model tiny --policy.lora null --policy.dtype float32 --policy.device cpu --task.limit 16 --ppo.steps 1
        --ppo.rollouts 8 --generation.max_turns 3 --generation.max_new_tokens 8 --evaluate.limit 2 --evaluate.samples 1)
    at_once=1
fi
for task in lookup forms; do
    timeout -k 5 "$total" "$python" -m text2grad_lab compare --config "text2grad_lab:${task}_smollm2" --methods "${methods[@]}" \
        --seeds 1 --run.seed "${SEED:-1}" --at-once "$at_once" --run.folder "$out/$task" "${settings[@]}" "$@" &
done
status=0
for _ in lookup forms; do wait -n || status=$?; done
exit $status
