"""The planner's predictions of the runs that `claims` and `speed` measure, on a GPU that is not here: `predicted.json`.

    python benchmarks/gpu/predict_runs.py           minutes on two cores; writes benchmarks/results/gpu/predicted.json

Where nothing has been measured, the tables show these figures, and call them predicted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results" / "gpu"
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src")]

from checks import write_json  # noqa: E402

CARD = "h100"
SECONDS = 900.0
"""That one prediction may take."""


@dataclass(frozen=True)
class Run:
    """A run that is measured, as the planner is told of it."""

    name: str
    model: str
    rows: int
    tokens: int
    micro_batch: int
    techniques: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]


_CLIP = ("clip_norm", (("max_norm", 1.0),))
_LORA = ("lora", (("rank", 16), ("alpha", 32.0)))
_QLORA = (("nf4", ()), _LORA, ("recompute", ()), ("chunked_loss", ()), ("bf16", ()))

RUNS = (
    Run("GPT-2 124M in bf16", "gpt2", 32, 1024, 16, (_CLIP, ("bf16", ()))),
    Run("Llama 1B in bf16", "1b", 8, 2048, 4, (_CLIP, ("bf16", ()))),
    Run("8B QLoRA", "8b", 4, 2048, 2, _QLORA),
    Run("8B QLoRA, streamed", "8b", 1, 512, 1, (*_QLORA, ("weight_streaming", ()))),
    Run(
        "70B QLoRA, streamed",
        "70b",
        1,
        4096,
        1,
        (*_QLORA, ("weight_streaming", ()), ("activation_offload", (("min_bytes", 2**20),))),
    ),
)


def predict(run: Run) -> dict[str, Any]:
    """Return the prediction of a run, in a process that sees no GPU."""
    import torch
    from material import LLAMAS, llama_config, tokens_window
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaForCausalLM

    from snugfit.core.batch import Batch
    from snugfit.core.job import Job, Plan
    from snugfit.kit.skeleton import skeleton
    from snugfit.planner.devices.device import Machine
    from snugfit.planner.devices.hardware import find_device, usual_host
    from snugfit.planner.prediction.plan_needs import Planner
    from snugfit.planner.pretend_gpu.pretended_gpu import pretending_gpu
    from snugfit.planner.trace.dry_run import Subject
    from snugfit.techniques import find

    if run.model == "gpt2":
        config: Any = GPT2Config(n_positions=run.tokens, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        make, vocabulary = GPT2LMHeadModel, config.vocab_size
    else:
        config = llama_config(run.model, run.tokens)
        make, vocabulary = LlamaForCausalLM, LLAMAS[run.model]["vocabulary"]
    with torch.device("meta"):
        bare = make(config)
        bare = bare.bfloat16() if any(name == "nf4" for name, _ in run.techniques) else bare
    window = Batch.of(tokens_window(vocabulary, run.rows, run.tokens))
    techniques = (
        find("adamw")(learning_rate=1e-4),
        *(find(name)(**dict(settings)) for name, settings in run.techniques),
    )
    job = Job.of(global_batch=run.rows, updates=1000)
    subject = Subject(
        lambda: skeleton(bare), window, job, run.rows * 1000, techniques, "causal_lm", from_files=True
    )
    device = find_device(CARD)
    assert device.capability is not None
    began = time.perf_counter()
    with pretending_gpu(device.capability, device.memory_bytes, device.name):
        machine = Machine(device, usual_host(device.name), "cuda")
        prediction = Planner(subject, machine).predict(Plan(run.micro_batch, device="cuda"), techniques)
    return {
        "seconds_per_update": prediction.seconds_per_update,
        "tokens_per_second": run.rows * run.tokens / prediction.seconds_per_update,
        "peak_allocated_bytes": prediction.peak_bytes,
        "reserved_bytes": prediction.reserved_bytes,
        "host_bytes": prediction.host_peak_bytes,
        "confidence": dict(prediction.confidence),
        "planning_seconds": round(time.perf_counter() - began, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Predictions of what is measured on a GPU.")
    parser.add_argument("--out", type=Path, default=RESULTS / "predicted.json")
    parser.add_argument("--only", help="runs whose name holds this text")
    parser.add_argument("--commit", default="unknown")
    given = parser.parse_args()
    from snugfit.planner.worker import Worker

    rows: dict[str, Any] = {}
    if given.only is not None and given.out.exists():
        rows = json.loads(given.out.read_text())["runs"]  # of the others
    for run in RUNS:
        if given.only is None or given.only in run.name:
            rows[run.name] = Worker().run(predict, run, timeout=SECONDS)
            print(run.name, rows[run.name], flush=True)
            write_json(given.out, {"device": CARD, "commit": given.commit, "runs": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
