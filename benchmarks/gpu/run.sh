#!/bin/sh
# What Snugfit does on a GPU, in four commands of at most six minutes each or all by what they prove, on a machine without internet and without git.
#
#   benchmarks/gpu/run.sh --fetch             on a machine with internet: wheels go beside this file (not committed, at most 50 MiB)
#   benchmarks/gpu/run.sh correct             the results are right: laws, streams, faults, ranks, compilation, command line
#   benchmarks/gpu/run.sh planner             predicted beside measured: bytes and seconds; plans under budgets, trained
#   benchmarks/gpu/run.sh claims              8B and 70B beside others, and under budgets
#   benchmarks/gpu/run.sh speed               tokens a second beside a loop written by hand, Trainer and Lightning
#   benchmarks/gpu/run.sh all                 the checks of all four, by what they prove in a second: for a machine that is there for minutes
#   benchmarks/gpu/run.sh correct --toy       the same checks in tiny on a CPU; --plant NAME puts a fault in that must be found
#   benchmarks/gpu/run.sh --rehearse FOLDER   all with --toy by the Python in FOLDER/bin, which has a GPU machine's versions
#
# Results go to --out FOLDER, one JSON a command. --resume FOLDER keeps what passed in an earlier call; --keep FOLDER lets the next call on
# the same machine go on; --limit SECONDS ends it in time; --only TEXT and --skip TEXT choose; --commit and --diff say what was measured, where git is not there to ask. It needs Python >= 3.11, torch >= 2.11,
# transformers >= 5.17, numpy and safetensors; a check that needs more is skipped and says so.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3}
SNUGFIT_BEGAN=$(date +%s)
export SNUGFIT_BEGAN

case "${1:-}" in
--fetch)
    shift
    exec "$python" "$here/fetch.py" "$@"
    ;;
--rehearse)
    PYTHON="$2/bin/python"
    export PYTHON
    shift 2
    exec "$0" all --toy "$@"
    ;;
esac

if command -v git >/dev/null 2>&1 && git -C "$root" rev-parse --short HEAD >/dev/null 2>&1; then
    SNUGFIT_COMMIT=${SNUGFIT_COMMIT:-$(git -C "$root" rev-parse --short HEAD)}
    SNUGFIT_DIFF=${SNUGFIT_DIFF:-$(git -C "$root" diff HEAD -- src benchmarks tests | git -C "$root" hash-object --stdin | cut -c 1-12)}
    export SNUGFIT_COMMIT SNUGFIT_DIFF
fi

extra=$(mktemp -d)
trap 'rm -rf "$extra"' EXIT
mkdir "$extra/all" "$extra/trl" "$extra/checks"
if [ "$(cat "$here/wheels/python" 2>/dev/null)" = "$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')" ]; then
    for wheel in "$here"/wheels/*.whl; do
        case "${wheel##*/}" in
        trl-* | datasets-* | dill-* | multiprocess-* | xxhash-*) "$python" -m zipfile -e "$wheel" "$extra/trl" ;;
        # which asks the GPU what it is when transformers imports it, after which no process could be forked
        torchao-*) "$python" -m zipfile -e "$wheel" "$extra/checks" ;;
        *) "$python" -m zipfile -e "$wheel" "$extra/all" ;;
        esac
    done
fi
# what the machine has itself comes first; wheels that it lacks come last
export PYTHONPATH="$root/src${PYTHONPATH:+:$PYTHONPATH}"
export SNUGFIT_WHEELS="$extra"
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 TOKENIZERS_PARALLELISM=false DO_NOT_TRACK=true
export PYTORCH_NVML_BASED_CUDA_CHECK=1 PYTHONUNBUFFERED=1
"$python" "$here/run.py" "$@"
