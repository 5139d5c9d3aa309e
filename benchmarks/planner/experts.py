"""Is the choice as fast as what people who know the field would fix by hand? Both are predicted by the same planner.

    python benchmarks/planner/experts.py              all cases; writes results/, experts.md and experts.png
    python benchmarks/planner/experts.py 8B           those with this in their names anew; the others stay as they were

Each case is a model by its published shape, in texts of 2,048 tokens and windows of 16, with AdamW and clipping; a device of the
catalogue with the host memory that is given; and the coarsest level of fidelity that is allowed. *By hand* are techniques that the
field uses for such a model on such a device, in the micro-batch in which they are fastest. Nothing is downloaded, and every figure is
predicted. Each case runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from common import write_result  # noqa: E402
from result_lines import measure  # noqa: E402

ROWS, LENGTH = 16, 2048
PAGE, PICTURE = HERE / "experts.md", HERE / "experts.png"


def _shape(hidden: int, layers: int, heads: int, key_heads: int, inner: int, words: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "intermediate_size": inner,
        "vocab_size": words,
        "max_position_embeddings": 4096,
    }


SHAPES = {
    "Llama 8B": _shape(4096, 32, 32, 8, 14336, 128256),
    "Llama 13B": _shape(5120, 40, 40, 40, 13824, 32000),
    "Llama 70B": _shape(8192, 80, 64, 8, 28672, 128256),
    "Qwen 32B": _shape(5120, 64, 40, 8, 27648, 152064),
    "Mixtral 8x7B": {
        **_shape(4096, 32, 32, 8, 14336, 32000),
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
}
FULL = ("adamw_8bit", "pure_bf16", "recompute", "chunked_loss")
QLORA = ("nf4", "lora", "pure_bf16", "recompute", "chunked_loss")


@dataclass(frozen=True)
class Case:
    """A model and a device, what is allowed, and what is fixed by hand."""

    model: str
    device: str
    by_hand: tuple[str, ...]
    level: str = "quantized"
    devices: int = 1
    strategy: str = "single"
    host: int | None = None  # GiB of a node; None: what is usual beside the device
    own: tuple[str, ...] = ()  # beside AdamW and clipping

    @property
    def name(self) -> str:
        own = f", {self.own[0]} named" if self.own else ""
        many = f"{self.devices} × " if self.devices > 1 else ""
        return f"{self.model}, {many}{self.device}, {self.level}{own}"


CASES = (
    Case("Llama 8B", "a100-80", FULL),
    Case("Llama 8B", "a100-80", ("bf16", *FULL[2:], "optimizer_offload"), "mixed"),
    Case("Llama 8B", "h100", FULL),
    Case("Llama 8B", "rtx4090", QLORA),
    Case("Llama 8B", "rtx4090", ("nf4", "lora", "recompute", "chunked_loss"), own=("bf16",)),
    Case("Llama 13B", "rtx3090", QLORA),
    Case("Llama 13B", "a100-80", FULL, "compact"),
    Case("Llama 70B", "a100-80", QLORA),
    Case("Llama 70B", "rtx3090", QLORA, devices=2, strategy="fsdp-offload", host=128),
    Case("Qwen 32B", "rtx3090", (*QLORA, "activation_offload")),
    Case("Mixtral 8x7B", "a100-80", (*QLORA, "weight_streaming")),
)


def subject_of(model: str, shape: Mapping[str, int], own: tuple[str, ...] = ()) -> Any:
    """Return a model as the planner is asked for it, with AdamW, clipping and what is named besides."""
    import copy

    import torch
    import transformers

    from snugfit.core.batch import Batch
    from snugfit.core.job import Job
    from snugfit.planner.trace.dry_run import Subject
    from snugfit.techniques import find

    kind = "Mixtral" if "Mixtral" in model else "Llama"
    config = getattr(transformers, f"{kind}Config")(**shape)
    with torch.device("meta"):
        network = getattr(transformers, f"{kind}ForCausalLM")(config)
    ids = torch.zeros(ROWS, LENGTH, dtype=torch.long)
    window = Batch.of({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids})
    techniques = tuple(find(name)() for name in ("adamw", "clip_norm", *own))
    job = Job.of(global_batch=ROWS, updates=100)
    return Subject(
        lambda: copy.deepcopy(network), window, job, 1000, techniques, "causal_lm", from_files=True
    )


def measured(case: Case) -> dict[str, Any]:
    """Return the choice and what is fixed by hand, as the planner predicts them."""
    from snugfit.core.batch import Batch
    from snugfit.core.job import Plan
    from snugfit.core.technique import Fidelity
    from snugfit.planner.choice.candidate import Budget
    from snugfit.planner.choice.rungs import together
    from snugfit.planner.devices.data_sheets import SHEETS
    from snugfit.planner.plan import Request, make_plan
    from snugfit.planner.prediction.plan_needs import Planner
    from snugfit.planner.prediction.rank import Rank
    from snugfit.planner.sharing import make_shared_plan
    from snugfit.planner.target import Target, cluster_of, machine_of
    from snugfit.techniques import find

    asked = subject_of(case.model, SHAPES[case.model], case.own)
    own, window = asked.techniques, asked.window

    def subject(techniques: Any, rows: Batch = window) -> Any:
        return replace(asked, techniques=techniques, window=rows)

    target = Target(device=case.device, devices=case.devices)
    host = int((case.host or SHEETS[case.device].host) * 2**30)
    with machine_of(target) as machine:
        budget = Budget(machine.device.memory_bytes, host, Fidelity[case.level.upper()])
        request = Request(Plan(device=machine.type), budget)
        cluster = cluster_of(target, machine)
        begun, used = time.perf_counter(), time.process_time()
        if case.devices == 1:
            answer = make_plan(subject(own), machine, request)
        else:
            answer = make_shared_plan(subject(own), machine, request, cluster)
        spent = {
            "seconds": time.perf_counter() - begun,
            "processor_seconds": time.process_time() - used,
        }
        fixed = together(own, tuple(rung_of(find(name)) for name in case.by_hand))
        planner: Planner = Planner(subject(fixed), machine)
        if case.devices > 1:
            share = window.select(range(ROWS // case.devices))
            planner = Rank(
                subject(fixed, share),
                machine,
                cluster=cluster,
                way=case.strategy,  # type: ignore[arg-type]
                window=window,
            )
        sized = planner.by_size(request.plan, fixed)
        tried = [(sized.traced(size), size) for size in (8, 4, 2, 1) if size <= planner.subject.window.rows]
        fitting = [each for each in tried if each[0].most_bytes <= budget.usable]
        hand, size = min(fitting or tried[-1:], key=lambda each: each[0].seconds_per_update)
    prediction = answer.prediction
    return {
        "chosen": {
            "fits": answer.fits,
            "added": answer.choice.added,
            "micro_batch": answer.choice.micro_batch,
            "strategy": answer.choice.strategy,
            "level": answer.choice.fidelity,
            "gib": prediction.reserved_bytes / 2**30,
            "host_gib": prediction.host_peak_bytes / 2**30,
            "tokens_per_second": prediction.tokens_per_second,
            "why": answer.why,
        },
        "by_hand": {
            "techniques": case.by_hand,
            "micro_batch": size,
            "fits": bool(fitting),
            "gib": hand.reserved_bytes / 2**30,
            "host_gib": hand.host_peak_bytes / 2**30,
            "tokens_per_second": hand.tokens_per_second,
        },
        "frontier": [
            {
                "level": each.level,
                "what": each.what,
                "rung": each.rung,
                "gib": each.reserved_bytes / 2**30,
                "tokens_per_second": each.tokens_per_second,
            }
            for each in answer.frontier
        ],
        **spent,
    }


def rung_of(technique: Any) -> Any:
    """Return it as the planner would add it: of placements the last rung, which saves the most, of formats the first."""
    from snugfit.core.technique import Family

    rungs = technique.rungs()
    if not rungs:
        return technique()
    return rungs[-1 if technique.card.family is Family.PLACEMENT else 0]


def page(results: dict[str, Any]) -> str:
    lines = [
        "# The choice beside what is fixed by hand",
        "",
        "Predicted, by `python benchmarks/planner/experts.py`; both columns by the same planner. Texts of 2,048 tokens, windows of 16; *planned in* is processor time of one process, beside which a second one may make about half of the runs.",
        "",
        "| model, device, allowed | chosen | GiB | tokens/s | by hand | GiB | tokens/s | ratio | planned in | on |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, one in results.items():
        choice, hand = one["chosen"], one["by_hand"]
        added = ", ".join([*choice["added"], f"micro-batch {choice['micro_batch']}"])
        if choice["strategy"] != "single":
            added += f", {choice['strategy']}"
        fixed = ", ".join([*hand["techniques"], f"micro-batch {hand['micro_batch']}"])
        ratio = choice["tokens_per_second"] / hand["tokens_per_second"] if choice["fits"] else 0.0
        lines.append(
            f"| {name} | {added if choice['fits'] else 'nothing fits'} | {choice['gib']:.1f} | {choice['tokens_per_second']:,.0f} | "
            f"{fixed}{'' if hand['fits'] else ' (does not fit)'} | {hand['gib']:.1f} | {hand['tokens_per_second']:,.0f} | {ratio:.2f} | "
            f"{one['processor_seconds']:.0f} s | {one['date']} |"
        )
    lines += ["", "![Time against memory of each level's fastest and smallest plan](experts.png)", ""]
    return "\n".join(lines)


def draw(results: dict[str, Any]) -> None:
    """Tokens a second against memory, a panel for each case, the levels in colours."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    colours = dict(
        zip(
            ("full", "mixed", "compact", "adapters", "quantized"), ["C0", "C2", "C1", "C4", "C3"], strict=True
        )
    )
    figure, axes = pyplot.subplots((len(results) + 2) // 3, 3, figsize=(13, 2.8 * ((len(results) + 2) // 3)))
    for axis, (name, one) in zip(axes.flat, results.items(), strict=False):
        for level, colour in colours.items():
            points = [each for each in one["frontier"] if each["level"] == level]
            axis.plot(
                [each["gib"] for each in points],
                [each["tokens_per_second"] for each in points],
                "o-",
                color=colour,
                label=level if points else None,
            )
        choice, hand = one["chosen"], one["by_hand"]
        axis.plot(
            choice["gib"], choice["tokens_per_second"], "o", mfc="none", ms=13, color="black", label="choice"
        )
        axis.plot(hand["gib"], hand["tokens_per_second"], "x", ms=9, color="black", label="by hand")
        axis.set_title(name, fontsize=9)
        axis.set_yscale("log")
        axis.legend(fontsize=6)
    for axis in list(axes.flat)[len(results) :]:
        axis.remove()
    figure.supxlabel("GiB of the device (predicted)")
    figure.supylabel("tokens/s (predicted)")
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one is not None:
        print("\n" + json.dumps(measured(CASES[asked.one])))
        return
    paths = sorted((HERE / "results").glob("experts-*.json"))
    newest = json.loads(paths[-1].read_text()) if paths else {"cases": {}}
    results: dict[str, Any] = {name: {"date": newest["date"], **one} for name, one in newest["cases"].items()}
    for number, case in enumerate(CASES):
        if asked.names and not any(name in case.name for name in asked.names):
            continue
        made = measure(case.name, __file__, "--one", str(number))
        if made is None:
            continue
        results[case.name] = {**made, "date": time.strftime("%Y-%m-%d")}
        print(case.name, results[case.name]["chosen"], results[case.name]["by_hand"], sep="\n  ", flush=True)
        ordered = {each.name: results[each.name] for each in CASES if each.name in results}
        write_result(HERE, {"cases": ordered}, "experts")
        PAGE.write_text(page(ordered))
        draw(ordered)


if __name__ == "__main__":
    main()
