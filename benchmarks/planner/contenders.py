"""Who says how much memory plain training takes, and how large a batch may be: the planner, and what others offer for that."""

from __future__ import annotations

import copy
import gc
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from cases import MODELS, from_config  # noqa: E402

import snugfit as sf  # noqa: E402
from snugfit.core.batch import Batch  # noqa: E402
from snugfit.core.job import Job, Plan  # noqa: E402
from snugfit.core.tree import map_tree  # noqa: E402
from snugfit.kit.skeleton import skeleton  # noqa: E402
from snugfit.planner.choice.candidate import Budget  # noqa: E402
from snugfit.planner.devices.device import Machine  # noqa: E402
from snugfit.planner.devices.hardware import uncalibrated  # noqa: E402
from snugfit.planner.largest import make_largest  # noqa: E402
from snugfit.planner.plan import Request  # noqa: E402
from snugfit.planner.trace.dry_run import Subject  # noqa: E402
from snugfit.planner.trace.fake_tensors import BareOptimizer  # noqa: E402
from snugfit.planner.worker import Worker  # noqa: E402
from snugfit.system.allocation_counter import AllocatedBytes  # noqa: E402
from snugfit.system.malloc import resident_bytes  # noqa: E402

UPDATES = 2
Data = Any
"""Examples as a model takes them: a mapping, or inputs and labels."""


@dataclass(frozen=True)
class Problem:
    """A model, one example of its data, and its loss.

    Args:
        rows: of the batch whose memory is asked for; its peak is the cap, too.
        start: of the finders that go down from a batch that is too large.
    """

    make: Callable[[], nn.Module]
    data: Callable[[], Data]
    loss: str
    rows: int = 27
    start: int = 128

    def batch(self, rows: int) -> Data:
        return map_tree(lambda tensor: tensor[:1].repeat_interleave(rows, 0), self.data())


def _as_in_cases(name: str, rows: int = 27, start: int = 128) -> Problem:
    known = MODELS[name]
    assert isinstance(known.loss, str)
    return Problem(known.make, known.data, known.loss, rows, start)


PROBLEMS: Mapping[str, Problem] = {
    "mlp": _as_in_cases("mlp", 1500, 4096),
    "resnet": _as_in_cases("resnet"),
    "bert": _as_in_cases("bert"),
    "gpt2": _as_in_cases("gpt2"),
    "llama": _as_in_cases("llama"),
    "gpt2 of 124M": Problem(
        from_config("GPT2Config", "GPT2LMHeadModel", vocab_size=4000 * 12),
        MODELS["gpt2"].data,
        "causal_lm",
        11,
        32,
    ),
}
QUICK = ("mlp", "bert")


def loss_of(model: nn.Module, batch: Data) -> Tensor:
    """Return the model's own loss, or cross entropy."""
    if isinstance(batch, Mapping):
        loss: Tensor = model(**batch).loss
        return loss
    inputs, labels = batch
    return nn.functional.cross_entropy(model(inputs), labels)


def train(model: nn.Module, batch: Data) -> None:
    """Train by the plain loop, on copies that are its own."""
    model, batch = copy.deepcopy(model).train(), copy.deepcopy(batch)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(UPDATES):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


# --------------------------------------------------------------------------------------------------------- how much


def by_snugfit(problem: Problem, model: nn.Module) -> int:
    """`sf.plan(model, batch, optimizer=AdamW(...), search=False)`."""
    answer = sf.plan(
        model,
        problem.batch(problem.rows),
        loss=problem.loss,
        optimizer=torch.optim.AdamW(model.parameters()),
        search=False,
    )
    return answer.prediction.peak_bytes


def by_accelerate(problem: Problem, model: nn.Module) -> int:
    """Return the number under "Training using Adam" of `accelerate estimate-memory --dtypes float32`; the command reads models of the hub."""
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    with torch.device("meta"):
        total, _ = calculate_maximum_sizes(problem.make())
    return int(max(estimate_training_usage(total, "float32").values()))


def by_zero2(problem: Problem, model: nn.Module) -> int:
    """Return one GPU, nothing in host memory."""
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs, model_to_params

    _, bytes = estimate_zero2_model_states_mem_needs(model_to_params(model), cpu_offload=False)
    return int(bytes)


def by_zero3(problem: Problem, model: nn.Module) -> int:
    """Return one GPU, nothing in host memory."""
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs, model_to_params

    total, largest = model_to_params(model)
    _, bytes, _ = estimate_zero3_model_states_mem_needs(
        total, largest, cpu_offload=False, cpu_offload_params=False
    )
    return int(bytes)


ESTIMATORS: Mapping[str, Callable[[Problem, nn.Module], int]] = {
    "Snugfit": by_snugfit,
    "accelerate estimate-memory": by_accelerate,
    "DeepSpeed ZeRO-2": by_zero2,
    "DeepSpeed ZeRO-3": by_zero3,
}


# -------------------------------------------------------------------------------------------------------- how large


class Capped(AllocatedBytes):
    """Temporarily let an operation fail as an allocator does, after which more than `cap` bytes are allocated."""

    def __init__(self, cap: int) -> None:
        super().__init__()
        self.cap = cap

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self.now
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if self.now > max(self.cap, before):
            del result  # an allocator would not have given it, and the traceback would hold it
            # as the host's says it, which Lightning and Accelerate look for
            raise torch.OutOfMemoryError(f"DefaultCPUAllocator: can't allocate memory: {self.now} bytes")
        return result


def passes(problem: Problem, model: nn.Module, rows: int, cap: int) -> bool:
    """Return whether the plain loop stays under the cap."""
    gc.collect()
    try:
        with Capped(cap):
            train(model, problem.batch(rows))
    except torch.OutOfMemoryError:
        return False
    return True


def planned(problem: Problem, model: nn.Module, cap: int) -> int:
    """`snugfit plan --max batch`: predictions; nothing runs."""
    window = Batch.of(problem.batch(2))
    bare = BareOptimizer.of(torch.optim.AdamW(model.parameters()), model)
    job = Job.of(global_batch=window.rows, updates=100)
    empty = partial(copy.deepcopy, skeleton(model))
    subject = Subject(empty, window, job, 100_000, (), problem.loss, bare)
    rows: int = Worker().run(_largest, subject, cap, timeout=300)
    return rows


def _largest(subject: Subject, cap: int) -> int:
    """Run in the planner's process. A budget is of what the process takes, so that its baseline is added to the cap."""
    cpu = uncalibrated("cpu")
    machine = Machine(cpu, cpu)
    budget = Budget(resident_bytes(cap, machine.baseline), margin=0.0)
    largest = make_largest("batch", subject, machine, Request(Plan(), budget)).largest
    return 0 if largest is None else largest.value


def by_power(problem: Problem, model: nn.Module, cap: int) -> int:
    """Lightning's default: twice the batch until it fails, from 2; three steps each."""
    return _scaled(problem, model, cap, mode="power")


def by_binsearch(problem: Problem, model: nn.Module, cap: int) -> int:
    """Return the same, then halving; without the margin of 5% that is taken off by default."""
    return _scaled(problem, model, cap, mode="binsearch", margin=0.0)


def _scaled(problem: Problem, model: nn.Module, cap: int, **settings: Any) -> int:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.tuner import Tuner

    data = Alike(problem)

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = copy.deepcopy(model).train()
            self.batch_size = 2

        def training_step(self, batch: Data, number: int) -> Tensor:
            return loss_of(self.model, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

        def train_dataloader(self) -> DataLoader[Any]:
            return DataLoader(data, batch_size=self.batch_size)

    with tempfile.TemporaryDirectory() as folder, Capped(cap):
        trainer = Trainer(
            accelerator="cpu",
            default_root_dir=folder,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            max_epochs=1,
        )
        rows = Tuner(trainer).scale_batch_size(Module(), **settings)
    assert rows is not None
    return rows


class Alike(Dataset[Any]):
    """More examples than any batch takes, all alike."""

    def __init__(self, problem: Problem) -> None:
        self.example = map_tree(lambda tensor: tensor[0], problem.data())
        self.count = 4 * problem.start

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: int) -> Any:
        return self.example


def by_nine_tenths(problem: Problem, model: nn.Module, cap: int) -> int:
    """Accelerate's default: nine tenths of the batch until it passes; the function is the plain loop."""
    from accelerate.utils import find_executable_batch_size

    def run(batch_size: int) -> int:
        train(model, problem.batch(batch_size))
        return batch_size

    with Capped(cap):
        rows: int = find_executable_batch_size(run, starting_batch_size=problem.start)()
    return rows


def by_trainer(problem: Problem, model: nn.Module, cap: int) -> int:
    """`auto_find_batch_size` of HF Trainer, a run of two updates."""
    from transformers import Trainer, TrainingArguments

    data = Alike(problem)
    with tempfile.TemporaryDirectory() as folder, Capped(cap):
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=problem.start,
            auto_find_batch_size=True,
            max_steps=UPDATES,
            max_grad_norm=0.0,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(model=copy.deepcopy(model), args=arguments, train_dataset=data)
        trainer.train()
    return int(trainer._train_batch_size)


FINDERS: Mapping[str, Callable[[Problem, nn.Module, int], int]] = {
    "Snugfit": planned,
    "Lightning, power": by_power,
    "Lightning, binsearch": by_binsearch,
    "Accelerate": by_nine_tenths,
    "HF Trainer": by_trainer,
}
