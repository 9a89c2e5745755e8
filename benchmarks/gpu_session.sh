#!/usr/bin/env bash
# Everything that a machine with a GPU is needed for, in one call: bash benchmarks/gpu_session.sh
#
# Needs no installation: Python with the CUDA 12 or 13 packages of nbrt, pytest and (for the golden
# data of torch) torch. A step that fails or runs too long is noted, and the next one starts.
#
#   PYTHON   the interpreter (default: python3)
#   OUT      where results go (default: benchmarks/results/gpu)
#   FULL     1: benchmarks in full length instead of --quick, and the slow tests
set -u
cd "$(dirname "$0")/.." || exit 1
root=$PWD
python=${PYTHON:-python3}
out=${OUT:-$root/benchmarks/results/gpu}
full=${FULL:-0}
mkdir -p "$out/data"
export PYTHONPATH="$root:$root/kernels:$root/tests${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONDONTWRITEBYTECODE=1
# Nothing here may run on the simulated driver of the tests.
export NBRT_SIMULATED_CUDA=0
unset NBRT_DEVICE
summary=$out/summary.txt
: >"$summary"
failed=0

# step NAME SECONDS COMMAND...: run a command with a time limit, its output in NAME.log.
step() {
    local name=$1 seconds=$2 started=$SECONDS status
    shift 2
    echo "==> $name"
    timeout --kill-after=10 "$seconds" "$@" >"$out/$name.log" 2>&1
    status=$?
    if [ "$status" -ne 0 ]; then
        failed=$((failed + 1))
        tail -n 25 "$out/$name.log"
    fi
    printf '%-20s exit %-4s %4ss  %s\n' "$name" "$status" "$((SECONDS - started))" \
        "$(tail -n 1 "$out/$name.log" | cut -c1-100)" >>"$summary"
}

# A foreign installation may warn of things that are not nbrt's; no cache is left in the tree.
tests=("$python" -m pytest -q -p no:cacheprovider -o filterwarnings=default)
selection=("-m" "not slow")
length=("--quick")
if [ "$full" = 1 ]; then
    selection=()
    length=()
fi

step environment 60 "$python" tools/gpu_golden.py environment --out "$out"
step gpu_tests 180 "${tests[@]}" tests/gpu --junitxml="$out/gpu_tests.xml"
step draw_bits 90 "$python" tools/gpu_golden.py draws --out "$out/data"
step torch_golden 60 "$python" tools/gpu_golden.py torch --out "$out/data"
step cuda_unit_tests 120 "${tests[@]}" tests/unit/cuda
step contract_tests 120 "${tests[@]}" "${selection[@]}" tests/contract tests/interop -k "cuda or not cpu"
step all_tests "$((full == 1 ? 1800 : 150))" "${tests[@]}" "${selection[@]}" tests --continue-on-collection-errors \
    --ignore=tests/gpu --ignore=tests/unit/cuda --ignore=tests/contract \
    --junitxml="$out/all_tests.xml"
step benchmarks "$((full == 1 ? 3600 : 240))" "$python" -m benchmarks "${length[@]}" --out "$out/benchmarks"
step random_cuda "$((full == 1 ? 600 : 120))" "$python" -m benchmarks.random --device cuda "${length[@]}" --out "$out/benchmarks"

echo
cat "$out/environment.txt" 2>/dev/null
echo
cat "$summary"
echo "results: $out; to keep the golden data: cp $out/data/* tests/data/"
exit "$((failed > 0))"
