"""What does it cost that matrix products do not depend on where memory lies? Updates and products in MKL's modes.

    python benchmarks/reproducible/run.py [REPEATS]     writes results/DATE.json and README.md

Each measurement is a process of its own, as MKL reads its mode once; the modes take turns. Times are of the thread (one is used), so that
what else runs on the machine counts less; of each subject the quickest tenth of its repeats within a process counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from common import paired_ratio, write_result  # noqa: E402

MODES = {"no mode": "", "AUTO": "AUTO", "COMPATIBLE": "COMPATIBLE"}
PRODUCTS = {
    "product 32x784x256": (32, 784, 256),
    "product 256x384x1536": (256, 384, 1536),
    "product 1024³": (1024, 1024, 1024),
}
SECONDS = 1.0


def quickest(act: Callable[[], Any]) -> float:
    act()
    times, ends = [], time.perf_counter() + SECONDS
    while time.perf_counter() < ends or len(times) < 5:
        began = time.thread_time()
        act()
        times.append(time.thread_time() - began)
    return sorted(times)[len(times) // 10]


def measure() -> dict[str, float]:
    """Return the subjects, in this process."""
    import torch
    from torch import nn
    from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

    from snugfit.step.step import Step
    from snugfit.system.rounding import sums_depend_on_addresses
    from snugfit.techniques.learning.adamw import AdamW

    torch.set_num_threads(1)
    torch.manual_seed(0)
    seconds = {"sums depend on addresses": float(sums_depend_on_addresses())}
    for name, (rows, inner, columns) in PRODUCTS.items():
        one, other = torch.randn(rows, inner), torch.randn(columns, inner)
        seconds[name] = quickest(lambda one=one, other=other: torch.mm(one, other.t()))
    mlp = Step(nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)), AdamW(), "cross_entropy")
    digits = (torch.randn(128, 784), torch.randint(0, 10, (128,)))
    seconds["update of an MLP"] = quickest(lambda: mlp(digits))
    encoder = BertConfig(
        vocab_size=2000, hidden_size=384, num_hidden_layers=3, num_attention_heads=12, intermediate_size=1536
    )
    bert = Step(BertForSequenceClassification(encoder), AdamW(), "cross_entropy")
    texts = {"input_ids": torch.randint(0, 2000, (16, 64)), "labels": torch.randint(0, 2, (16,))}
    seconds["update of MiniLM's layers"] = quickest(lambda: bert(texts))
    decoder = LlamaConfig(
        vocab_size=2000,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
    )
    llama = Step(LlamaForCausalLM(decoder), AdamW(), "causal_lm")
    tokens = torch.randint(0, 2000, (8, 64))
    seconds["update of a small Llama"] = quickest(lambda: llama({"input_ids": tokens, "labels": tokens}))
    return seconds


def main() -> None:
    if sys.argv[1:] == ["measure"]:
        print(json.dumps(measure()))
        return
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    raw: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    for number in range(repeats):
        for mode in list(MODES)[number % len(MODES) :] + list(MODES)[: number % len(MODES)]:
            environment = {**os.environ, "MKL_CBWR": MODES[mode], "OMP_NUM_THREADS": "1"}
            done = subprocess.run(
                [sys.executable, __file__, "measure"],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            raw[mode].append(json.loads(done.stdout.splitlines()[-1]))
    ratios = {
        mode: {
            subject: paired_ratio(
                [each[subject] for each in raw[mode]], [each[subject] for each in raw["no mode"]]
            )
            for subject in raw[mode][0]
            if subject != "sums depend on addresses"
        }
        for mode in list(MODES)[1:]
    }
    path = write_result(HERE, {"capability": capability(), "ratios": ratios, "raw": raw})
    (HERE / "README.md").write_text(page(ratios, raw, path))


def capability() -> str:
    import torch

    return torch.backends.cpu.get_cpu_capability()


def page(ratios: dict[str, Any], raw: dict[str, list[dict[str, float]]], path: Path) -> str:
    lines = [
        "# MKL's reproducible modes, measured",
        "",
        "| time against no mode | " + " | ".join(ratios) + " |",
    ]
    lines.append("|---|" + "---|" * len(ratios))
    for subject in next(iter(ratios.values())):
        cells = [
            f"{each['median']:.2f}x [{each['low']:.2f}, {each['high']:.2f}]"
            for each in (of[subject] for of in ratios.values())
        ]
        lines.append(f"| {subject} | " + " | ".join(cells) + " |")
    depending = [
        mode for mode, processes in raw.items() if any(each["sums depend on addresses"] for each in processes)
    ]
    lines += [
        "",
        f"Medians of ratios of processes that took turns, with their 95% intervals; one thread, {capability()}. Products of the same numbers differed "
        f"with the address of memory in: {', '.join(depending) or 'no mode'}. Made by `run.py` from [{path.name}](results/{path.name}).",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
