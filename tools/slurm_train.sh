#!/usr/bin/env bash
# slurm_train.sh PARTITION JOB CONFIG [options of train.py]
# GPUS, GPUS_PER_NODE (8), CPUS_PER_TASK (5) and SRUN_ARGS change the request.
set -eu
if [ $# -lt 3 ]; then
    sed -n '2,3s/^# //p' "$0" >&2
    exit 2
fi
partition=$1 job=$2 config=$3
shift 3
per_node=${GPUS_PER_NODE:-8}
# shellcheck disable=SC2086  # SRUN_ARGS is a list of words
exec srun -p "$partition" --job-name="$job" --gres="gpu:$per_node" \
    --ntasks="${GPUS:-8}" --ntasks-per-node="$per_node" \
    --cpus-per-task="${CPUS_PER_TASK:-5}" --kill-on-bad-exit=1 \
    ${SRUN_ARGS:-} "${PYTHON:-python}" -u \
    "$(dirname "$0")/train.py" "$config" --launcher slurm "$@"
