"""Train from Python: any module, any data set."""

from __future__ import annotations

import hashlib
import re
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Unpack

import torch
from torch import nn

from snugfit.core.batch import Batch
from snugfit.core.entry import as_entry, without_unset
from snugfit.core.job import Job, Plan
from snugfit.core.loss_terms import Loss
from snugfit.core.selection import check, listed, picture_technique
from snugfit.core.technique import Family, Technique
from snugfit.data.frames import without_frame
from snugfit.data.order import training_order
from snugfit.data.splits.hold_out import SHARES, hold_out_of
from snugfit.data.stream import as_stream, counted, examples_of
from snugfit.errors import SettingError
from snugfit.kit.losses.default_loss import default_loss, loss_message
from snugfit.models.bundle import OWN_FUNCTIONS
from snugfit.planner.answers.answer import Answer
from snugfit.planner.choice.goals import SLOWER, WORTH
from snugfit.results.run_folder import RunFolder, check_name
from snugfit.run.call_options import RunOptions
from snugfit.run.description import python_inputs
from snugfit.run.events import displayed
from snugfit.run.identity.identity import WINDOW
from snugfit.run.newest import LAST, newest_resumable
from snugfit.run.observers.sample_answers import require_whole_model
from snugfit.run.observers.weight_histograms import weight_histograms
from snugfit.run.run import execute
from snugfit.run.spec import RunSpec, TimeLimit
from snugfit.run.trackers import Tracking
from snugfit.run.train_settings import (
    DEFAULTS,
    OF_JOB,
    OF_PLAN,
    TrainSettings,
    by_keywords,
    takes_settings,
    with_defaults,
)
from snugfit.run.training.assemble import check_settings
from snugfit.run.training.result import RunResult
from snugfit.run.training.stop_requests import StopRequest
from snugfit.step.build import Material, check_dataset, find_device
from snugfit.step.model_checks.outside_weights import check_outside
from snugfit.step.step import Forward
from snugfit.step.step_arguments import check_has_numbers, check_module
from snugfit.strategies.process_group import device_of
from snugfit.strategies.registry import known_strategy, named_strategy
from snugfit.system.plugins import Importer
from snugfit.system.processes import this_world
from snugfit.tasks import python
from snugfit.tasks.task import Task
from snugfit.techniques import find
from snugfit.tracking.cursor import stored_uri
from snugfit.tracking.named import trackers
from snugfit.tracking.uri import check_uri, resolve_uri
from snugfit.units import parse_bytes, parse_seconds


@takes_settings
def train(model: nn.Module, data: Any, **settings: Unpack[TrainSettings]) -> RunResult:
    """Train any `nn.Module` on a data set or a stream; the model is trained in place.

    On return `model` has the last weights, and the adapters of a technique that puts some into it; the best weights,
    averaged or merged where a technique does that, are in `best/`.

    Args:
        data: `len()` and `[index]`, of tuples (inputs, labels) or mappings with `labels`; a data frame of pandas, whose rows are such mappings;
            or a stream of such, which has neither: an iterable, a function that returns one, or an `sf.Stream` of them. Then `updates` says
            the length of the run.
        validation: another data set, or the fraction of `data` to hold out; of rows that are mappings also `{"share": 0.1, "group": NAME}` or
            `{"share": 0.1, "time": NAME}`; of a stream the number of its first rows.
        loss: as `Step` takes it; None takes the one that a model of transformers computes itself, and cross_entropy for any other.
        metrics: names of built-in metrics, or names with `(outputs, batch) -> one value a row`, or with what
            `sf.over_all_rows` has marked.
        optimizer: a torch optimizer or a technique; AdamW at its defaults if neither it nor a preset is given.
        preset: optimizer, schedule and techniques that go together, such as "fine_tune"; what is given besides wins.
        epochs, updates: the length of the run; `updates` wins.
        global_batch, batch_tokens: examples of one update, over all micro-batches and devices; or its tokens, at most: `batch_tokens` wins.
            The tokens of an example are those of its `input_ids`, or what `data.lengths` says.
        start_batch, batch_warmup: size of the first update, and the updates (below 1: the part of the run) over which they grow to
            `global_batch`, in steps of `start_batch`.
        batch_by_epoch: sizes of the updates of the first epochs, one for each.
        time: such as "3h": the run is cut to the updates that fit into it, by a rehearsal that measures them, evaluations and checkpoints; its
            schedule is for those. When the time is over the run saves and stops; `resume` with the same keywords does what is left.
        micro_batch: examples of one forward and backward; None takes the window whole, "auto" as much of it as fits.
        best: the metric that picks the best weights; the first metric if not given, else the loss.
        keep_models: number of models kept, of the best evaluations: the best in `best/`, where there are several each in `models/`.
        keep_when: `(evaluations so far) -> bool`, whether the model of the last one is kept in `models/` too.
        patience: evaluations that may pass without an improvement of more than `min_delta`.
        stop_when: `(evaluations so far) -> the reason to stop, or None`; each evaluation has `update`, `epoch`, `metrics`,
            `weights` and `best`.
        on_update, on_evaluation, on_checkpoint, on_end: functions that see each update's result, each evaluation's metrics, each
            checkpoint's path and the run's result. They may return numbers by name, which are logged, or a text, for which the run stops.
        non_finite: what to do with a window whose loss or gradient is not finite: skip it, stop, or roll_back to the newest
            checkpoint and pass over it; `non_finite_limit` such windows in a row end the run.
        checkpoint_keep: checkpoints that are kept, at least 2.
        checkpoint_save: "async" writes each from a copy in host memory while the training goes on; "sync" lets it wait.
        strategy: how processes that were started by torchrun or srun share each update: "ddp" copies the model to each device, which
            "auto" stands for, "fsdp" spreads it over them, and so do "fsdp-zero2", "fsdp-hybrid" and "fsdp-offload" in other ways. All
            call this function alike, and get the same result.
        cut_padding: whether micro-batches may be as wide as their longest text, where the model computes the same without padding.
        deterministic: whether to take operators whose results depend on their inputs alone; an operator that has no such form is an error.
        resume: the folder of a run of the same model, data, code and settings, to go on from its newest checkpoint; a run that was killed
            before its first one starts again there. "last" takes the newest run of this `output` and `name` that can go on.
        accept_changes: what may differ from the run that is resumed, by the names that its refusal says, such as "data" or "loss".
        display: "auto" shows the run in the terminal, in a log as plain lines, or in a notebook's output; a function sees each event;
            None shows nothing.
        output: the folder in which the run's own is made. None writes nothing anywhere: no checkpoints, no tracker, no report; the best
            weights are kept in host memory, and the result has them.
        track: send the run to MLflow, by default in a database beside the runs; or names of trackers, such as "tensorboard" or
            ["mlflow", "wandb"], or the `package.module:Class` of one's own. `track_histograms` has TensorBoard and Weights & Biases show at
            each evaluation how the values of each weight that trains are spread.

    Returns:
        How the run ended; `run_dir` has the events, the checkpoints, `best/` and the report. `.model` is the best model, `.predict(rows)`
        uses it, `.history` has the numbers of all updates.
    Raises:
        UserError: a setting, the data or the folder cannot be used.
        TrainingFailed: the run failed on its own account.
    """
    given = with_defaults(settings)
    folder = _resumed(given)
    with displayed(given["display"]) as display, by_keywords():
        spec = module_spec(model, data, given, folder)
        return execute(replace(spec, display=display, tracking=_tracking(given, folder)))


_MLFLOW = "mlflow"


def _resumed(given: Mapping[str, Any]) -> RunFolder | None:
    """Return the folder of the run that goes on, if one is to.

    Raises:
        RunFolderError: there is none.
    """
    if given["resume"] is None or given["output"] is None:
        return None
    if given["resume"] == LAST:
        return newest_resumable(Path(given["output"]), given["name"])
    return RunFolder.open(Path(given["resume"]))


@by_keywords()
def module_spec(
    model: nn.Module, data: Any, given: Mapping[str, Any], folder: RunFolder | None = None
) -> RunSpec:
    """Return the run that keywords of `train` ask for, all of which are `given`.

    Args:
        folder: of the run that goes on; None for a new one.
    Raises:
        UserError: a setting or the data cannot be used.
    """
    check_name(given["name"])
    if given["output"] is None:
        _check_unwritten(given)
    if given["accept_changes"] and given["resume"] is None:
        raise SettingError(
            "accept_changes", "got names, and no run to resume", "Give resume, the run's folder."
        )
    metrics = _metrics(given)
    optimizer, validation, every = given["optimizer"], given["validation"], given["evaluate_every"]
    job = Job.of(
        **{name: given[name] for name in OF_JOB},
        metrics=tuple(metrics),
        best=given["best"] or "",
        evaluate_every="epoch" if every is None else every,
    )
    techniques = _techniques(optimizer, given["techniques"], given["preset"])
    _check_pictures(techniques)
    plan = _plan(given, techniques)
    check_settings(job, plan, techniques, metrics, validated=validation is not None)
    task, sources = _task(model, data, given, job, _numerics(techniques))
    if given["track_histograms"]:
        require_whole_model("track_histograms", techniques, plan.strategy)
    identity = _identity(job, task.material.train, optimizer, techniques)
    accepted = given["accept_changes"]
    seconds = None if given["time"] is None else parse_seconds(given["time"], "time")
    ends = RunOptions(given["stop_after_seconds"], seconds, started=time.monotonic())
    limit = None if seconds is None else TimeLimit(seconds, ends.started)

    def of_updates(updates: int) -> dict[str, Any]:
        shorter = job.for_updates(updates)
        return {"job": shorter, "identity": _identity(shorter, task.material.train, optimizer, techniques)}

    return RunSpec(
        name=given["name"],
        job=job,
        plan=plan,
        techniques=techniques,
        load=lambda _: task,
        metrics=metrics,
        optimizer=optimizer if isinstance(optimizer, torch.optim.Optimizer) else None,
        identity=identity,
        same={**identity, "micro_batch": plan.micro_batch, "strategy": plan.strategy},
        recipe={
            "evaluate": {"best": job.evaluate.best_metric},
            "techniques": [as_entry(each) for each in techniques],
        },
        inputs=lambda _task, training: python_inputs(training, sources),
        output=None if given["output"] is None else Path(given["output"]),
        folder=folder,
        resume=folder is not None,
        accept_changes=(accepted,) if isinstance(accepted, str) else tuple(accepted),
        time=limit,
        of_updates=of_updates,
        stop=StopRequest(ends.ends_after_seconds, ends.started),
    )


def _metrics(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metrics by name.

    Raises:
        SettingError: there is nothing to measure them on.
    """
    metrics = (given["metrics"],) if isinstance(given["metrics"], str) else given["metrics"]
    by_name: Mapping[str, Any] = metrics if isinstance(metrics, Mapping) else {each: each for each in metrics}
    if given["validation"] is None and by_name:
        raise SettingError("metrics", f"{', '.join(by_name)} need data to be measured on", "Give validation.")
    return by_name


def _check_pictures(techniques: Sequence[Technique]) -> None:
    """Refuse a technique that changes pictures as they are read.

    Raises:
        SettingError: names it.
    """
    changing = picture_technique(techniques)
    if changing is not None:
        raise SettingError(
            "techniques",
            f"'{changing.card.name}' changes pictures as the task of a recipe reads them, and this data set reads its own",
            "Call what its picture() returns on each picture in the data set; what is drawn there is seeded by example.",
        )


def _numerics(techniques: Sequence[Technique]) -> list[Technique]:
    return [each for each in techniques if each.card.family is Family.NUMERICS]


def _plan(given: Mapping[str, Any], techniques: Sequence[Technique]) -> Plan:
    """Return how the run computes, on this process's device.

    Raises:
        SettingError: the device or the strategy is none, or not here.
    """
    world = this_world()
    plan = Plan(
        **{name: given[name] for name in OF_PLAN},
        numerics=" ".join(each.card.name for each in _numerics(techniques)) or "fp32",
        device=device_of(find_device(given["device"]), world),
        strategy=named_strategy(given["strategy"], world.size),
        devices=world.size,
    )
    if given["strategy"] not in ("auto", plan.strategy):
        known_strategy(given["strategy"])  # which one device has no use for
    return plan


def _task(
    model: nn.Module, data: Any, given: Mapping[str, Any], job: Job, numerics: Sequence[Technique]
) -> tuple[Task, dict[str, tuple[str, Any]]]:
    """Return the model and the data as a task has them, and the data sets as they were given, for what a run says of its inputs.

    Raises:
        UserError: the model, the loss or the data cannot be used.
    """
    data, validation = _streams(without_frame(data), without_frame(given["validation"]), job)
    check_dataset("data", data)
    check_module(model)
    check_has_numbers(model)
    loss = default_loss(model) if given["loss"] is None else given["loss"]
    check_outside(model, loss, given["forward"])
    if isinstance(validation, Mapping):
        validation = hold_out_of(validation)
    own = data if isinstance(validation, SHARES) else validation
    sources = {"train": (type(data).__name__, data), "validation": (type(own).__name__, own)}
    messages: tuple[str, ...] = ()
    if isinstance(validation, SHARES):
        data, validation, messages = python.hold_out_objects(data, validation, given["seed"], "the data set")
    elif validation is not None:
        check_dataset("validation", validation)
    about_loss = loss_message(given["loss"], model)
    task = Task(
        Material(model, data, validation, loss, given["collate"], given["forward"]),
        meta={
            "task": python.CARD.name,
            "model": None,
            "loss": loss if isinstance(loss, str) else None,
            "numerics": next(map(as_entry, numerics), "fp32"),
            OWN_FUNCTIONS: [name for name in ("collate", "forward") if given[name] is not None],
        },
        data=counted(data, validation),
        fingerprints={},
        messages=(*messages, *([about_loss] if about_loss else [])),
        observers=(weight_histograms,) if given["track_histograms"] else (),
    )
    return task, sources


def _streams(data: Any, validation: Any, job: Job) -> tuple[Any, Any]:
    """Return the examples of a run over a stream, and the first rows of it where so many are held out; other data as they are.

    Raises:
        DataError, SettingError: the stream cannot be trained on.
    """
    stream = as_stream(data)
    if stream is None:
        return data, validation
    whole = isinstance(validation, int) and not isinstance(validation, bool)
    if isinstance(validation, float) or (whole and validation < 1):
        raise SettingError(
            "validation",
            f"got {validation:g}, and data ({stream.name}) is a stream: without a length, it has no such part",
            "Give the number of its first rows to hold out, another data set, or None.",
        )
    examples = examples_of(
        stream,
        updates=job.train.updates,
        window=job.train.most_examples,
        seed=job.train.seed,
        skip=validation if whole else 0,
    )
    return examples, examples.held_out() if whole else validation


_WRITTEN = ("resume", "track_uri", "checkpoint_every", "on_checkpoint")
"""Keywords that are about what a run writes."""


def _check_unwritten(given: Mapping[str, Any]) -> None:
    """Refuse what needs a folder where a run is to have none.

    Raises:
        SettingError: it is given.
    """
    asked = [name for name in _WRITTEN if given[name] is not None]
    asked += ["non_finite"] if given["non_finite"] == "roll_back" else []
    asked += ["track_histograms"] if given["track_histograms"] else []
    if asked:
        raise SettingError(
            asked[0],
            "needs the folder of a run, and output=None writes nothing",
            f"Leave it out, or give output, such as {DEFAULTS['output']!r}.",
        )


def _techniques(
    optimizer: torch.optim.Optimizer | Technique | None,
    techniques: Sequence[Technique],
    preset: str | None = None,
) -> list[Technique]:
    """Return the techniques that were given and those of the preset, with AdamW at its defaults first where nobody gives an optimizer.

    Raises:
        PlanConflict: they exclude each other.
        SettingError: something else is among them, or there is no such preset.
    """
    given = listed(optimizer, techniques)
    if preset is not None:
        if isinstance(optimizer, torch.optim.Optimizer):
            raise SettingError(
                "preset",
                "brings an optimizer, and a torch optimizer is given too",
                "Give its schedule and techniques by name.",
            )
        from snugfit.recipe.presets import completed  # recipes, which most runs from Python do without

        given = completed(given, preset)
    if optimizer is None and not any("optimizer" in technique.card.seams for technique in given):
        given.insert(0, find("adamw")())
    check(given)
    return given


def _tracking(given: Mapping[str, Any], folder: RunFolder | None) -> Tracking | None:
    names = _tracker_names(given["track"])
    if not names or given["output"] is None or not this_world().leads:
        return None
    importer = Importer(folder=Path.cwd(), allowed=True)  # the caller has named it
    others = trackers((name for name in names if name != _MLFLOW), "track", importer, (_MLFLOW,))
    for each in others:
        each.require()
    if _MLFLOW not in names:
        return Tracking(None, others=others)
    stored = None if folder is None else stored_uri(folder.path)
    uri = resolve_uri(given["track_uri"], Path(given["output"]), stored=stored)
    check_uri(uri)
    return Tracking(uri, others=others)


def _tracker_names(track: bool | str | Sequence[str]) -> tuple[str, ...]:
    """Return names of trackers.

    Raises:
        SettingError: something else is among them.
    """
    if isinstance(track, bool):
        return (_MLFLOW,) if track else ()
    names = (track,) if isinstance(track, str) else tuple(track)
    for name in names:
        if not isinstance(name, str):
            raise SettingError("track", f"got {name!r} as a tracker", "Give names, or package.module:Class.")
    return names


def _identity(job: Job, data: Any, optimizer: Any, techniques: Sequence[Technique]) -> dict[str, Any]:
    """Return what decides the updates of a run made in Python, as far as it can be compared."""
    order = training_order(job, data)
    return {
        "examples": len(data),
        "global_batch": job.train.global_batch,
        WINDOW: job.train.sizes_given,
        **({} if order.lengths is None else {"tokens": _digest(order.lengths)}),
        "updates": order.windows,
        "seed": job.train.seed,
        "optimizer": type(optimizer).__name__ if isinstance(optimizer, torch.optim.Optimizer) else None,
        "optimizer_settings": _optimizer_settings(optimizer),
        # a run may go on under another placement: the updates are the same
        "techniques": [
            {each.card.name: without_unset(each, settings)}
            for each in techniques
            if each.card.family is not Family.PLACEMENT
            for settings in as_entry(each).values()
        ],
    }


def _digest(lengths: Sequence[int]) -> str:
    """Return a digest of the tokens of each example, by which windows are cut."""
    return hashlib.sha256(array("q", lengths).tobytes()).hexdigest()[:16]


def _optimizer_settings(optimizer: Any) -> dict[str, Any]:
    """Return what a torch optimizer was made with, but for how it computes; a checkpoint's would silently count instead of another."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return {}
    how = ("foreach", "fused", "capturable", "differentiable")
    return {name: str(value) for name, value in optimizer.defaults.items() if name not in how}


class ModulePlan(Answer):
    """The plan of a module, with its page in a notebook."""

    def page(self) -> str:
        from snugfit.report.plan_page import render_plan

        return render_plan(self)


_OF_PLAN = {
    "memory": "budget",
    "host_memory": "host_budget",
    "budget.fidelity": "fidelity",
    **{f"plan.{name}": name for name in ("goal", "worth", "slower", "price")},
}
"""Keywords of `plan` by the settings that errors of the planner name."""


@by_keywords(_OF_PLAN)
def plan(
    model: nn.Module,
    batch: Any,
    *,
    loss: str | Loss | None = None,
    optimizer: torch.optim.Optimizer | Technique | None = None,
    techniques: Sequence[Technique] = (),
    micro_batch: int | None = None,
    updates: int = 1000,
    budget: int | str | None = None,
    host_budget: int | str | None = None,
    fidelity: str | None = None,
    device: str | None = None,
    devices: int = 1,
    nodes: int = 1,
    link: str | None = None,
    network: str | None = None,
    goal: str = "fastest",
    worth: float = WORTH,
    slower: float = SLOWER,
    price: float | None = None,
    seconds: float | None = None,
    search: bool = True,
    probe: bool = False,
    forward: Forward | None = None,
    display: Literal["auto"] | None = "auto",
) -> Answer:
    """Return what training `model` needs, in bytes and seconds, before it runs, and the fastest plan that fits.

    The step runs on tensors without numbers, in a process of its own: the model is not touched.

    Args:
        batch: the examples of one update, the largest there are: what the model takes, or a `Batch`.
        micro_batch: examples of one forward and backward; None lets the plan choose.
        updates: length of the run, for its time and for schedules.
        budget, host_budget: memory of the device and of the host, in bytes or like "24GiB"; what is here by default.
        fidelity: the coarsest precision that the plan may choose: full, mixed, compact, adapters or quantized.
        device: a name of the catalogue, such as "rtx4090"; this machine's by default.
        devices, nodes: how many of them on each node, and how many nodes; the plan says whether and how they share the work.
        link, network: between the devices of a node, such as "nvlink4", and between nodes, such as "infiniband-ndr".
        goal: "fastest", the least time; "finest", the finest precision that fits; "smallest", the least memory within `slower` times
            the fastest; "cheapest", devices times hours times `price`, that of one hour of one device.
        worth: times as fast that a plan below mixed precision has to be to be chosen where something finer fits.
        seconds: that the search may take; by default it is bounded by the predictions that it makes.
        search: False predicts exactly what was asked for.
        probe: measure with few examples on this machine's device, for models that cannot be run without numbers.
        display: "auto" shows how far the search is; None shows nothing.

    Returns:
        The answer: `fits`, `prediction`, `choice`, `alternatives`, `rejected`, `why`; `as_dict()` has plain values.
    Raises:
        UserError: a setting is impossible, or the model cannot be run without its numbers.
        PlannerFailed: the planner's process died, or took too long.
    """
    window = batch if isinstance(batch, Batch) else Batch.of(batch)
    given = optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
    job = Job.of(global_batch=window.rows, updates=updates)
    # half a second of imports that training has no use for
    from snugfit.display.search_line import search_line
    from snugfit.planner.target import Target
    from snugfit.run.plans.planning import plan_module

    target = Target(
        device=device,
        memory=None if budget is None else parse_bytes(budget, "budget"),
        host_memory=None if host_budget is None else parse_bytes(host_budget, "host_budget"),
        fidelity=fidelity,
        goal=goal,
        worth=worth,
        slower=slower,
        price=price,
        seconds=seconds,
        search=search,
        probe=probe,
        devices=devices,
        nodes=nodes,
        link=link,
        network=network,
    )
    here = Plan(micro_batch=micro_batch, device=find_device("auto"))
    with search_line(quiet=display is None) as watch:
        answer = plan_module(
            model,
            window,
            job,
            here,
            _techniques(optimizer, techniques),
            target,
            examples=window.rows * updates,
            loss=loss,
            optimizer=given,
            forward=forward,
            watch=watch,
        )
    return ModulePlan(**{**vars(answer), "why": tuple(map(_in_python, answer.why))})


_KEYWORDS = (
    (r"snugfit plan (?=--)", ""),
    (r"--seconds (\d+)", r"seconds=\1"),
    (r"--(device|fidelity) ([\w-]+)", r'\1="\2"'),
    (r"--host-memory", "host_budget"),
    (r"--seconds", "seconds"),
    (r"--no-search", "search=False"),
)
"""Options of `snugfit plan` in what a plan says, and how `plan` takes them."""


def _in_python(sentence: str) -> str:
    """Return a sentence of a plan that names options as keywords.

    >>> _in_python("On this device it fits at mixed: --fidelity mixed.")
    'On this device it fits at mixed: fidelity="mixed".'
    """
    for option, keyword in _KEYWORDS:
        sentence = re.sub(option, keyword, sentence)
    return sentence
