#!/usr/bin/env bash
# dist_train.sh CONFIG PROCESSES [options of train.py]: GPUs, or gloo on CPUs.
# Several machines: set NNODES, NODE_RANK, MASTER_ADDR and PORT.
set -eu
if [ $# -lt 2 ]; then
    sed -n '2,3s/^# //p' "$0" >&2
    exit 2
fi
config=$1 processes=$2
shift 2
exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" \
    --master_port="${PORT:-29500}" --nproc_per_node="$processes" \
    "$(dirname "$0")/train.py" "$config" --launcher pytorch "$@"
