"""What would a plan for a GPU be without the pretended device? The same plans with it, and with parts of it left out.

    python benchmarks/planner/pretended.py            all cases, minutes on two cores; writes results/ and pretended.md
    python benchmarks/planner/pretended.py --only t5  the cases whose name holds a text; writes nothing

A plan for a GPU that is not here runs the real step on fake tensors on 'cuda', and two files write into torch for it: `native.py` into
tables of its C++, `cuda_twin.py` into `torch.cuda`. Each case is planned in four ways, each in a process of its own:

- *pretended*: as `snugfit plan` does it.
- *on the CPU*: fake tensors on the CPU device, attention in the kernel that the GPU would pick, kernels of the CPU without the memory
  that they take within themselves. Nothing is written into torch. It is what a planner without the two files could do.
- *without native*, *without the twin*: fake tensors on 'cuda' with one of the two files.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from cases import CASES, Case  # noqa: E402
from common import write_result  # noqa: E402
from deep import DEEP  # noqa: E402

from snugfit.core.batch import Batch  # noqa: E402
from snugfit.core.job import Plan  # noqa: E402
from snugfit.planner.cost import operator_costs  # noqa: E402
from snugfit.planner.devices.device import Device, Machine  # noqa: E402
from snugfit.planner.devices.hardware import find_device, usual_host  # noqa: E402
from snugfit.planner.prediction.plan_needs import Planner  # noqa: E402
from snugfit.planner.pretend_gpu.attention import Attention, kernels_of  # noqa: E402
from snugfit.planner.pretend_gpu.cuda_twin import answering  # noqa: E402
from snugfit.planner.pretend_gpu.native import device_in_tables  # noqa: E402
from snugfit.planner.pretend_gpu.pretended_gpu import pretending_gpu  # noqa: E402

CARD = "a100-80"
OTHERS: Mapping[str, Sequence[Case]] = {
    "t4": [
        case for case in CASES if case.entries in ((), ("fp16", "clip_norm")) and case.micro_batch is None
    ],
    "h100": [case for case in CASES if case.entries in (("bf16",), ("pure_bf16",), ("recompute", "bf16"))],
}
"""Cards that pick other kernels of attention, and cases that have some."""

PRETENDED, ON_CPU, WITHOUT_NATIVE, WITHOUT_TWIN = WAYS = (
    "pretended",
    "on the CPU",
    "without native",
    "without the twin",
)
_ATEN = torch.ops.aten


@contextmanager
def attention_of(capability: tuple[int, int]) -> Iterator[None]:
    """Temporarily run attention, of tensors on any device, in the kernel that a GPU of a capability would pick."""

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        call = Attention(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa, capability)
        kernel = call.kernel()
        if kernel is SDPBackend.MATH:
            return _ATEN._scaled_dot_product_attention_math(
                query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
            )[0]
        if kernel is SDPBackend.FLASH_ATTENTION:
            return _ATEN._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, False, scale=scale
            )[0]
        bias = attn_mask
        if bias is not None and bias.dtype == torch.bool:
            bias = torch.where(bias, 0.0, float("-inf")).to(query.dtype)
        if bias is not None:
            bias = bias.expand(query.shape[0], query.shape[1], query.shape[-2], key.shape[-2])
        trains = any(tensor.requires_grad for tensor in (query, key, value))
        inputs = (query, key, value, bias, trains, dropout_p, is_causal)
        if kernel is SDPBackend.EFFICIENT_ATTENTION:
            return _ATEN._scaled_dot_product_efficient_attention(*inputs, scale=scale)[0]
        return _ATEN._scaled_dot_product_cudnn_attention(*inputs, False, scale=scale)[0]

    with mock.patch.object(F, "scaled_dot_product_attention", attend):
        yield


def no_workspace(func: Any, args: Any, kwargs: Any, out: Any) -> int:
    """Return what a kernel of a GPU takes within itself, of which nothing is known; unlike a mock it holds no arguments."""
    return 0


@contextmanager
def prepared(way: str, device: Device) -> Iterator[str]:
    """Temporarily make torch ready to run the step in a way; gives the device of its tensors."""
    assert device.capability is not None
    gpu = (device.capability, device.memory_bytes, device.name)
    with ExitStack() as stack:
        if way == PRETENDED:
            stack.enter_context(pretending_gpu(*gpu))
        elif way == ON_CPU:
            stack.enter_context(attention_of(device.capability))
            stack.enter_context(mock.patch.object(operator_costs, "workspace_bytes", no_workspace))
        else:
            stack.enter_context(answering(*gpu) if way == WITHOUT_NATIVE else device_in_tables())
            stack.enter_context(kernels_of(device.capability))
        yield "cpu" if way == ON_CPU else "cuda"


def plan_of(case: Case, device: Device, place: str) -> dict[str, Any]:
    """Return the bytes of a case's plan, or why there is none."""
    torch.manual_seed(0)
    made = case.made
    with torch.device("meta"):
        model = made.make()
    subject = case.subject(model, Batch.of(made.data()))
    # what a checkpoint is copied to is on the host: on the CPU it would count as the device's
    job = replace(subject.job, checkpoint=replace(subject.job.checkpoint, save="sync"))
    subject = replace(subject, job=job)
    machine = Machine(device, usual_host(device.name), place)
    try:
        prediction = Planner(subject, machine).predict(
            Plan(case.micro_batch, device=place), subject.techniques
        )
    except Exception as error:  # noqa: BLE001  # whatever it is: it is what is asked
        return {"refused": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    return {
        "peak_bytes": prediction.peak_bytes,
        "peak_by_kind": dict(prediction.peak_by_kind),
        "host_bytes": prediction.host_peak_bytes,
        "reserved_bytes": prediction.reserved_bytes,
    }


def plans(way: str, card: str, names: set[str]) -> dict[str, Any]:
    """Return the plan of each case in one way; to be called in a fresh process."""
    device = find_device(card)
    with prepared(way, device) as place:
        return {case.name: plan_of(case, device, place) for case in cases_of(card) if case.name in names}


def cases_of(card: str) -> Sequence[Case]:
    return (*CASES, *DEEP) if card == CARD else OTHERS[card]


def in_process(way: str, card: str, names: Sequence[str]) -> dict[str, Any]:
    """Return what `plans` gives in a process of its own, and the rest as refused where that dies."""
    began = time.perf_counter()
    command = [sys.executable, "-W", "ignore", str(HERE / "pretended.py"), "--way", way, "--card", card]
    done = subprocess.run(
        [*command, "--names", json.dumps(names)], capture_output=True, text=True, check=False
    )
    print(f"{card}, {way}: {len(names)} cases in {time.perf_counter() - began:.0f} s", flush=True)
    if done.returncode:
        print(done.stderr[-2000:], flush=True)
        return {name: {"refused": f"the process ended with {done.returncode}"} for name in names}
    answers: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answers


def compared(rows: Sequence[Mapping[str, Any]], way: str) -> dict[str, Any]:
    """Return how far the plans of one way are from those that are pretended."""
    usable = [row for row in rows if "refused" not in row[PRETENDED]]
    refusals = Counter(row[way]["refused"] for row in usable if "refused" in row[way])
    both = [row for row in usable if "refused" not in row[way]]
    errors = {row["case"]: row[way]["peak_bytes"] / row[PRETENDED]["peak_bytes"] - 1 for row in both}
    sizes = [abs(error) for error in errors.values()]
    return {
        "plans": len(usable),
        "same": sum(
            row[way]["peak_by_kind"] == row[PRETENDED]["peak_by_kind"]
            and row[way]["peak_bytes"] == row[PRETENDED]["peak_bytes"]
            for row in both
        ),
        "within_percent": sum(size <= 0.01 for size in sizes),
        "median": statistics.median(sizes) if sizes else None,
        "most_over": max(errors.items(), key=lambda each: each[1]) if errors else None,
        "most_short": min(errors.items(), key=lambda each: each[1]) if errors else None,
        "refused": dict(refusals.most_common()),
    }


def page(result: Mapping[str, Any]) -> str:
    """Return the table of a result, as Markdown."""
    summary = result["summary"]
    ways = [
        "| way | plans | the same bytes of every kind | within 1% | median | most over | most short | no plan |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for way in WAYS[1:]:
        of = summary[way]
        numbers = (
            ["–"] * 3
            if of["median"] is None
            else [
                f"{of['median']:.1%}",
                *(f"{of[key][1]:+.0%} ({of[key][0]})" for key in ("most_over", "most_short")),
            ]
        )
        ways.append(
            f"| {way} | {of['plans']} | {of['same']} | {of['within_percent']} | {' | '.join(numbers)} | {sum(of['refused'].values())} |"
        )
    refusal_lines = [
        f"- {way}: {count} times `{why}`"
        for way in WAYS[1:]
        for why, count in summary[way]["refused"].items()
    ]
    table = ["| card | case | pretended, bytes | on the CPU, bytes | difference |", "|---|---|---|---|---|"]
    for row in result["plans"]:
        one, other = row[PRETENDED], row[ON_CPU]
        if "refused" in one:
            table.append(f"| {row['card']} | {row['case']} | {one['refused']} | | |")
        elif "refused" in other:
            table.append(f"| {row['card']} | {row['case']} | {one['peak_bytes']:,} | no plan | |")
        else:
            change = other["peak_bytes"] / one["peak_bytes"] - 1
            table.append(
                f"| {row['card']} | {row['case']} | {one['peak_bytes']:,} | {other['peak_bytes']:,} | {change:+.2%} |"
            )
    new = "\n"
    return f"""# What would a plan for a GPU be without the pretended device?

Made by `python benchmarks/planner/pretended.py` on {result["date"]} at commit {result["commit"]} (torch {result["machine"]["torch"]}); the raw figures
are in `results/`. The script says what the ways are. Bytes are those at the peak of the device.

{new.join(ways)}

Where there is no plan:

{new.join(refusal_lines)}

## Each case

{new.join(table)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="cases whose name holds this")
    for hidden in ("--way", "--card", "--names"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.way is not None:
        answers = plans(asked.way, asked.card, set(json.loads(asked.names)))
        print(json.dumps(answers), flush=True)
        os._exit(0)  # autograd's thread for the device must not meet the interpreter while it is taken down
    rows = []
    for card in (CARD, *OTHERS):
        names = [case.name for case in cases_of(card) if asked.only in case.name]
        of_way = {way: in_process(way, card, names) for way in WAYS} if names else {}
        rows += [
            {"card": card, "case": name, **{way: answers[name] for way, answers in of_way.items()}}
            for name in names
        ]
    summary = {way: compared(rows, way) for way in WAYS[1:]}
    print(json.dumps(summary, indent=1))
    if not asked.only:
        path = write_result(HERE, {"summary": summary, "plans": rows}, "pretended")
        (HERE / "pretended.md").write_text(page(json.loads(path.read_text())))


if __name__ == "__main__":
    main()
