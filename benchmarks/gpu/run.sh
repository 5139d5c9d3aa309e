#!/bin/sh
# What Snugfit does on a GPU: the laws, a 7B QLoRA under 16 GiB, a 70B QLoRA streamed under 24 GiB, an 8B QLoRA beside its
# peers, and runs beside what the planner says of them. In at most thirteen minutes, on a machine without internet.
#
#   benchmarks/gpu/run.sh --fetch     on a machine with internet: puts two wheels beside this file (43 MB, not committed)
#   benchmarks/gpu/run.sh             on the GPU machine; results go to benchmarks/results/gpu, or to $OUT where that is set
#   benchmarks/gpu/run.sh --only predicted     one part, or more; `--only` works with --toy too
#   benchmarks/gpu/run.sh --toy       the same at toy size on any machine, to see whether it runs; writes where --out says
#
# It needs Python >= 3.11 with torch >= 2.11 (CUDA), transformers >= 5.17, peft, accelerate, safetensors and numpy; Snugfit
# itself is taken from ../../src, and what lies in wheels/ is unpacked to a temporary folder. Host memory: 64 GiB.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3}

if [ "${1:-}" = --fetch ]; then
    pinned() { grep "^$1==" "$root/constraints.txt"; }
    exec "$python" -m pip download --quiet --no-deps --dest "$here/wheels" \
        --platform manylinux_2_24_x86_64 --only-binary=:all: "$(pinned bitsandbytes)" "$(pinned cloudpickle)"
fi

extra=$(mktemp -d)
trap 'rm -rf "$extra"' EXIT
for wheel in "$here"/wheels/*.whl; do
    [ -e "$wheel" ] && "$python" -m zipfile -e "$wheel" "$extra"
done
export PYTHONPATH="$root/src:$root:$extra${PYTHONPATH:+:$PYTHONPATH}"
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True CUBLAS_WORKSPACE_CONFIG=:4096:8
"$python" "$here/run.py" "$@"
