"""The settings of a recipe: names, types, defaults and what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from snugfit.core.job import (
    Checkpoint,
    EarlyStopping,
    Evaluate,
    Execution,
    Hooks,
    NonFinite,
    StrategyName,
    Train,
)
from snugfit.core.settings import Bound, Count, Section, setting, wanted
from snugfit.planner.choice.goals import SLOWER, WORTH, GoalName
from snugfit.recipe.presets import DEFAULT as DEFAULT_PRESET
from snugfit.system.user_objects import PYTHON_PATH
from snugfit.tasks import discover, find
from snugfit.tasks.data_section import SIZE, Data
from snugfit.tasks.texts import text_classification

if TYPE_CHECKING:
    from snugfit.core.technique import Technique

    Techniques = tuple[Technique, ...]
    Task = str
else:
    # a declaration's type is looked at when a recipe is read, and techniques need torch
    Technique = Techniques = Any
    Task = Literal[tuple(discover())] | Annotated[str, Bound(pattern=PYTHON_PATH)]

RUNS = ("train", "resume", "cv", "tune")
"""Commands that train whole runs."""

PLANNED = ("train", "cv", "tune", "plan")
"""Commands that choose a plan: a run that goes on has one."""

COMMANDS = (*RUNS, "plan", "find lr", "find batch", "profile", "certify", "doctor")
"""Commands that read a recipe."""

REQUIRED = ("task", "model", "data.train")
"""Settings that a recipe has to give."""

_Times = Annotated[float, Bound(least=1)]


@dataclass(frozen=True)
class Preference(Section):
    """The settings of losses of preferences: dpo, ipo, orpo, kto."""

    key: ClassVar[str] = "preference"

    beta: Annotated[float, Bound(above=0)] = setting(
        "strength of the loss: what log-ratios to the reference are multiplied by (dpo, kto), tau of ipo, the odds ratio's part of orpo",
        0.1,
    )
    form: Literal["paper", "trl"] = setting(
        "paper: the loss as its paper has it; trl: as TRL computes it, ipo by token, orpo with the likelihood of prompt and answer",
        "paper",
    )
    desirable: Annotated[float, Bound(above=0)] = setting("weight of good answers in kto", 1.0)
    undesirable: Annotated[float, Bound(above=0)] = setting("weight of bad answers in kto", 1.0)


@dataclass(frozen=True)
class PlanSettings(Execution):
    """The fit of the run on the machine; changes memory and time, not what is learned."""

    numerics: Technique | str | None = setting(
        "precision of forward and backward, with its settings; fp32 has none; null: as planned, and without a plan "
        "mixed precision in the 16-bit type that the device has units for, else fp32",
        None,
        takes="a precision, with its settings, or null",
        example="bf16",
    )
    device: str = setting(
        "device to train on; auto: a GPU where there is one",
        "auto",
        takes="auto, cpu, mps, cuda or cuda:1",
        pattern=r"^(auto|cpu|mps|(cuda|xpu)(:\d+)?)$",
    )
    strategy: Literal["auto", StrategyName] = setting(
        "way in which several devices share an update: ddp copies the model to each, fsdp spreads it over them, fsdp-zero2 all but the weights, "
        "fsdp-hybrid over those of each node, fsdp-offload into host memory; auto: as planned, else ddp",
        "auto",
        commands=(*RUNS, "plan"),
    )
    timeout: str = setting(
        "time after which a process that waits for the others gives up",
        "30m",
        takes="a time, such as 30m",
        commands=RUNS,
    )
    goal: GoalName = setting(
        "aim of the plan: fastest, the least time of the whole run; finest, the finest precision that fits; "
        "smallest, the least memory within plan.slower times the fastest; cheapest, devices times hours times plan.price",
        "fastest",
        commands=PLANNED,
    )
    worth: _Times = setting(
        "times as fast that a plan below mixed precision has to be, where a finer one fits",
        WORTH,
        commands=PLANNED,
    )
    slower: _Times = setting(
        "times the least time that the smallest plan may take, for plan.goal smallest",
        SLOWER,
        commands=PLANNED,
    )
    price: Annotated[float, Bound(above=0)] | None = setting(
        "price of one device for one hour, in any currency, for plan.goal cheapest",
        None,
        example=2.5,
        commands=PLANNED,
    )


@dataclass(frozen=True)
class Budget(Section):
    """The limits of what the run may take of the machine, and of how much precision may be given up for it."""

    key: ClassVar[str] = "budget"

    memory: int | str | None = setting(
        "memory of the device that the run may take; null: what it has", None, takes=SIZE, example="24GiB"
    )
    host_memory: int | str | None = setting(
        "memory of the host that the run may take, for all its devices; null: what is free on this machine, else what is usual beside the device",
        None,
        takes=SIZE,
        example="64GiB",
    )
    fidelity: Literal["full", "mixed", "compact", "adapters", "quantized"] | None = setting(
        "coarsest precision that the plan may choose; null: the recipe's own where plan.numerics names it, else mixed on a "
        "GPU with 16-bit units and full elsewhere",
        None,
    )


@dataclass(frozen=True)
class Track(Section):
    """The places where the run is tracked besides its own folder."""

    key: ClassVar[str] = "track"

    mlflow: bool = setting("whether the events of the run go to MLflow", True)
    tensorboard: bool = setting(
        "whether the events of the run are written for TensorBoard too, into the run's folder", False
    )
    wandb: bool = setting(
        "whether the events of the run go to Weights & Biases too, online or, with WANDB_MODE=offline, into the run's folder",
        False,
    )
    trackio: bool = setting("whether the events of the run go to Trackio too, into its own database", False)
    others: tuple[str, ...] = setting(
        "further trackers, none by default: names that installed packages list, or package.module:Class of one's own",
        (),
        takes="a list of names or package.module:Class",
        example=("mine:Tracker",),
    )
    uri: str | None = setting(
        "address of MLflow's tracker; null: MLFLOW_TRACKING_URI, else a SQLite database beside the runs",
        None,
        example="http://127.0.0.1:5000",
    )
    experiment: str = setting(
        "experiment of MLflow that the run belongs to, and project of the other trackers", "snugfit"
    )
    answers: Count | None = setting(
        "number of prompts, always the same, whose answers the report shows at each evaluation as they change, scored beside those of the rows; of "
        "tasks that write texts",
        None,
        example=3,
    )
    pictures: Count | None = setting(
        "number of pictures to validate on, those that the model is most wrong about, that TensorBoard, Weights & Biases and Trackio show at each "
        "evaluation, for which the rows are predicted once more; of classes of pictures",
        None,
        example=16,
    )
    histograms: bool = setting(
        "whether TensorBoard, Weights & Biases and Trackio show how the values of each weight that trains are spread, at each evaluation",
        False,
    )
    register: str | None = setting(
        "name under which the best model is registered; null: it is not", None, example="news"
    )
    register_adapter: bool = setting(
        "whether the adapter alone is registered, to be merged into its base when it is loaded, in place of the merged model",
        False,
    )


@dataclass(frozen=True, kw_only=True)
class Recipe(Section):
    """A recipe, checked: what is learned from what; made by `load_recipe`.

    Every default is filled in and every path is absolute, so a copy of it means the same anywhere on the machine.
    """

    name: str = setting("name of the run; the file's name by default", example="news")
    task: Task = setting(
        "task that the model learns",
        example=text_classification.CARD.name,
        takes=f"{wanted(Literal[tuple(discover())])}, or package.module:CARD",
    )
    model: str = setting(
        "Hugging Face name or folder; package.module:function for task python; for tables tabm, mlp or a JSON file with a network's settings, for series tide, for masks unet, or such a file",
        example="gpt2",
    )
    from_scratch: bool = setting("whether the architecture of the model starts with new weights", False)
    data: Data = setting("", example={"train": "rows.csv"})
    loss: str = setting(
        "built-in loss or package.module:function; the default depends on the task: auto, of python, is the one that a model of transformers computes itself, else cross_entropy",
        "",
        example="cross_entropy",
    )
    loss_weights: Mapping[str, float] | None = setting(
        "factors of the terms that a loss of your own returns by name; 1 where none is given",
        None,
        example={"divergence": 0.1},
    )
    preference: Preference = setting("", Preference())
    train: Train = setting("", Train())
    preset: str = setting(
        "optimizer, schedule and techniques that stand where the recipe gives none",
        DEFAULT_PRESET,
    )
    optimizer: Technique = setting(
        "optimizer with its settings; the preset's by default",
        example={"adamw": {"learning_rate": 3e-5}},
        takes="an optimizer's name, with its settings",
    )
    schedule: Technique | None = setting(
        "learning rate over the run; the preset's by default, null: constant",
        example="cosine",
        takes="a schedule's name, with its settings, or null",
    )
    techniques: Techniques = setting(
        "further techniques, in any order; the preset's by default",
        example=[{"clip_norm": {"max_norm": 1.0}}],
        takes="a list of techniques, each with its settings",
    )
    evaluate: Evaluate = setting("", Evaluate(), commands=(*RUNS, "plan", "profile", "certify", "doctor"))
    early_stopping: EarlyStopping | None = setting(
        "rule that ends the run early; null: none", None, example={"patience": 3}, commands=(*RUNS, "doctor")
    )
    non_finite: NonFinite = setting("", NonFinite(), commands=RUNS)
    plan: PlanSettings = setting("", PlanSettings())
    budget: Budget = setting("", Budget(), commands=PLANNED)
    checkpoint: Checkpoint = setting("", Checkpoint(), commands=(*RUNS, "plan", "profile", "certify"))
    hooks: Hooks = setting("", Hooks(), commands=RUNS)
    track: Track = setting("", Track(), commands=RUNS)
    output: str = setting(
        "folder of the runs, relative to where the command is given",
        "runs",
        commands=(*RUNS, "find lr", "find batch", "profile", "certify", "doctor"),
    )
    folder: Path = setting(
        "folder of the files and Python modules that the recipe names; the recipe's own by default",
        takes="a folder",
        example=".",
    )

    def all_techniques(self) -> tuple[Technique, ...]:
        """Everything that fills seams: optimizer, schedule, numerics, techniques."""
        precision = self.plan.numerics
        numerics = () if precision is None or isinstance(precision, str) else (precision,)
        schedule = () if self.schedule is None else (self.schedule,)
        return (self.optimizer, *schedule, *numerics, *self.techniques)

    def without_validation(self) -> Recipe:
        """Return the recipe without `data.validation`, so that all its rows are there to train on."""
        return replace(self, data=replace(self.data, validation=None))

    @property
    def code(self) -> dict[str, str]:
        """Settings that name the user's code, each with its `package.module:function`."""
        from snugfit.recipe.write import code_of

        return code_of(self)

    def as_dict(self) -> dict[str, Any]:
        """Return all settings that this task uses, as plain values; secrets in them, such as a password in `track.uri`, are left out."""
        from snugfit.recipe.write import as_dict

        return as_dict(self)

    def to_yaml(self, defaults: bool = True) -> str:
        """Return the recipe as a file; loading that gives an equal recipe. Without `defaults`, only what differs from them."""
        from snugfit.recipe.write import to_yaml

        return to_yaml(self, defaults)

    def learned(self) -> dict[str, Any]:
        """Return the settings that decide the updates, as plain values."""
        from snugfit.recipe.write import learned_settings

        return learned_settings(self)

    def hash(self) -> str:
        """sha256 of what decides the updates: two runs of one hash differ by rounding only, given the same files."""
        from snugfit.recipe.write import recipe_hash

        return recipe_hash(self)


def unused(task: str) -> tuple[tuple[str, str], ...]:
    """Return the settings that a task has no use for; giving one is an error."""
    card = find(task)
    sections = [] if card.section == Preference.key else [Preference]
    used = card.data_settings
    return (
        *((Data.key, name) for name in Data.settings() if name not in used),
        *((section.key, name) for section in sections for name in section.settings()),
    )
