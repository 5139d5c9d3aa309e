"""The model card of an export: README.md with the hub's YAML header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from snugfit.data.report import source_words
from snugfit.data.texts.chat_template import DATE, prints_date
from snugfit.deliver.export.export_format import ExportOptions, Format, Written
from snugfit.deliver.export.exported_model import ExportedModel, is_local
from snugfit.deliver.export.label_unit import unit_in_words
from snugfit.deliver.export.scored import ScoredRows
from snugfit.models.folders import CONFIG_PREFIX
from snugfit.system.redaction import redacted

NAME = "README.md"

_NOT_LEARNED_FROM = ("output", "folder", "track", "hooks", "budget", "checkpoint", "name")
"""Parts of a recipe that say nothing of what was learned."""


def write_card(
    subject: ExportedModel,
    folder: Path,
    format: Format,
    choice: ExportOptions,
    scored: ScoredRows,
    written: Written,
    compared: Sequence[str],
) -> None:
    """Write the card into the folder of an export.

    Args:
        compared: what the comparisons gave, in sentences.
    """
    name = _name(subject)
    header = yaml.safe_dump(_header(subject, name, written), sort_keys=False, allow_unicode=True)
    numbers = f" ({choice.quantize or choice.numbers})" if choice.quantize or choice.numbers else ""
    sections = [
        f"# {name}",
        f"{_what(subject)} Exported by Snugfit to `{format.name}`{numbers}: {format.summary[0].lower()}{format.summary[1:]}",
        "## Use",
        f"```python\n{written.usage.rstrip()}\n```\n\n`FOLDER` is where this file lies.",
        *written.notes,
        *unit_in_words(subject),
        "## Compared with what was scored",
        f"This export was read back before it was delivered, by code that is not Snugfit's, and compared on {scored.in_words}.",
        "\n".join(f"- {each}." for each in compared),
        "## Metrics",
        _metrics(subject),
        *(["These are of the weights before they were quantised."] if choice.quantize else []),
        "## Data",
        _data(subject),
        "## Limits",
        "\n".join(f"- {each}" for each in _limits(subject)),
        *_recipe(subject),
    ]
    text = f"---\n{header}---\n\n" + "\n\n".join(sections) + "\n"
    (folder / NAME).write_text(text, encoding="utf-8")


def _name(subject: ExportedModel) -> str:
    return str(subject.run_event.get("name") or subject.recipe.get("name") or subject.task)


def _header(subject: ExportedModel, name: str, written: Written) -> dict[str, Any]:
    """Return the card's entries for the hub."""
    header: dict[str, Any] = {**written.header}
    if subject.pipeline:
        header["pipeline_tag"] = subject.pipeline
    base = subject.recipe.get("model")
    if isinstance(base, str) and _is_on_a_hub(base) and not _is_from_scratch(subject, base):
        header["base_model"] = base
    header["tags"] = ["snugfit"]
    results = _results(subject)
    if results:
        header["model-index"] = [{"name": name, "results": results}]
    return header


def _is_on_a_hub(base: str) -> bool:
    """Return whether a model is named as one of a hub, and lies in no folder here."""
    return base.count("/") == 1 and not is_local(base)


def _is_from_scratch(subject: ExportedModel, base: str) -> bool:
    """Return whether a model is named by its configuration alone, as networks for tables are by a file."""
    named = base.startswith(CONFIG_PREFIX) or Path(base).suffix == ".json"
    return named or bool(subject.recipe.get("from_scratch"))


def _results(subject: ExportedModel) -> list[dict[str, Any]]:
    """Return the metrics as the hub lists them, where it is known what they were measured on."""
    inputs = _inputs(subject)
    held_out = next((each for each in inputs if each.get("context") == "validation"), None) or (
        inputs[0] if inputs else None
    )
    numbers = {name: value for name, value in _scores(subject).items() if isinstance(value, (int, float))}
    if not subject.pipeline or held_out is None or not numbers:
        return []
    source = Path(str(held_out["source"])).name
    metrics = [{"type": name, "value": value, "name": name} for name, value in numbers.items()]
    return [
        {"task": {"type": subject.pipeline}, "dataset": {"name": source, "type": "file"}, "metrics": metrics}
    ]


def _scores(subject: ExportedModel) -> Mapping[str, Any]:
    metrics = subject.meta.get("metrics")
    return metrics if isinstance(metrics, Mapping) else {}


def _inputs(subject: ExportedModel) -> list[Mapping[str, Any]]:
    inputs = subject.run_event.get("inputs")
    return [each for each in inputs if isinstance(each, Mapping)] if isinstance(inputs, list) else []


def _what(subject: ExportedModel) -> str:
    classes = list(subject.meta.get("labels") or ())
    base = subject.recipe.get("model")
    begun = ""
    if isinstance(base, str):
        path = base.removeprefix(CONFIG_PREFIX)
        kind = "file" if Path(path).suffix else "folder"
        named = f"the local {kind} '{Path(path).name}'" if is_local(base) else path
        begun = (
            f", from the configuration of {named}"
            if _is_from_scratch(subject, base)
            else f", trained from {named}"
        )
    labels = (
        f" of {len(classes)} {'labels' if subject.names_any_number else 'classes'} ({', '.join(map(str, classes[:10]))}{' …' if len(classes) > 10 else ''})"
        if classes
        else ""
    )
    return f"A {subject.class_name} for {subject.task}{labels}{begun}."


def _metrics(subject: ExportedModel) -> str:
    scores = _scores(subject)
    if not scores:
        return "It was measured on nothing: the run had no rows held out."
    update = subject.meta.get("update")
    weights = subject.meta.get("weights")
    lines = [
        f"| {name} | {value:.4g} |" if isinstance(value, float) else f"| {name} | {value} |"
        for name, value in scores.items()
    ]
    at = f"At update {update:,}" if isinstance(update, int) else "Of the best evaluation"
    named = f", weights: {weights}" if weights and weights != "raw" else ""
    return "\n".join([f"{at}{named}, on the rows held out:", "", "| metric | value |", "|---|---|", *lines])


def _data(subject: ExportedModel) -> str:
    data = subject.run_event.get("data") if isinstance(subject.run_event.get("data"), Mapping) else {}
    assert isinstance(data, Mapping)
    lines = []
    if data.get("train") is not None:
        lines.append(
            f"{data['train']:,} {data.get('unit', 'rows')} to train on, {data.get('validation', 0):,} held out."
        )
    for each in _inputs(subject):
        digest = f"sha256 `{each['sha256']}`" if each.get("sha256") else "no digest"
        lines.append(f"- {each.get('context')}: `{Path(str(each.get('source'))).name}`, {digest}")
    lines += [f"- {source_words(each)}" for each in data.get("sources") or ()]
    if data.get("skipped"):
        lines.append(
            f"Left out: {', '.join(f'{reason} ({count})' for reason, count in data['skipped'].items())}."
        )
    return "\n".join(lines) if lines else "The folder of the run is not here, so its data are not known."


def _limits(subject: ExportedModel) -> list[str]:
    limits = [
        "The figures hold for rows like those that it was trained and measured on; nothing is known of others."
    ]
    if length := subject.meta.get("max_length"):
        limits.append(f"It was trained on at most {length:,} tokens a row.")
    if subject.names_any_number:
        limits.append(
            f"A label is given where the sigmoid of its logit is {subject.meta['threshold']:g} or more, so that a row may have none."
        )
    elif subject.meta.get("labels"):
        limits.append("Whatever it is given, it names one of its classes.")
    if subject.generates:
        limits.append(
            "What it says may be wrong, however sure it sounds. Whoever serves it has to check that."
        )
        if prints_date(getattr(subject.predictor.tokenizer, "chat_template", None)):
            limits.append(
                f"Its chat template writes the day on which it is asked. It learned from conversations of {DATE:%d %B %Y} alone."
            )
    sources = {each.get("context") for each in _inputs(subject)}
    if sources == {"train"} and _scores(subject):
        limits.append("The rows held out were drawn from the training data.")
    return limits


def _recipe(subject: ExportedModel) -> list[str]:
    """Return the section of the recipe, without what is of the machine alone: folders, trackers."""
    recipe = {key: value for key, value in subject.recipe.items() if key not in _NOT_LEARNED_FROM}
    if not recipe:
        return []
    base = recipe.get("model")
    if isinstance(base, str) and is_local(base):  # not to be read as a name on a hub
        prefix = CONFIG_PREFIX if base.startswith(CONFIG_PREFIX) else ""
        recipe["model"] = f"{prefix}./{Path(base.removeprefix(CONFIG_PREFIX)).name}"
    text = yaml.safe_dump(redacted(_without_folders(recipe)), sort_keys=False, allow_unicode=True)
    versions = subject.run_event.get("versions")
    made = (
        f"With {', '.join(f'{name} {value}' for name, value in versions.items())}."
        if isinstance(versions, Mapping)
        else ""
    )
    return ["## Recipe", f"```yaml\n{text}```", *([made] if made else [])]


def _without_folders(value: Any) -> Any:
    """Return values with files named without their folders."""
    if isinstance(value, Mapping):
        return {key: _without_folders(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_folders(each) for each in value]
    if isinstance(value, str) and Path(value).is_absolute():
        return Path(value).name
    return value
