"""Answers of a model while it trains: what it says to a few prompts, always the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from snugfit.errors import SettingError
from snugfit.tasks.task import ModelObserver, Task

if TYPE_CHECKING:
    from snugfit.core.technique import Technique
    from snugfit.recipe import Recipe
    from snugfit.tasks.inference import Inference

_ANSWER_TOKENS = 64
"""Tokens at most of an answer that is shown while a model trains."""


def sample_answers(recipe: Recipe, task: Task, count: int) -> ModelObserver:
    """Return what asks a model for its answers to the first examples of the task.

    Raises:
        SettingError: models of the task write no texts, or this one could not while it trains.
    """
    from snugfit.data.texts.conversations import MOST_ASKED
    from snugfit.deliver.predictor import predictor_of
    from snugfit.kit.language_models.generation import Generation
    from snugfit.step.metrics.text_metrics import OfWrittenTexts, text_scores
    from snugfit.tasks.inference import decoder_of

    afterwards = "Leave it out, and ask the best model afterwards: snugfit generate RUN."
    require_whole_model("track.answers", recipe.all_techniques(), recipe.plan.strategy, afterwards)
    predictor = predictor_of(nn.Module(), task.meta, task.tokenizer, "cpu", "the model")
    use = predictor.use
    if use is None or use.with_generation is None:
        raise SettingError(
            "track.answers",
            f"is of tasks whose models write texts, and the task is {recipe.task}",
            "Leave it out.",
        )
    if count > MOST_ASKED:
        raise SettingError(
            "track.answers",
            f"is {count}, and a model is asked {MOST_ASKED} prompts at most while it trains",
            "Give fewer, and score the answers to all rows afterwards: snugfit evaluate RUN ROWS --metrics exact_match.",
        )
    asking = use.with_generation(Generation(_ANSWER_TOKENS), None)
    sample = task.asked or [(row, ()) for row in task.example_rows]
    asked = [each for each in sample if _is_answerable(each[0], asking, task.material.model)][:count]
    if not asked:
        raise SettingError(
            "track.answers",
            "no example that it could ask has a prompt that leaves the model a position for an answer",
            "Leave it out, or give a first row with a shorter prompt.",
        )

    rows = [row for row, _ in asked]
    decode = decoder_of(task.tokenizer)
    metrics = {name: each for name, each in asking.own_metrics.items() if isinstance(each, OfWrittenTexts)}

    def answers(model: nn.Module, _update: int, _folder: Path) -> tuple[str, dict[str, Any]]:
        device = next(model.parameters()).device
        predictions = replace(predictor, model=model, device=device, use=asking).predict(rows)
        column = asking.columns[0]
        shown: list[dict[str, str]] = []
        pairs: list[tuple[str, Sequence[int]]] = []
        for (row, target), each in zip(asked, predictions, strict=True):
            shown.append({"prompt": _in_words(row), "answer": each[column]})
            if target:
                pairs.append((each[column], target))
                shown[-1]["expected"] = decode(target).strip()
        return "answers", {"rows": shown, "scores": text_scores(pairs, metrics) if pairs else {}}

    return answers


def require_whole_model(
    setting: str, techniques: Iterable[Technique], strategy: str, remedy: str = "Leave it out."
) -> None:
    """Refuse to look at a model between updates whose weights are not on one device.

    Raises:
        SettingError
    """
    away = [each.card.name for each in techniques if each.card.name == "weight_streaming"]
    if strategy.startswith("fsdp"):
        away.append(f"strategy: {strategy}")
    if away:
        raise SettingError(
            setting, f"asks a model whose weights are not on one device ({', '.join(away)})", remedy
        )


def _is_answerable(row: Mapping[str, Any], asking: Inference, model: nn.Module) -> bool:
    """Return whether a row's prompt can be written and leaves the model a position: else a run would end at its first evaluation."""
    from snugfit.data.bad_rows import BadRow
    from snugfit.kit.language_models.generation import positions_of, writes_another_text

    try:
        length = asking.length(asking.encode([row])[0])
    except BadRow:
        return False
    return writes_another_text(model) or length < positions_of(model)


def _in_words(row: Mapping[str, Any]) -> str:
    """Return a row as a reader sees it: its last message, or its columns."""
    if messages := row.get("messages"):
        return str(messages[-1]["content"])
    return "\n".join(str(value) for name, value in row.items() if value and name != "tools")
