#!/usr/bin/env bash
# Test and time the CUDA kernels on a GPU machine, within six minutes.
#
#   tools/gpu/gpu_check.sh PACKAGES OUT [PYTHON]
#
# The machine needs torch, nvcc, a C++ compiler, numpy, pytest and hypothesis,
# but no network. PACKAGES is a folder with the other packages. Fill it on a
# machine with a network, for the Python of the GPU machine (here 3.12):
#
#   pip download --no-deps -d PACKAGES --no-binary pycuda pycuda==2026.1
#   pip download --no-deps -d PACKAGES onedl-mmengine addict rich termcolor \
#       yapf platformdirs
#
# The script writes gpu_check.json, gpu_check.md and gpu_check.log to OUT. If a
# step fails, the other steps still run and the exit status is 1.
set -u
if [ $# -lt 2 ]; then
    sed -n '2,15s/^# \{0,1\}//p' "$0"
    exit 2
fi
packages=$(cd "$1" && pwd) || exit 2
mkdir -p "$2"
out=$(cd "$2" && pwd)
python=${3:-python3}
cd "$(dirname "$0")/../.." || exit 2

work=$(mktemp -d)
site=$work/site
log=$out/gpu_check.log
export PYTHONPATH=$PWD:$site${PYTHONPATH:+:$PYTHONPATH}
# An empty cache makes sure that the kernels are compiled in this run.
export XDG_CACHE_HOME=$work/cache
export PYTHONUNBUFFERED=1
: >"$log"
: >"$work/steps.tsv"

# step NAME SECONDS COMMAND... runs and logs a command with a time limit.
step() {
    local name=$1 limit=$2 start=$SECONDS status=0
    shift 2
    echo "== $name" >>"$log"
    timeout "$limit" "$@" >>"$log" 2>&1 || status=$?
    printf '%s\t%s\t%s\n' "$name" "$((SECONDS - start))" "$status" \
        >>"$work/steps.tsv"
    echo "$name: exit status $status, $((SECONDS - start)) s"
    [ "$status" = 0 ] || tail -n 15 "$log"
}

install() {
    "$python" -m pip install --quiet --no-index --no-deps --target "$site" "$@"
}

# nvcc itself names its toolkit, since the nvcc on the PATH may be a wrapper. The
# driver's library replaces libcuda.so, which some toolkits lack. pycuda needs no
# optimisation, because it only forwards launches.
build_pycuda() {
    local source=$work/pycuda cuda driver
    cuda=$(PATH=$PATH:/usr/local/cuda/bin nvcc --dryrun none.cu 2>&1 |
        sed -n 's/^#\$ TOP=//p')
    driver=$(ldconfig -p | awk '/libcuda.so.1/ {print $NF; exit}')
    mkdir -p "$source" "$work/lib"
    ln -s "${driver:-/usr/local/nvidia/lib64/libcuda.so.1}" \
        "$work/lib/libcuda.so"
    tar -xzf "$packages"/pycuda-*.tar.gz -C "$source" --strip-components 1 &&
        cd "$source" &&
        "$python" configure.py --no-cuda-enable-curand --cuda-root="$cuda" &&
        LIBRARY_PATH=$work/lib CFLAGS='-O1 -g0 -w' \
            install --no-build-isolation .
}

wheels=("$packages"/*.whl)
if [ -e "${wheels[0]}" ]; then
    install "${wheels[@]}" || exit 1
fi
if ! "$python" -c 'import pycuda.driver' 2>/dev/null; then
    export -f build_pycuda install
    export packages work site python
    step build_pycuda 120 bash -c build_pycuda
fi
# CI runs the tests that need nvcc but no GPU.
step tests 100 "$python" -m pytest tests/ops --require-cuda -q \
    --ignore tests/ops/test_cuda_compile.py \
    --durations=10 --junitxml="$work/tests.xml"
step benchmark_ops 100 "$python" tools/benchmarks/benchmark_ops.py --device cuda \
    --json "$work/benchmark_ops.json" --markdown "$work/benchmark_ops.md"
step benchmark_step 40 "$python" tools/gpu/benchmark_step.py --arch tiny \
    --json "$work/benchmark_step.json"
"$python" tools/gpu/gpu_report.py "$work" "$out"
status=$?
rm -rf "$work"
exit "$status"
