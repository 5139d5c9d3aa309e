"""The training (`Job`) and its fit on a machine (`Plan`): plain values, made by the recipe or by Python code.

The sections of a job are those of a recipe: each setting is declared here, and nowhere else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, get_args

from snugfit.core.progress import LENGTH, is_length, number_of_updates
from snugfit.core.settings import Bound, Count, Section, setting
from snugfit.core.windows import Cuts, Sizes, Sums, grown_over
from snugfit.errors import SettingError, nearest
from snugfit.system.user_objects import PYTHON_PATH, check_takes_one

AUTO: Literal["auto"] = "auto"
MicroBatch = Literal["auto"] | Count | None
"""Examples of one forward and backward: a number, the most that fit, or None: the whole window."""

StrategyName = Literal["ddp", "fsdp-zero2", "fsdp-hybrid", "fsdp", "fsdp-offload"]
STRATEGY_NAMES: tuple[StrategyName, ...] = get_args(StrategyName)
"""How devices share each update, simple ways first: the model copied to each; only gradients and optimizer states spread over them (ZeRO
stage 2); all spread within each node, with a copy on each node; all spread over all of them (stage 3); and that in host memory."""

StopWhen = Callable[[list[dict[str, Any]]], str | None]
"""From all evaluations so far to the reason to stop, or None to go on; asked again after a resume.

An evaluation has `update`, `epoch`, `metrics` by name, the name of the `weights` that were scored, and whether it was `best`.
"""


KeepWhen = Callable[[list[dict[str, Any]]], bool]
"""From the same evaluations to whether the model of the last one is kept."""


_BATCH_WARMUP = 0.1
_WARMUP_TAKES = f"{LENGTH}, above 0"
_OF_SIZES = ("batch_tokens", "start_batch", "batch_warmup", "batch_by_epoch")


@dataclass(frozen=True)
class Train(Section):
    """The length of a training and the size of its updates."""

    key: ClassVar[str] = "train"

    epochs: Annotated[float, Bound(above=0)] | None = setting("passes over the training data", 3.0)
    updates: Count | None = setting("optimizer steps of the run, in place of epochs", None, example=1000)
    global_batch: Count | None = setting("examples of one update, over all micro-batches and devices", 32)
    batch_tokens: Count | None = setting(
        "tokens of one update, at most, in place of global_batch; an update has the next examples that together are no more",
        None,
        example=32768,
    )
    start_batch: Count | None = setting(
        "size of the first update, in examples or in tokens: updates grow from it, in steps of it, to global_batch or batch_tokens",
        None,
        example=8,
    )
    batch_warmup: Annotated[float, Bound(above=0)] = setting(
        "updates over which they grow from start_batch", _BATCH_WARMUP, takes=_WARMUP_TAKES, example=50
    )
    batch_by_epoch: tuple[Count, ...] = setting(
        "sizes of the updates of the first epochs, one for each epoch, in examples or in tokens; none by default",
        (),
        takes="a list of positive whole numbers",
        example=(8, 16),
    )
    seed: Annotated[int, Bound(least=0)] = setting(
        "seed of the split, the order of examples, new weights and dropout", 0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.epochs is None) == (self.updates is None):
            both_or_neither = "neither" if self.epochs is None else "both"
            raise SettingError(
                "train",
                f"one of epochs and updates says how long the run is, found {both_or_neither}",
                "Give one of the two.",
            )
        if (self.global_batch is None) == (self.batch_tokens is None):
            both_or_neither = "neither" if self.global_batch is None else "both"
            raise SettingError(
                "train",
                f"one of global_batch and batch_tokens says how large an update is, found {both_or_neither}",
                "Give one of the two.",
            )
        self._check_growth()

    def _check_growth(self) -> None:
        """Refuse windows that cannot grow as the settings say.

        Raises:
            SettingError: names the setting.
        """
        if not is_length(self.batch_warmup):
            raise SettingError.must_be("train.batch_warmup", _WARMUP_TAKES, f"{self.batch_warmup:g}")
        if self.start_batch is None and self.batch_warmup != _BATCH_WARMUP:
            raise SettingError(
                "train.start_batch", "is missing beside batch_warmup", "Give the size of the first update."
            )
        if self.start_batch is not None and self.start_batch >= self.sizes.last:
            raise SettingError(
                "train.start_batch",
                f"must be below train.{self.unit_setting}, which is {self.sizes.last}, found {self.start_batch}",
                "Lower it, or leave it and batch_warmup out.",
            )
        if self.start_batch is not None and self.batch_by_epoch:
            raise SettingError(
                "train.batch_by_epoch", "cannot be given beside start_batch", "Remove one of the two."
            )

    @property
    def unit_setting(self) -> str:
        """The setting that says how large an update is in the end."""
        return "global_batch" if self.batch_tokens is None else "batch_tokens"

    @property
    def unit(self) -> str:
        """The unit of the sizes of updates."""
        return "examples" if self.batch_tokens is None else "tokens"

    @property
    def sizes(self) -> Sizes:
        """The sizes of updates, with no growth where its length is not known yet."""
        last = self.global_batch or self.batch_tokens
        assert last is not None
        return Sizes(last, self.start_batch, by_epoch=self.batch_by_epoch)

    @property
    def sizes_given(self) -> dict[str, Any]:
        """The settings of windows that are not of one size in examples, by name; empty where they are."""
        given = {name: getattr(self, name) for name in _OF_SIZES}
        return {name: value for name, value in given.items() if value != self.settings()[name].default}

    @property
    def sizes_removed(self) -> dict[str, Any]:
        """The defaults of those settings, by name, with which windows are of one size in examples."""
        return {name: self.settings()[name].default for name in self.sizes_given}

    @property
    def sizes_unset(self) -> list[str]:
        """The names of the other such settings."""
        return [name for name in _OF_SIZES if name not in self.sizes_given]

    @property
    def most_examples(self) -> int | None:
        """The examples of the largest update; None where the tokens of the data decide."""
        return None if self.global_batch is None else max((self.global_batch, *self.batch_by_epoch))

    def examples_of(self, tokens: int) -> int:
        """Return the examples of the largest update, where each has so many tokens."""
        return self.most_examples or max(1, self.sizes.last // tokens)

    @property
    def grown(self) -> Train:
        """Return the same with updates of the last size from the first one on."""
        return replace(self, start_batch=None, batch_warmup=_BATCH_WARMUP, batch_by_epoch=())


@dataclass(frozen=True)
class Evaluate(Section):
    """The time and the way of scoring the weights."""

    key: ClassVar[str] = "evaluate"

    every: Literal["epoch"] | Count = setting(
        "time from one evaluation to the next: an epoch, or a number of updates",
        "epoch",
        takes="epoch or a positive number of updates",
        keyword="evaluate_every",
    )
    metrics: tuple[str, ...] = setting(
        "metrics beside the loss; the default depends on the task",
        (),
        takes="a name or a list of names, of built-in ones or package.module:function",
        example=("accuracy", "macro_f1"),
    )
    best: str = setting(
        "metric that decides which weights are kept, with min: or max: before one of your own; the first of evaluate.metrics by default",
        "",
        example="accuracy",
    )
    keep_models: Count = setting(
        "number of models kept, those of the best evaluations: the best in best/, where there are several each in models/",
        1,
        example=3,
    )
    keep_when: KeepWhen | str | None = setting(
        "function from all evaluations so far to whether the model of the last one is kept in models/ too",
        None,
        takes="package.module:function or null",
        example="mine:worth_keeping",
        pattern=f"^{PYTHON_PATH}$",
    )
    batch: Count | None = setting(
        "examples of one evaluation batch; train.global_batch by default",
        None,
        example=64,
        keyword="evaluate_batch",
    )

    @property
    def best_metric(self) -> str:
        """The metric that decides which weights are kept, with `min:` or `max:` before one that Snugfit does not know."""
        return self.best or next(iter(self.metrics), "loss")

    def period(self, windows_per_epoch: int) -> int:
        """Return the number of updates from one evaluation to the next, where epochs have so many."""
        return windows_per_epoch if self.every == "epoch" else self.every


@dataclass(frozen=True)
class EarlyStopping(Section):
    """The conditions for a stop before the end."""

    key: ClassVar[str] = "early_stopping"

    patience: Count | None = setting(
        "evaluations without an improvement of evaluate.best after which the run ends", None, example=3
    )
    min_delta: Annotated[float, Bound(least=0)] = setting(
        "difference from the best value so far that an improvement has to exceed", 0.0
    )
    stop_when: StopWhen | str | None = setting(
        "function from all evaluations so far to the reason to stop, or to None",
        None,
        takes="package.module:function or null",
        example="mine:stop",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patience is None and (self.stop_when is None or self.min_delta > 0):
            why = "min_delta says what it counts" if self.min_delta > 0 else "or give stop_when"
            raise SettingError(
                "early_stopping.patience", "is missing", f"Give it a positive whole number; {why}."
            )


@dataclass(frozen=True)
class NonFinite(Section):
    """The policy for a window whose loss or gradient is not finite."""

    key: ClassVar[str] = "non_finite"

    policy: Literal["stop", "skip", "roll_back"] = setting(
        "stop: end the run; skip: pass over the window; roll_back: go back to the newest checkpoint, and pass over it",
        "skip",
        keyword="non_finite",
    )
    limit: Count = setting(
        "windows in a row without an update that end the run", 10, keyword="non_finite_limit"
    )


@dataclass(frozen=True)
class Checkpoint(Section):
    """The time and the extent of what is saved to resume from."""

    key: ClassVar[str] = "checkpoint"

    every: Count | None = setting(
        "updates from one checkpoint to the next; null: one at each evaluation",
        None,
        example=500,
        keyword="checkpoint_every",
    )
    # one of two may be torn
    keep: Annotated[int, Bound(least=2)] = setting(
        "number of checkpoints kept, at least 2", 2, keyword="checkpoint_keep"
    )
    save: Literal["sync", "async"] = setting(
        "sync: training waits; async: training goes on while a copy in host memory is written",
        "sync",
        keyword="checkpoint_save",
    )


Hook = Callable[[Any], Mapping[str, float] | str | None]
"""From what happened to numbers that are logged, to the reason to stop as text, or to None."""

_SEEN = {
    "on_update": "the result of the update",
    "on_evaluation": "the metrics",
    "on_checkpoint": "the path of the checkpoint",
    "on_end": "the result of the run",
}
"""What hooks are called with, in words."""

_HOOK: Any = {"takes": "package.module:function or null", "pattern": f"^{PYTHON_PATH}$"}


@dataclass(frozen=True)
class Hooks(Section):
    """Functions that see what the run does; they may return numbers to log, or a text, for which the run stops."""

    key: ClassVar[str] = "hooks"

    on_update: Hook | str | None = setting(
        "function of the result of each update that was applied: its loss, learning_rate and metrics",
        None,
        example="mine:watch",
        **_HOOK,
    )
    on_evaluation: Hook | str | None = setting(
        "function of the metrics of each evaluation, by name", None, example="mine:watch", **_HOOK
    )
    on_checkpoint: Hook | str | None = setting(
        "function of the path of each checkpoint, once it is written", None, example="mine:copy", **_HOOK
    )
    on_end: Hook | str | None = setting(
        "function of the result of the run, once it has finished or stopped",
        None,
        example="mine:tell",
        **_HOOK,
    )


@dataclass(frozen=True)
class Job:
    """The logical side of a run; two plans of one job give the same updates."""

    train: Train = Train()
    evaluate: Evaluate = Evaluate()
    early_stopping: EarlyStopping | None = None
    non_finite: NonFinite = NonFinite()
    checkpoint: Checkpoint = Checkpoint()
    hooks: Hooks = Hooks()
    shuffle: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.evaluate.keep_when, str):
            raise SettingError(
                "evaluate.keep_when",
                f"must be a function from the evaluations to True or False, found '{self.evaluate.keep_when}'",
                "Give a function of that kind.",
            )
        function = None if self.early_stopping is None else self.early_stopping.stop_when
        if isinstance(function, str):
            raise SettingError(
                "early_stopping.stop_when",
                f"must be a function from the evaluations to a reason or None, found '{function}'",
                "Give a function of that kind.",
            )
        for name in Hooks.settings():
            hook = getattr(self.hooks, name)
            if isinstance(hook, str):
                raise SettingError(
                    f"hooks.{name}", f"must be a function, found '{hook}'", "Give the function itself."
                )
            check_takes_one(hook, f"hooks.{name}", _SEEN[name])
        check_takes_one(self.evaluate.keep_when, "evaluate.keep_when", "the evaluations so far")
        check_takes_one(function, "early_stopping.stop_when", "the evaluations so far")

    @classmethod
    def of(cls, *, shuffle: bool = True, **given: Any) -> Job:
        """Return a job from settings by their keywords, which are those of `sf.train`.

        `updates` wins over `epochs`, and `batch_tokens` over `global_batch`.

        >>> Job.of(updates=5, evaluate_every=2).evaluate.every
        2

        Raises:
            SettingError: there is no setting of a keyword, or one is impossible.
        """
        known = keywords()
        for keyword in given.keys() - known:
            raise SettingError(keyword, "there is no such setting", nearest(keyword, known))
        if given.get("updates") is not None:
            given = {**given, "epochs": None}
        if given.get("batch_tokens") is not None:
            given = {**given, "global_batch": None}
        values: dict[type[Section], dict[str, Any]] = {section: {} for section in SECTIONS}
        for keyword, value in given.items():
            section, name = known[keyword]
            values[section][name] = tuple(value) if isinstance(value, list) else value
        none = {each.name: each.default for each in EarlyStopping.settings().values()}
        if {**none, **values[EarlyStopping]} == none:
            del values[EarlyStopping]
        made: dict[str, Any] = {section.key: section(**each) for section, each in values.items()}
        return cls(shuffle=shuffle, **made)

    def for_updates(self, updates: int) -> Job:
        """Return the job with that many updates in place of its own length."""
        return replace(self, train=replace(self.train, epochs=None, updates=updates))

    @property
    def evaluation_batch(self) -> int:
        """The examples of one evaluation batch."""
        default: int = Train.settings()["global_batch"].default
        return self.evaluate.batch or self.train.global_batch or default

    def grown(self) -> Job:
        """Return the job with windows of the last size from the first one on."""
        return replace(self, train=self.train.grown)

    def cuts(self, examples: int, sums: Sums | None = None) -> Cuts:
        """Return where the epochs of a run over `examples` rows are cut into windows.

        Args:
            sums: of the tokens of each epoch; needed where windows are in tokens, and there only.
        """
        train, sizes = self.train, self.train.sizes
        assert (sums is None) == (train.batch_tokens is None), (
            "windows in tokens are cut by the tokens of examples"
        )
        if sizes.start is not None:
            if train.epochs is not None and train.batch_warmup < 1:
                sizes = grown_over(train.batch_warmup, train.epochs, examples, sizes, sums)
            else:
                sizes = replace(sizes, warmup=number_of_updates(train.batch_warmup, train.updates or 0))
        return Cuts(examples, sizes, sums)

    def total_windows(self, examples: int, sums: Sums | None = None) -> int:
        """Return windows of the whole run over `examples` rows; the last window of an epoch may be partial.

        Args:
            sums: as for `cuts`.

        >>> Job(Train(global_batch=4, epochs=2)).total_windows(examples=9)
        6
        """
        return self.train.updates or self.windows_of(self.cuts(examples, sums))

    def windows_of(self, cuts: Cuts) -> int:
        """Return windows of the whole run, of which `cuts` says where its epochs are cut."""
        if self.train.updates is not None:
            return self.train.updates
        assert self.train.epochs is not None
        return cuts.within(self.train.epochs)


SECTIONS: tuple[type[Section], ...] = (Train, Evaluate, EarlyStopping, NonFinite, Checkpoint, Hooks)


@functools.cache
def keywords() -> Mapping[str, tuple[type[Section], str]]:
    """Return the section and the name of a job's settings by their keywords in Python."""
    return {
        each.declaration.keyword or each.name: (section, each.name)
        for section in SECTIONS
        for each in section.settings().values()
    }


@dataclass(frozen=True)
class Execution(Section):
    """The computation of updates, whoever says it: a recipe, which may leave the rest open, or a `Plan`."""

    key: ClassVar[str] = "plan"

    micro_batch: MicroBatch = setting(
        "examples of one forward and backward; auto: as many as fit; null: the whole window",
        None,
        takes="a positive whole number, auto or null",
        example=8,
    )
    devices: Count = setting("devices of this machine that share each update, a process for each", 1)
    # a bound well above any node's cores: a slip of a million would start processes until the machine has no memory left
    num_workers: Annotated[int, Bound(least=0, below=257)] = setting("processes that prepare batches", 0)
    cut_padding: bool = setting(
        "micro-batches as wide as their longest text, where outputs and losses are checked to be equal; false: never",
        True,
    )
    deterministic: bool = setting(
        "operators whose results depend on their inputs alone, so that a run on a GPU can be repeated bit for bit; slower",
        False,
    )


@dataclass(frozen=True)
class Plan(Execution):
    """The physical side of a run: changes memory and time, not the updates. Numerics are named and fixed.

    `devices` share each update by `strategy`, one of `STRATEGY_NAMES`, or "single" where there is one.
    """

    numerics: str = setting("names of the techniques that compute in fewer bits", "fp32")
    device: str = setting("where the model is, such as cuda:1", "cpu")
    strategy: str = setting("how devices share each update", "single")
