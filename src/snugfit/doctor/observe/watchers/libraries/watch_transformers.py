"""Watch what libraries are told: which columns transformers' trainer leaves out, on which side prompts are padded, which optimizers Accelerate knows."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from snugfit.doctor.observe.events.run_events import DroppedColumn, Fault, PaddedPrompt, WrongWay
from snugfit.doctor.observe.events.script_events import Step
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where
from snugfit.doctor.observe.watchers.libraries.library_lines import line_of_way

_Call = Callable[..., Any]
_BETTER_MORE = re.compile(
    r"acc|(^|_)f1|auc|precision|recall|bleu|rouge|r2|iou|dice|(^|_)map|psnr|ssim|kappa|matthews",
    re.IGNORECASE,
)
_BETTER_LESS = re.compile(
    r"loss|err|(^|_)(mae|mse|rmse|wer|cer|fid|nll|mape|eer)|perplexity|(^|_)ppl", re.IGNORECASE
)
_OF_LABELS = frozenset({"label", "label_ids"})
_LIKE_LABELS = re.compile(r"label|target|weight|class|answer|^y$", re.IGNORECASE)


def watch_transformers(recorder: Recorder, patches: Patches) -> None:
    """Record what its trainer and its generation are given, by their public arguments and attributes."""
    made_at: dict[int, str] = {}  # where the arguments of trainers were made, by number

    def training(original: _Call) -> _Call:
        def train(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.active:
                with recorder.guard():
                    made = made_at.get(recorder.number(trainer.args), "")
                    for name, read in _dropped(trainer):
                        recorder.add(DroppedColumn(made or where(), recorder.log.updates, name, read))
                    recorder.settings_at = made
                    _look_at_best(recorder, trainer, made)
            try:
                return original(trainer, *args, **kwargs)
            finally:
                recorder.settings_at = ""

        return train

    def setting(original: _Call) -> _Call:
        def __post_init__(arguments: Any, *args: Any, **kwargs: Any) -> None:
            original(arguments, *args, **kwargs)
            if recorder.here:
                with recorder.guard():
                    made_at[recorder.number(arguments)] = where()

        return __post_init__

    def generating(original: _Call) -> _Call:
        def generate(model: Any, *args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_dynamo_compiling() and recorder.active:
                with recorder.guard():
                    _look_at_prompt(recorder, model, args, kwargs)
            return original(model, *args, **kwargs)

        return generate

    def trainer_imported(module: ModuleType) -> None:
        patches.wrap(module.Trainer, "train", training)

    def arguments_imported(module: ModuleType) -> None:
        patches.wrap(module.TrainingArguments, "__post_init__", setting)

    def generation_imported(module: ModuleType) -> None:
        patches.wrap(module.GenerationMixin, "generate", generating)

    patches.after_import("transformers.training_args", arguments_imported)
    patches.after_import("transformers.trainer", trainer_imported)
    patches.after_import("transformers.generation.utils", generation_imported)


def watch_lightning(recorder: Recorder, patches: Patches) -> None:
    """Record which way Lightning's callbacks take a score for better."""

    def fitting(original: _Call) -> _Call:
        def fit(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.active:
                with recorder.guard():
                    for each in getattr(trainer, "callbacks", []):
                        name, mode = getattr(each, "monitor", None), getattr(each, "mode", None)
                        if isinstance(name, str) and mode in ("min", "max"):
                            _note_way(recorder, name, greater=mode == "max", at="")
            return original(trainer, *args, **kwargs)

        return fit

    def imported(module: ModuleType) -> None:
        patches.wrap(module.Trainer, "fit", fitting)

    for library in ("lightning.pytorch", "pytorch_lightning"):
        patches.after_import(f"{library}.trainer.trainer", imported)


def watch_accelerate(recorder: Recorder, patches: Patches) -> None:
    """Record optimizers that step while Accelerate gathers gradients still, since it was not given them, or in each pass, since nothing tells it to gather."""
    # updates that had been made when an accelerator last kept gradients for later, and when it last made a pass, by its number
    gathering: dict[int, int] = {}
    passed: dict[int, int] = {}
    gathers: set[int] = set()

    def passing(original: _Call) -> _Call:
        def backward(accelerator: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.active:
                with recorder.guard():
                    number, update = recorder.number(accelerator), recorder.log.updates
                    windows = accelerator.gradient_accumulation_steps
                    if update > gathering.pop(number, update):
                        what = (
                            f"Accelerate divides the loss by {windows} and gathers the gradients of {windows} micro-batches, "
                            "and the optimizer steps in each: it was not prepared."
                        )
                        fix = "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)"
                        steps = (each.at for each in reversed(recorder.log.events) if isinstance(each, Step))
                        at = next(steps, "") or where()
                        recorder.add(Fault(at, update, "accumulation", what, fix, 3, certain=True))
                    if not accelerator.sync_gradients:
                        gathering[number] = update
                        gathers.add(number)
                    each_steps = update == passed.get(number, update) + 1
                    if windows > 1 and each_steps and number not in gathers and not _at_end(accelerator):
                        what = (
                            f"Accelerate divides the loss by {windows}, and nothing tells it when a micro-batch begins: the optimizer steps in each, "
                            f"with 1/{windows} of its gradient."
                        )
                        fix = "with accelerator.accumulate(model):\n    accelerator.backward(loss)\n    optimizer.step()\n    optimizer.zero_grad()"
                        steps = (each.at for each in reversed(recorder.log.events) if isinstance(each, Step))
                        at = next(steps, "") or where()
                        recorder.add(Fault(at, update, "accumulation", what, fix, 6))
                    passed[number] = update
            return original(accelerator, *args, **kwargs)

        return backward

    def imported(_module: ModuleType) -> None:
        patches.wrap(sys.modules["accelerate.accelerator"].Accelerator, "backward", passing)

    # which comes after it: where accelerate imports torch, its accelerator is there in part
    patches.after_import("accelerate.launchers", imported)


def _at_end(accelerator: Any) -> bool:
    """Return whether an accelerator's loader has handed out its last batch, after which it gathers nothing."""
    return bool(accelerator.gradient_state.end_of_dataloader)


def _look_at_best(recorder: Recorder, trainer: Any, made: str) -> None:
    """Note the score by which transformers' trainer keeps the best, where it is taken the wrong way round."""
    name, greater = trainer.args.metric_for_best_model, trainer.args.greater_is_better
    if trainer.args.load_best_model_at_end and isinstance(name, str) and isinstance(greater, bool):
        _note_way(recorder, name, greater=greater, at=made)


def _note_way(recorder: Recorder, name: str, *, greater: bool, at: str) -> None:
    """Note a score that is better when it is less, and is taken for better when it is more, or the other way round.

    What a name says of neither, or of both, is not judged.
    """
    more, less = _BETTER_MORE.search(name), _BETTER_LESS.search(name)
    if bool(more) != bool(less) and greater == bool(less):
        source = line_of_way()
        recorder.add(WrongWay(source or at or where(), recorder.log.updates, name, greater))


def _dropped(trainer: Any) -> list[tuple[str, bool]]:
    """Return the columns that look like labels, or that a loss of the script's own reads, and that the trainer leaves out; and whether one reads them."""
    columns = getattr(trainer.train_dataset, "column_names", None)
    if not trainer.args.remove_unused_columns or not isinstance(columns, list):
        return []
    model = trainer.model
    while hasattr(model, "get_base_model") and (base := model.get_base_model()) is not model:
        model = base
    taken = set(inspect.signature(model.forward).parameters)
    passed_on = taken | _OF_LABELS | set(trainer.args.label_names or trainer.label_names or ())
    source = _source_of_loss(trainer)
    dropped = []
    for name in columns:
        read = bool(re.search(rf"""["']{re.escape(name)}["']""", source))
        # a loss of the script's own says itself what it reads
        like = not source and _LIKE_LABELS.search(name) and _is_numbers(trainer.train_dataset, name)
        if name not in passed_on and (read or like):
            dropped.append((name, read))
    return dropped


def _is_numbers(dataset: Any, column: str) -> bool:
    """Return whether a column may be learned from: one of names, such as `label_text`, is not, and a trainer could not stack it."""
    feature = (getattr(dataset, "features", None) or {}).get(column)
    while (inner := getattr(feature, "feature", None)) is not None:
        feature = inner
    kind = getattr(feature, "dtype", "")
    return not isinstance(feature, dict) and "string" not in str(kind)


def _source_of_loss(trainer: Any) -> str:
    """Return the source of a loss that the script has written for the trainer; "" without."""
    own = type(trainer).compute_loss
    if not own.__module__.startswith("transformers."):
        try:
            return inspect.getsource(own)
        except (OSError, TypeError):
            return ""
    return ""


def _look_at_prompt(recorder: Recorder, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Note prompts of a model without an encoder that end in padding."""
    tokens = kwargs.get("input_ids", kwargs.get("inputs", args[0] if args else None))
    config = getattr(model, "config", None)
    if not isinstance(tokens, Tensor) or tokens.dim() != 2 or getattr(config, "is_encoder_decoder", False):
        return
    mask, padding = kwargs.get("attention_mask"), getattr(config, "pad_token_id", None)
    if isinstance(mask, Tensor) and mask.shape == tokens.shape:
        hidden = mask[:, -1] == 0
    elif isinstance(padding, int) and tokens.shape[1] > 1:
        hidden = (tokens[:, -1] == padding) & (tokens[:, -2] == padding)
    else:
        return
    padded = int(hidden.sum())
    if 0 < padded < len(tokens):
        recorder.add(PaddedPrompt(where(), recorder.log.updates, padded, len(tokens)))
