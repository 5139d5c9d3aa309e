"""What do kernels take within an operator, and how near does the planner come? Measured by the profiler on this CPU.

    python benchmarks/planner/workspace.py      models, beside what `workspace_bytes` says of each of their operators

Each model takes two training updates; of the second, every operator's allocations are followed by the profiler, and the most that
there was at a time within it, less what it left, is its workspace. An error is told in proportion to the model's peak.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import write_result

from snugfit.planner.cost.workspace import workspace_bytes


class Measured(NamedTuple):
    """An operator: its name, what it took beside its results, what is predicted, and what was allocated after it."""

    name: str
    bytes: int
    predicted: int
    after: int


class _Marked(TorchDispatchMode):
    """Gives each operator a range of its own in the profile, and asks the planner about it."""

    def __init__(self, predict: Callable[..., int]) -> None:
        super().__init__()
        self.predict = predict
        self.names: list[str] = []
        self.predicted: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with record_function(f"operator {len(self.names)}"):
            out = func(*args, **(kwargs or {}))
        self.names.append(func.name())
        self.predicted.append(self.predict(func, args, kwargs or {}, out))
        return out


def measure(
    update: Callable[[], object], predict: Callable[..., int] = workspace_bytes
) -> tuple[list[Measured], int]:
    """Return the operators of a second call of `update`, and the peak of what it allocates, both in bytes."""
    update()
    with (
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled,
        _Marked(predict) as marked,
    ):
        update()
    operators: list[Measured] = []
    now = peak = 0
    within: dict[int, tuple[int, int, int]] = {}
    for number, size in _changes(profiled.profiler.kineto_results.experimental_event_tree()):  # type: ignore[union-attr]
        if number is not None:
            before, most, inside = within.setdefault(number, (now, 0, 0))
            within[number] = before, max(most, inside + size), inside + size
        now += size
        peak = max(peak, now)
    for number, (before, most, inside) in sorted(within.items()):
        name = marked.names[number]
        operators.append(Measured(name, most - max(inside, 0), marked.predicted[number], before + inside))
    return operators, peak


def _changes(roots: Any) -> Iterator[tuple[int | None, int]]:
    """Yield each allocation (or free, negative) in the order of time, with the number of the operator that it was in."""
    changes: list[tuple[int, int | None, int]] = []

    def walk(event: Any, number: int | None) -> None:
        if event.name.startswith("operator "):
            number = int(event.name.removeprefix("operator "))
        if event.tag == torch._C._profiler._EventType.Allocation:
            changes.append((event.start_time_ns, number, event.extra_fields.alloc_size))
        for child in event.children:
            walk(child, number)

    for root in roots:
        walk(root, None)
    return ((number, size) for _, number, size in sorted(changes, key=lambda each: each[0]))


def models() -> Iterator[tuple[str, nn.Module, dict[str, Any]]]:
    import transformers as hf

    ids = torch.randint(0, 2000, (8, 64))
    text = {"input_ids": ids, "labels": ids}
    images = {"pixel_values": torch.randn(16, 3, 64, 64), "labels": torch.randint(0, 10, (16,))}
    shape = {"vocab_size": 2000, "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
    wide = {**shape, "intermediate_size": 384}
    for kind in ("basic", "bottleneck"):
        config = hf.ResNetConfig(
            embedding_size=32,
            hidden_sizes=[32, 64, 128, 256],
            depths=[2, 2, 2, 2],
            layer_type=kind,
            num_labels=10,
        )
        yield f"resnet {kind}", hf.ResNetForImageClassification(config), images
    vit = {key: value for key, value in wide.items() if key != "vocab_size"}
    config = hf.ViTConfig(**vit, image_size=64, patch_size=8, num_labels=10)
    yield "vit", hf.ViTForImageClassification(config), images
    labels = {"input_ids": ids, "labels": torch.randint(0, 2, (8,))}
    yield "bert", hf.BertForSequenceClassification(hf.BertConfig(**wide)), labels
    yield "gpt2", hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=2000, n_embd=128, n_layer=3, n_head=4)), text
    yield "llama", hf.LlamaForCausalLM(hf.LlamaConfig(**wide, num_key_value_heads=2)), text
    config = hf.T5Config(
        vocab_size=2000, d_model=128, d_kv=32, d_ff=384, num_layers=3, num_heads=4, decoder_start_token_id=0
    )
    yield "t5", hf.T5ForConditionalGeneration(config), text
    config = hf.MixtralConfig(**wide, num_key_value_heads=2, num_local_experts=4)
    yield "mixtral", hf.MixtralForCausalLM(config), text
    yield "lstm", _Recurrent(), text


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2000, 96)
        self.layers = nn.LSTM(96, 160, 2, batch_first=True)
        self.head = nn.Linear(160, 2000)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        logits = self.head(self.layers(self.embedding(input_ids))[0])
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())}


def trained(model: nn.Module, batch: dict[str, Any], half: bool, last: bool) -> Callable[[], None]:
    if last:
        model = model.to(memory_format=torch.channels_last)
        batch = {
            key: each.contiguous(memory_format=torch.channels_last) if each.dim() == 4 else each
            for key, each in batch.items()
        }
    optimizer = torch.optim.AdamW(model.train().parameters())

    def update() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = model(**batch)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return update


def compare(threads: int) -> list[dict[str, Any]]:
    rows = []
    torch.set_num_threads(threads)
    for half, last in ((False, False), (True, False), (False, True)):
        for name, model, batch in models():
            if last and "pixel_values" not in batch:
                continue
            base = 4 * sum(each.numel() for each in model.parameters())
            base += 2 * base + sum(
                each.nbytes for each in batch.values()
            )  # AdamW's state was there before, too
            operators, peak = measure(trained(model, batch, half, last))
            worst = sorted(operators, key=lambda each: -abs(each.predicted - each.bytes))[:3]
            largest = max(operators, key=lambda each: each.bytes)
            rows.append(
                {
                    "model": name,
                    "numerics": "bf16 autocast" if half else "fp32",
                    "layout": "channels last" if last else "contiguous",
                    "threads": threads,
                    "peak_bytes": base + peak,
                    "largest": largest._asdict(),
                    "worst": [each._asdict() for each in worst],
                    "worst_share_of_peak": (worst[0].predicted - worst[0].bytes) / (base + peak),
                    "peak_error": _peak_error(operators, base),
                }
            )
            row = rows[-1]
            print(
                f"{name:18} {row['numerics']:14} {row['layout']:14} {threads} threads: largest {largest.name} "
                f"{largest.bytes:,} (predicted {largest.predicted:,}), worst {worst[0].name} {worst[0].bytes:,} "
                f"({worst[0].predicted:,}), {row['worst_share_of_peak']:+.2%}; peak {row['peak_error']:+.2%}"
            )
    return rows


def _peak_error(operators: list[Measured], base: int) -> float:
    """Return the peak at the operators that take anything, with what is predicted in place of what they took."""
    predicted, measured = (
        max(base + each.after + size for each, size in zip(operators, sizes, strict=True))
        for sizes in ([each.predicted for each in operators], [each.bytes for each in operators])
    )
    return predicted / measured - 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2, help="up to as many")
    asked = parser.parse_args()
    counts = range(1, asked.threads + 1)
    rows = [row for threads in counts for row in compare(threads)]
    write_result(Path(__file__).parent, {"rows": rows}, "workspace")


if __name__ == "__main__":
    main()
