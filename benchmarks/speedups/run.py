"""What does each speed-up save, and does the model stay as good? Against the same run without it, interleaved.

    python benchmarks/speedups/run.py              about ten minutes on two cores
    python benchmarks/speedups/run.py --short      a look at whether it runs; writes nothing
    python benchmarks/speedups/run.py --only "digits, net with strides"    these jobs; the table keeps the others

Small real jobs: scikit-learn's digits at 32 x 32 pixels by a convolutional net and by a vision transformer, and the source
of Python's standard library by a GPT-2 on bytes. A repeat trains every contender of a job from one seed, in an order
that turns from repeat to repeat; time is of the updates alone, the processor's on one thread, so that it counts nothing that
others do on the machine, and ratios are taken within a repeat. The
score is taken at the end of the run, on rows that were never trained on. What changes pictures while they are loaded is done, and timed, in this
process, picture by picture. The table in README.md is made from the JSON, each job from the newest that has it.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import paired_ratio, write_result

from snugfit import AdamW, Step, Technique
from snugfit.core.batch import Batch
from snugfit.core.losses import causal_lm
from snugfit.core.selection import picture_technique
from snugfit.techniques import find

HERE = Path(__file__).parent
REPEATS = 7
CONTEXT = 256
VOCABULARY = 256
TEXT_BYTES = 2_000_000

Techniques = tuple[Technique, ...]


Data = tuple[Callable[[torch.Generator], Any], list[Any]]
"""What draws a batch to train on, and the batches of the test."""


@dataclass(frozen=True)
class Job:
    """Data, a model, and contenders, which are compared with the first of them but for those whose baseline is named."""

    name: str
    make_model: Callable[[], nn.Module]
    data: Data
    loss: str
    learning_rate: float
    updates: int
    contenders: Mapping[str, Techniques]
    baselines: Mapping[str, str] = field(default_factory=dict)

    @property
    def score(self) -> str:
        return "accuracy" if self.loss == "cross_entropy" else "loss"

    @property
    def comparisons(self) -> dict[str, str]:
        first, *others = self.contenders
        return dict.fromkeys(others, first) | dict(self.baselines)


@dataclass(frozen=True)
class Run:
    """Seconds of one update, and the score at the end."""

    seconds: float
    score: float


def digits(patch: bool) -> Data:
    """Batches of 32 digits, four times as large a side; the last 500 are for the test."""
    from sklearn.datasets import load_digits

    loaded = load_digits()
    pixels = torch.tensor(loaded.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    pixels = F.interpolate(pixels, scale_factor=4, mode="bilinear", align_corners=False)
    labels = torch.tensor(loaded.target)
    name = "pixel_values" if patch else "pixels"

    def batch(rows: Any) -> Any:
        return {name: pixels[rows], "labels": labels[rows]}

    def draw(source: torch.Generator) -> Any:
        return batch(torch.randint(0, len(labels) - 500, (32,), generator=source))

    return draw, [batch(slice(len(labels) - 500, None))]


class ConvNet(nn.Module):
    """A small residual net that takes images of any size."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1, bias=False))
            for _ in range(4)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        hidden = F.avg_pool2d(self.stem(pixels), 2)
        for number, block in enumerate(self.blocks):
            hidden = hidden + block(hidden)
            if number == 1:
                hidden = F.avg_pool2d(hidden, 2)
        logits: Tensor = self.head(hidden.mean(dim=(2, 3)))
        return logits


class StridedNet(nn.Module):
    """A residual net whose images become smaller by a maximum over neighbours and by strides, with batch norm behind each convolution."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Sequential(*self._layers(1, width, 1), nn.MaxPool2d(2))
        strides = (1, 2, 1, 2)
        self.blocks = nn.ModuleList(
            nn.Sequential(*self._layers(width, width, stride), *self._layers(width, width, 1))
            for stride in strides
        )
        self.head = nn.Linear(width, 10)

    @staticmethod
    def _layers(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        return [conv, nn.BatchNorm2d(outputs), nn.ReLU()]

    def forward(self, pixels: Tensor) -> Tensor:
        hidden = self.stem(pixels)
        for block in self.blocks:
            changed = block(hidden)
            hidden = changed + hidden if changed.shape == hidden.shape else changed
        logits: Tensor = self.head(hidden.mean(dim=(2, 3)))
        return logits


def vision_transformer() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=32,
        patch_size=8,
        num_channels=1,
        hidden_size=96,
        num_hidden_layers=8,
        num_attention_heads=4,
        intermediate_size=192,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=10,
    )
    return ViTForImageClassification(config)


def source_code(rows: int = 4, length: int = CONTEXT, test_length: int = CONTEXT) -> Data:
    """Batches of pieces of the standard library's source; every tenth file is for the test."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    parts = [b"".join(path.read_bytes() for path in paths) for paths in (without_tenth(files), files[9::10])]
    train, test = (torch.frombuffer(bytearray(part[:TEXT_BYTES]), dtype=torch.uint8) for part in parts)

    def batch(text: Tensor, starts: Sequence[int], length: int) -> Any:
        ids = torch.stack([text[start : start + length] for start in starts]).long()
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}

    def draw(source: torch.Generator) -> Any:
        starts = torch.randint(0, len(train) - length, (rows,), generator=source).tolist()
        return batch(train, starts, length)

    places = list(range(0, len(test) - test_length, len(test) // 64))[:64]
    return draw, [batch(test, places[first : first + 16], test_length) for first in range(0, 64, 16)]


def without_tenth(files: Sequence[Path]) -> list[Path]:
    return [path for place, path in enumerate(files) if place % 10 != 9]


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=CONTEXT,
        n_embd=96,
        n_layer=4,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    return GPT2LMHeadModel(config)


def technique(name: str, **settings: Any) -> Technique:
    return find(name)(**settings)


def each_alone(names: Mapping[str, Mapping[str, Any]], *common: Technique) -> dict[str, Techniques]:
    """Return contenders that each have one technique more than the first, by name with its settings."""
    return {
        "plain": common,
        **{name: (*common, technique(name, **settings)) for name, settings in names.items()},
    }


def jobs() -> list[Job]:
    bf16 = technique("bf16")
    eager, sdpa = (technique("attention_kernel", kernel=kernel) for kernel in ("eager", "sdpa"))
    of_digits = partial(Job, data=digits(patch=False), loss="cross_entropy", learning_rate=1e-2)
    of_code = partial(Job, make_model=gpt2, data=source_code(), loss="causal_lm", learning_rate=2e-3)
    return [
        of_digits(
            "digits, convolutional net",
            ConvNet,
            updates=150,
            contenders=each_alone({"progressive_resizing": {}, "channels_last": {}}),
        ),
        of_digits(
            "digits, vision transformer",
            vision_transformer,
            data=digits(patch=True),
            learning_rate=1e-3,
            updates=150,
            contenders=each_alone({"stochastic_depth": {"rate": 0.4, "mode": "window"}}),
        ),
        of_code(
            "source code, GPT-2",
            updates=80,
            contenders={
                "eager": (eager,),
                "sdpa": (sdpa,),
                "sequence_length": (sdpa, technique("sequence_length", initial=64, fraction=0.5)),
            },
            baselines={"sequence_length": "sdpa"},
        ),
        of_code(
            "source code, GPT-2 in bf16",
            updates=40,
            contenders={"bf16": (bf16,), "low_precision_norm": (bf16, technique("low_precision_norm"))},
        ),
        of_digits(
            "digits, net with strides",
            StridedNet,
            updates=120,
            contenders=each_alone(
                {
                    "cutout": {"length": 0.3},
                    "colout": {},
                    "rand_augment": {"magnitude": 5},
                    "augmix": {},
                    "squeeze_excite": {"min_channels": 32, "reduction": 4},
                    "ghost_batch_norm": {"rows": 16},
                    "weight_standardization": {},
                    "blurpool": {},
                    "factorized_conv": {"min_channels": 32},
                    "progressive_freeze": {},
                }
            ),
        ),
        of_code(
            "source code, GPT-2 by sdpa",
            updates=60,
            contenders=each_alone({"glu": {}, "alibi": {}, "gyro_dropout": {"rate": 0.1}}, sdpa),
        ),
        of_code(
            "source code of 96 bytes, GPT-2 read at 256",
            data=source_code(rows=8, length=96, test_length=CONTEXT),
            updates=60,
            contenders=each_alone({"alibi": {}}, sdpa),
        ),
    ]


def train(job: Job, techniques: Techniques, seed: int) -> Run:
    """Return one run from `seed`, which gives the weights and the batches."""
    torch.manual_seed(seed)
    source = torch.Generator().manual_seed(seed)
    step = Step(
        job.make_model(),
        AdamW(learning_rate=job.learning_rate),
        job.loss,
        (*techniques, technique("cosine", warmup=max(1, job.updates // 10))),
        total_updates=job.updates,
        seed=seed,
    )
    draw, _ = job.data
    changing = picture_technique(techniques)
    seconds = 0.0
    for _ in range(job.updates):
        batch = draw(source)
        start = time.process_time()
        if changing is not None:
            batch = {**batch, "pixels": changed_pictures(batch["pixels"], changing)}
        step(batch)
        seconds += time.process_time() - start
    return Run(seconds / job.updates, scored(job, step))


def changed_pictures(pixels: Tensor, technique: Technique) -> Tensor:
    """Return gray pictures, of numbers between -1 and 1, each as the technique changes it in 8 bits."""
    change = technique.picture()
    assert change is not None
    of_8_bits = ((pixels.squeeze(1) + 1) * 127.5).round().clamp(0, 255).byte().numpy()
    changed = np.stack([np.asarray(change(Image.fromarray(each))) for each in of_8_bits])
    return torch.from_numpy(changed).unsqueeze(1).float() / 127.5 - 1


def scored(job: Job, step: Step) -> float:
    """Accuracy of rows, or mean loss of tokens, on what was never trained on."""
    step.model.eval()
    total = weight = 0.0
    with torch.no_grad():
        for data in job.data[1]:
            batch = Batch.of(data)
            with step.seams.forward(batch):
                outputs = step.forward(batch)
            if job.score == "accuracy":
                logits = outputs if isinstance(outputs, Tensor) else outputs.logits
                total += float((logits.argmax(dim=-1) == data["labels"]).sum())
                weight += len(data["labels"])
            else:
                terms = causal_lm(outputs, data)
                total += float(terms.weighted_sum())
                weight += float(terms.weight())
    return total / weight


def measured(job: Job, repeats: int) -> dict[str, Any]:
    """Return all contenders in each repeat, after a short round that pays for what is made once."""
    runs: dict[str, list[Run]] = {name: [] for name in job.contenders}
    for techniques in job.contenders.values():
        train(replace(job, updates=3), techniques, seed=0)
    for repeat in range(repeats):
        names = list(runs)
        turn = repeat % len(names)
        for name in names[turn:] + names[:turn]:
            runs[name].append(train(job, job.contenders[name], seed=repeat))
    return {
        "score": job.score,
        "updates": job.updates,
        "runs": {
            name: {
                "seconds_per_update": [run.seconds for run in own_runs],
                "scores": [run.score for run in own_runs],
            }
            for name, own_runs in runs.items()
        },
        "speedups": {
            name: compared(runs[name], runs[other], other) for name, other in job.comparisons.items()
        },
    }


def compared(ours: Sequence[Run], baseline: Sequence[Run], name: str) -> dict[str, Any]:
    differences = [one.score - other.score for one, other in zip(ours, baseline, strict=True)]
    error = statistics.stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else math.nan
    return {
        "baseline": name,
        "time": paired_ratio([run.seconds for run in ours], [run.seconds for run in baseline]),
        "score": statistics.mean(run.score for run in ours),
        "baseline_score": statistics.mean(run.score for run in baseline),
        "difference": statistics.mean(differences),
        "standard_error": error,
    }


def table(result: Mapping[str, Any]) -> str:
    lines = [
        "| speed-up | job | against | time an update | score | of the other | difference |",
        "|---|---|---|---|---|---|---|",
    ]
    for job, figures in result["jobs"].items():
        for name, row in figures["speedups"].items():
            ratio = row["time"]
            lines.append(
                f"| {name} | {job} | {row['baseline']} | {ratio['median']:.2f}x [{ratio['low']:.2f}, {ratio['high']:.2f}] "
                f"| {figures['score']} {row['score']:.3f} | {row['baseline_score']:.3f} "
                f"| {row['difference']:+.3f} ± {row['standard_error']:.3f} |"
            )
    return "\n".join(lines)


def write_readme() -> None:
    """Write the table of the newest result of each job, with what it means."""
    files = {path.name: json.loads(path.read_text()) for path in sorted((HERE / "results").glob("*.json"))}
    merged: dict[str, Any] = {}
    for result in files.values():
        merged |= result["jobs"]
    sources = [
        f"[{name}](results/{name}) ({result['machine']['cores']} cores, torch {result['machine']['torch']}, "
        f"{repeats_of(result)} repeats, time {result.get('clock', 'by the clock')})"
        for name, result in files.items()
        if any(merged[job] is figures for job, figures in result["jobs"].items())
    ]
    text = f"""# Speed-ups and small changes of models, measured

{table({"jobs": merged})}

Time is the median ratio of repeats that ran side by side, with its 95% interval; below 1 is faster. The difference
of the scores is a mean over the same repeats with its standard error: an accuracy is better above 0, a loss below. These are short runs of small
models: they say what a technique costs, and little of what it is worth in long ones. Made by `run.py` from {" and ".join(sources)}.
"""
    (HERE / "README.md").write_text(text)


def repeats_of(result: Mapping[str, Any]) -> int:
    return len(next(iter(next(iter(result["jobs"].values()))["runs"].values()))["scores"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--short", action="store_true", help="two repeats of a few updates; writes nothing")
    parser.add_argument("--only", nargs="*", help="names of jobs; the table keeps the others")
    options = parser.parse_args()
    torch.set_num_threads(1)
    contests = [job for job in jobs() if options.only is None or job.name in options.only]
    if options.short:
        contests = [replace(job, updates=max(4, job.updates // 10)) for job in contests]
    results = {}
    for job in contests:
        start = time.perf_counter()
        results[job.name] = measured(job, 2 if options.short else options.repeats)
        print(f"{job.name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    result = {"question": __doc__.splitlines()[0], "clock": "the processor's on one thread", "jobs": results}
    print(table(result))
    if not options.short:
        path = write_result(HERE, result)
        write_readme()
        print(path)


if __name__ == "__main__":
    main()
