"""Runs that others measured and published, as the planner predicts them: `python benchmarks/planner/published.py [NAME …]`.

Models are made from their published shapes: nothing is downloaded, and no weights or data are needed. What was published is given
with its source and settings; where ours cannot be the same, `differs` says how. Figures in GiB. The cases that are named are added to
those of the day's result.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from common import commit, machine

HERE = Path(__file__).parent
TORCHTUNE = "torchtune README, main branch, 2025"
MARKS = "<!-- published -->", "<!-- /published -->"
PAGES = (HERE / "README.md", HERE.parent.parent / "docs" / "planner.md")
ANSWER_AI = "AnswerDotAI/fsdp_qlora, benchmarks_03_2024.md"

_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
}
MODELS: dict[str, dict[str, Any]] = {
    "Llama 3.2 3B": {
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128_256,
        "tie_word_embeddings": True,
    },
    "Llama 3.1 8B": {
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
    },
    "Llama 2 7B": {
        "hidden_size": 4096,
        "intermediate_size": 11_008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 32_000,
    },
    "Llama 2 70B": {
        "hidden_size": 8192,
        "intermediate_size": 28_672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 32_000,
    },
}
ADAMW = {"adamw": {"learning_rate": 2e-5}}
LORA_64 = {"lora": {"rank": 64, "alpha": 128.0}}
LORA_8 = {"lora": {"rank": 8, "alpha": 16.0}}


@dataclass(frozen=True)
class Case:
    """A published figure, and our recipe that is nearest to it; `active` is what is allocated, otherwise what is reserved."""

    name: str
    model: str
    device: str
    published: tuple[float, float]  # GiB, the least and the most
    source: str
    rows: int
    length: int
    techniques: tuple[Any, ...]
    numerics: str = "pure_bf16"
    optimizer: Any = None
    active: bool = True
    tokens_per_second: float | None = None
    differs: str = ""
    devices: int = 1
    strategy: str | None = None


CHUNKED = ("chunked_loss",)
SMALL = (*CHUNKED, "recompute")


def _ladder(name: str, published: float, tokens: float, *techniques: Any, **more: Any) -> Case:
    """A rung of torchtune's ladder: 2 rows of 4,096 packed tokens, weights and AdamW's states in bf16, peak of what is active."""
    sizes = ("Llama 3.2 3B", "a100-80", (published, published), TORCHTUNE, 2, 4096)
    return Case(f"3B {name}", *sizes, techniques, tokens_per_second=tokens, **more)


CASES = (
    _ladder("packed", 60.0, 7075),
    _ladder("compile", 51.0, 8998, "compile", differs="planned as eager: an upper bound for compile"),
    _ladder("chunked loss", 42.9, 9174, *CHUNKED, differs="without compile"),
    _ladder(
        "recompute",
        24.9,
        7210,
        *SMALL,
        differs="without compile",
    ),
    _ladder(
        "optimizer in backward",
        23.1,
        7309,
        *SMALL,
        "optimizer_in_backward",
        differs="without compile",
    ),
    _ladder(
        "activation offload",
        21.8,
        7301,
        *SMALL,
        "activation_offload",
        "optimizer_in_backward",
        differs="without compile",
    ),
    _ladder(
        "8-bit states",
        17.6,
        6960,
        *SMALL,
        "activation_offload",
        "optimizer_in_backward",
        optimizer={"adamw_8bit": {"learning_rate": 2e-5}},
        differs="without compile",
    ),
    _ladder(
        "LoRA",
        8.5,
        8210,
        *SMALL,
        "activation_offload",
        LORA_64,
        differs="adapters on all linear layers, in fp32; without compile",
    ),
    _ladder(
        "QLoRA",
        4.6,
        8035,
        *SMALL,
        "activation_offload",
        "nf4",
        LORA_64,
        differs="adapters on all linear layers, in fp32; without compile",
    ),
    Case(
        "8B full",
        "Llama 3.1 8B",
        "rtx4090",
        (18.9, 18.9),
        TORCHTUNE,
        2,
        2048,
        (*SMALL, "optimizer_in_backward"),
        optimizer={"adamw_8bit": {"learning_rate": 2e-5, "paged": True}},
        tokens_per_second=1650,
        differs="without compile",
    ),
    Case(
        "8B LoRA",
        "Llama 3.1 8B",
        "rtx4090",
        (16.2, 16.2),
        TORCHTUNE,
        2,
        2048,
        ("recompute", "chunked_loss", LORA_8),
        tokens_per_second=3083,
        differs="adapters on all linear layers, in fp32; without compile",
    ),
    Case(
        "8B QLoRA",
        "Llama 3.1 8B",
        "rtx4090",
        (7.4, 7.4),
        TORCHTUNE,
        2,
        2048,
        (*SMALL, "nf4", LORA_8),
        tokens_per_second=2413,
        differs="adapters on all linear layers, in fp32; without compile",
    ),
    *(
        Case(
            f"7B QLoRA {length:,} tokens",
            "Llama 2 7B",
            "t4",
            (5.0, 9.0),
            "the range that is usually given for a 16 GB T4, 512 to 8,192 tokens",
            1,
            length,
            (*SMALL, "nf4", {"lora": {"rank": 16, "alpha": 32.0}}),
            numerics="fp16",
            active=False,
            differs="a T4 has no bf16: embeddings, head and what blocks hand on are in float32",
        )
        for length in (512, 2048, 8192)
    ),
    Case(
        "70B QLoRA, two cards",
        "Llama 2 70B",
        "rtx3090",
        (14.92, 14.92),
        ANSWER_AI,
        4,
        2048,
        ("recompute", "nf4", LORA_64),
        active=False,
        tokens_per_second=178,
        differs="theirs has what nccl takes, and fragments; what else differs is not known",
        devices=2,
        strategy="fsdp-offload",
    ),
    Case(
        "70B QLoRA, one card",
        "Llama 2 70B",
        "rtx3090",
        (14.92, 14.92),
        ANSWER_AI,
        2,
        2048,
        ("recompute", "nf4", LORA_64, "weight_streaming"),
        active=False,
        tokens_per_second=89,
        differs="theirs: each of two cards, by FSDP with CPU offload; ours: one card, frozen layers streamed, embeddings and head there",
    ),
)


class _Here:
    """The planner's own process, of which all cases are planned in one."""

    def run(self, function: Any, *arguments: Any, timeout: float) -> Any:
        return function(*arguments)


def plan_cases(names: list[str], path: Path) -> None:
    """Plan the cases of these names, and add each to the result."""
    cases = json.loads(path.read_text())["cases"] if path.exists() else {}
    for name in names:
        cases[name] = predict(next(case for case in CASES if case.name == name))
        result = {"date": time.strftime("%Y-%m-%d"), "commit": commit(), "machine": machine(), "cases": cases}
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")


def predict(case: Case) -> dict[str, Any]:
    """A case with its prediction, or with why there is none."""
    from snugfit.errors import SnugfitError
    from snugfit.planner.target import Target
    from snugfit.recipe import load_recipe
    from snugfit.run.plans import plan_recipe

    here: Any = _Here()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "model").mkdir()
        (root / "model" / "config.json").write_text(json.dumps({**_LLAMA, **MODELS[case.model]}))
        recipe: dict[str, Any] = {
            "task": "causal-lm",
            "model": "model",
            "data": {"train": "packed.txt", "validation": None, "max_length": case.length},
            "train": {"updates": 1000, "epochs": None, "global_batch": case.rows},
            "optimizer": case.optimizer or ADAMW,
            "schedule": None,
            "techniques": list(case.techniques),
            "evaluate": {"metrics": []},
            "plan": {"numerics": case.numerics, "device": "cpu", "devices": case.devices},
        }
        if case.strategy is not None:
            recipe["plan"]["strategy"] = case.strategy
        (root / "recipe.yaml").write_text(json.dumps(recipe))  # which is YAML too
        try:
            answer = plan_recipe(
                load_recipe(root / "recipe.yaml"),
                Target(device=case.device, devices=case.devices, search=False),
                here,
            )
        except SnugfitError as error:
            return {**asdict(case), "error": str(error)}
    found = answer.prediction
    memory = found.peak_bytes if case.active else found.reserved_bytes
    return {
        **asdict(case),
        "predicted_gib": memory / 2**30,
        "predicted_tokens_per_second": found.tokens_per_second,
        "peak_by_kind": dict(found.peak_by_kind),
        "peak_at": dict(found.peak_at),
        "reserved_bytes": found.reserved_bytes,
        "host_peak_bytes": found.host_peak_bytes,
        "planned_seconds": time.monotonic() - started,
    }


def table(cases: dict[str, dict[str, Any]]) -> str:
    """The cases as a table of a page."""
    lines = [
        "| run | published, GiB | predicted | tokens/s published | predicted | what differs |",
        "|---|---|---|---|---|---|",
    ]
    for case in CASES:
        made = cases.get(case.name)
        if made is None:
            continue
        low, high = case.published
        known = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        said = f"{made['predicted_gib']:.1f}" if "error" not in made else "no plan"
        rate = made.get("predicted_tokens_per_second")
        theirs = "" if case.tokens_per_second is None else f"{case.tokens_per_second:,.0f}"
        lines.append(
            f"| {case.name}, {case.device} | {known} | {said} | {theirs} | {'' if rate is None else f'{rate:,.0f}'} | "
            f"{made.get('error', case.differs)} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Plan the cases that are named, all by default, and write the table of those that were planned today."""
    from snugfit.planner.worker import Worker

    path = HERE / "results" / f"published-{time.strftime('%Y-%m-%d')}.json"
    names = sys.argv[1:] or [case.name for case in CASES]
    Worker().run(plan_cases, names, path, timeout=3600)
    found = table(json.loads(path.read_text())["cases"])
    print(found)
    for page in PAGES:
        before, _, rest = page.read_text().partition(MARKS[0])
        _, _, after = rest.partition(MARKS[1])
        page.write_text(f"{before}{MARKS[0]}\n{found}\n{MARKS[1]}{after}")


if __name__ == "__main__":
    main()
