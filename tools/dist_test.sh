#!/usr/bin/env bash
# dist_test.sh CONFIG CHECKPOINT PROCESSES [options of test.py]: GPUs, or gloo on CPUs.
# Several machines: set NNODES, NODE_RANK, MASTER_ADDR and PORT.
set -eu
if [ $# -lt 3 ]; then
    sed -n '2,3s/^# //p' "$0" >&2
    exit 2
fi
config=$1 checkpoint=$2 processes=$3
shift 3
exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" \
    --master_port="${PORT:-29500}" --nproc_per_node="$processes" \
    "$(dirname "$0")/test.py" "$config" "$checkpoint" --launcher pytorch "$@"
