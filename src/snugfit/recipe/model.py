"""The settings of a recipe: names, types, defaults and what they mean."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from snugfit.core.job import StrategyName
from snugfit.planner.choice.goals import SLOWER, WORTH, GoalName
from snugfit.recipe.presets import DEFAULT as DEFAULT_PRESET
from snugfit.recipe.wording import Wanted

if TYPE_CHECKING:
    from snugfit.core.technique import Technique

    Techniques = tuple[Technique, ...]
else:
    # pydantic looks at annotations when the class is made, and techniques need torch
    Technique = Techniques = Any

Task = Literal["text-classification", "causal-lm", "instruction", "python"]
TASKS: tuple[Task, ...] = ("text-classification", "causal-lm", "instruction", "python")

_Count = Annotated[int, Field(gt=0)]
_Words = Annotated[tuple[str, ...], Wanted("a name or a list of names")]
_Bytes = Annotated[int | str, Wanted("a size, such as 24GiB")]
_Times = Annotated[float, Field(ge=1)]
_Fraction = Annotated[float, Field(gt=0, lt=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Data(_Section):
    """Where the examples come from and how they are read."""

    train: str = Field(
        description="training rows: a CSV, TSV, JSONL or text file, or package.module:function"
    )
    validation: Annotated[_Fraction | str | None, Wanted("a fraction between 0 and 1, a file or null")] = (
        Field(default=0.1, description="a fraction of the training rows, a file, or null for none")
    )
    text: _Words = Field(
        default=("text",), description="the columns of text, joined by a line break", min_length=1
    )
    label: str = Field(default="label", description="the column of labels")
    completion: str = Field(
        default="completion", description="the column of answers, which alone are scored; text is the prompt"
    )
    max_length: _Count = Field(default=128, description="tokens of one example, special tokens counted")
    bad_rows: Literal["fail", "skip"] = Field(
        default="fail", description="what to do with rows that cannot be used"
    )
    collate: str | None = Field(
        default=None, description="package.module:function from a list of examples to a batch"
    )


class Train(_Section):
    """How long, and in which steps."""

    epochs: Annotated[float, Field(gt=0)] | None = Field(
        default=3.0, description="passes over the training data"
    )
    updates: _Count | None = Field(default=None, description="windows of the run, instead of epochs")
    global_batch: _Count = Field(
        default=32, description="examples of one update, over all micro-batches and devices"
    )
    seed: Annotated[int, Field(ge=0)] = Field(
        default=0, description="of the split, the order, new weights and dropout"
    )


class Evaluate(_Section):
    """When and how the weights are scored."""

    every: Annotated[Literal["epoch"] | _Count, Wanted("epoch or a positive number of updates")] = Field(
        default="epoch", description="epoch, or a number of updates"
    )
    metrics: _Words = Field(
        default=(), description="what to measure besides the loss; the default depends on the task"
    )
    best: str = Field(
        default="", description="the metric that decides which weights are kept; the first one by default"
    )
    batch: _Count | None = Field(
        default=None, description="examples of one evaluation batch; train.global_batch by default"
    )


class EarlyStopping(_Section):
    """When to stop before the end."""

    patience: _Count | None = Field(
        default=None, description="evaluations without improvement of evaluate.best"
    )
    min_delta: Annotated[float, Field(ge=0)] = Field(
        default=0.0, description="what an improvement has to be more than"
    )
    stop_when: str | None = Field(
        default=None,
        description="package.module:function from the evaluations so far to the reason to stop, or None",
    )


class NonFinite(_Section):
    """What to do with a window whose loss or gradient is not finite."""

    policy: Literal["stop", "skip", "roll_back"] = Field(
        default="skip", description="stop, skip the window, or roll back"
    )
    limit: _Count = Field(default=10, description="windows in a row without an update that end the run")


class PlanSettings(_Section):
    """How the run fits on the machine; changes memory and time, not what is learned."""

    micro_batch: Annotated[
        Literal["auto"] | _Count | None, Wanted("a positive whole number, auto or null")
    ] = Field(
        default=None,
        description="examples of one forward and backward; auto: as many as fit; null: the whole window",
    )
    numerics: Technique | str | None = Field(
        default=None,
        description="precision of forward and backward, with its settings; fp32 has none; null: as planned, and without a plan "
        "mixed precision in the 16-bit type that the device has units for, else fp32",
    )
    device: Annotated[str, Wanted("auto, cpu, mps, cuda or cuda:1")] = Field(
        default="auto",
        pattern=r"^(auto|cpu|mps|(cuda|xpu)(:\d+)?)$",
        description="auto, cpu, mps, cuda or cuda:1",
    )
    devices: _Count = Field(
        default=1, description="of this machine, which share each update: a process for each of them"
    )
    strategy: Literal["auto", StrategyName] = Field(
        default="auto",
        description="how several devices share: ddp copies the model to each, fsdp spreads it over them, fsdp-zero2 all but the weights, "
        "fsdp-hybrid over those of each node, fsdp-offload into host memory; auto: as planned, else ddp",
    )
    timeout: Annotated[str, Wanted("a time, such as 30m")] = Field(
        default="30m", description="how long a device's process waits for the others before it gives up"
    )
    goal: GoalName = Field(
        default="fastest",
        description="what the plan is chosen for: fastest, the least time of the whole run; finest, the finest precision that fits; "
        "smallest, the least memory within plan.slower times the fastest; cheapest, devices times hours times plan.price",
    )
    worth: _Times = Field(
        default=WORTH,
        description="times as fast that a plan below mixed precision has to be, where something finer fits",
    )
    slower: _Times = Field(
        default=SLOWER,
        description="times the least time that the smallest plan may take, for plan.goal smallest",
    )
    price: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="of one hour of one device, in any currency, for plan.goal cheapest"
    )
    num_workers: Annotated[int, Field(ge=0)] = Field(default=0, description="processes that prepare batches")
    cut_padding: bool = Field(
        default=True,
        description="micro-batches as wide as their longest text, where outputs and losses are checked to be the same; false: never",
    )
    deterministic: bool = Field(
        default=False,
        description="operators whose results depend on their inputs alone, so that a run on a GPU can be made again bit for bit; slower",
    )


class BudgetSettings(_Section):
    """What the run may take of the machine, and how much precision may be given up for it."""

    memory: _Bytes | None = Field(default=None, description="of the device, such as 24GiB; null: what it has")
    host_memory: _Bytes | None = Field(
        default=None,
        description="of the host, of all its devices; null: what is free on this machine, else what is usual beside the device",
    )
    fidelity: Literal["full", "mixed", "compact", "adapters", "quantized"] | None = Field(
        default=None,
        description="the coarsest precision that the plan may choose; null: the recipe's own where plan.numerics names it, else mixed on a "
        "GPU with 16-bit units and full elsewhere",
    )


class CheckpointSettings(_Section):
    """When and how much is saved to resume from."""

    every: _Count | None = Field(default=None, description="a number of updates; null: at each evaluation")
    keep: Annotated[int, Field(ge=2)] = Field(default=2, description="checkpoints kept, at least 2")
    save: Literal["sync", "async"] = Field(
        default="sync",
        description="sync: training waits; async: it goes on, and a copy in host memory is written",
    )


with warnings.catch_warnings():
    # `register` is also a method of pydantic's metaclass, which a section never calls
    warnings.filterwarnings("ignore", message='Field name "register"')

    class Track(_Section):
        """Where the run is tracked besides its own folder."""

        mlflow: bool = Field(default=True, description="whether events go to MLflow")
        uri: str | None = Field(
            default=None, description="null: MLFLOW_TRACKING_URI, else a SQLite database beside the runs"
        )
        experiment: str = Field(default="snugfit", description="MLflow's experiment")
        register: str | None = Field(
            default=None, description="name under which the best model is registered"
        )


class Recipe(_Section):
    """What is learned from what, checked; made by `load_recipe` or `infer_recipe`.

    Every default is filled in and every path is absolute, so a copy of it means the same anywhere on the machine.
    """

    name: str = Field(description="of the run; the file's name by default")
    task: Task = Field(description="what the model is to do")
    model: str = Field(description="a Hugging Face name or folder; package.module:function for task python")
    from_scratch: bool = Field(default=False, description="the model's architecture with new weights")
    data: Data
    loss: str = Field(
        default="", description="a built-in loss or package.module:function; the default depends on the task"
    )
    train: Train = Train()
    preset: str = Field(
        default=DEFAULT_PRESET,
        description="what optimizer, schedule and techniques are where the recipe gives none",
    )
    optimizer: Technique = Field(description="one optimizer with its settings")
    schedule: Technique | None = Field(description="how the learning rate goes over the run; null: constant")
    techniques: Techniques = Field(description="what else to do, in this order")
    evaluate: Evaluate = Evaluate()
    early_stopping: EarlyStopping | None = Field(default=None, description="null: train to the end")
    non_finite: NonFinite = NonFinite()
    plan: PlanSettings = PlanSettings()
    budget: BudgetSettings = BudgetSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    track: Track = Track()
    output: str = Field(
        default="runs", description="folder of the runs, relative to where the command is given"
    )
    folder: Annotated[Path, Wanted("a folder")] = Field(
        strict=False,
        description="where files and Python modules are looked for; the recipe's own folder by default",
    )

    def all_techniques(self) -> tuple[Technique, ...]:
        """Everything that fills seams: optimizer, schedule, numerics, techniques."""
        precision = self.plan.numerics
        numerics = () if precision is None or isinstance(precision, str) else (precision,)
        schedule = () if self.schedule is None else (self.schedule,)
        return (self.optimizer, *schedule, *numerics, *self.techniques)

    @property
    def code(self) -> dict[str, str]:
        """Settings that name the user's code, each with its `package.module:function`."""
        from snugfit.recipe.code import code_of

        return code_of(self)

    def as_dict(self) -> dict[str, Any]:
        """All settings that this task uses, as plain values; secrets in them, such as a password in `track.uri`, are left out."""
        from snugfit.recipe.write import as_dict

        return as_dict(self)

    def to_yaml(self, defaults: bool = True) -> str:
        """The recipe as a file; loading that gives an equal recipe. Without `defaults`, only what differs from them."""
        from snugfit.recipe.write import to_yaml

        return to_yaml(self, defaults)

    def learned(self) -> dict[str, Any]:
        """The settings that decide the updates, as plain values."""
        from snugfit.recipe.write import learned_settings

        return learned_settings(self)

    def hash(self) -> str:
        """sha256 of what decides the updates: two runs of one hash differ by rounding only, given the same files."""
        from snugfit.recipe.write import recipe_hash

        return recipe_hash(self)


DEFAULT_LOSS: Mapping[Task, str] = {
    "text-classification": "cross_entropy",
    "causal-lm": "causal_lm",
    "instruction": "causal_lm",
    "python": "cross_entropy",
}
DEFAULT_METRICS: Mapping[Task, tuple[str, ...]] = {
    "text-classification": ("accuracy", "macro_f1"),
    "causal-lm": ("perplexity",),
    "instruction": ("perplexity",),
    "python": (),
}
UNUSED: Mapping[Task, tuple[tuple[str, str], ...]] = {
    "text-classification": (("data", "completion"), ("data", "collate")),
    "causal-lm": (("data", "label"), ("data", "completion"), ("data", "collate")),
    "instruction": (("data", "label"), ("data", "collate")),
    "python": tuple(("data", name) for name in ("text", "label", "completion", "max_length", "bad_rows")),
}
"""Settings that a task has no use for; giving one is an error."""
