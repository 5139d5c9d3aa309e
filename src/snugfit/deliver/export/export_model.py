"""The way of an export: into a draft folder, read back, compared, described, and only then moved to where it was asked for."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from snugfit.deliver.export import adapter, gguf, hf, onnx, state_dict, torch_export
from snugfit.deliver.export.comparison import check
from snugfit.deliver.export.example_rows import score
from snugfit.deliver.export.export_format import ExportOptions, Format
from snugfit.deliver.export.exported_model import ExportedModel, load_subject
from snugfit.deliver.export.label_unit import in_label_unit
from snugfit.deliver.export.metric_changes import MetricChanges, metric_changes
from snugfit.deliver.export.model_card import write_card
from snugfit.deliver.export.numbers import BF16, stored_numbers
from snugfit.deliver.export.push import check_push, push
from snugfit.deliver.export.quantization import PACKAGES
from snugfit.errors import MissingExtra, ModelError, RunFolderError, SettingError, nearest
from snugfit.system.disk_files import disk_problem

FORMATS: Mapping[str, Format] = {
    each.FORMAT.name: each.FORMAT for each in (hf, adapter, gguf, onnx, torch_export, state_dict)
}
"""The formats, by the names that `--to` takes."""


def export_source(
    source: str | Path,
    to: str,
    output: Path,
    *,
    numbers: str | None = None,
    quantize: str | None = None,
    rows: str | None = None,
    push_to: str | None = None,
    uri: str | None = None,
    allow_code: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Export a model of a run, a folder or the registry; the arguments are those of `export_model`.

    Args:
        push_to: repository of a hub that gets it too.
    Raises:
        CodeRefused: it names code, without consent.
        RunFolderError: there is no such model.
        TrackingError: there is no such model in the registry, or the hub does not take the export.
    """
    check_request(to, output, numbers, quantize)
    if push_to is not None:
        check_push(push_to)
    subject = load_subject(source, uri=uri, allow_code=allow_code)
    result = export_model(subject, to, output, numbers=numbers, quantize=quantize, rows=rows, tell=tell)
    return result if push_to is None else {**result, "pushed": push(output, push_to, tell)}


def export_model(
    subject: ExportedModel,
    to: str,
    output: Path,
    *,
    numbers: str | None = None,
    quantize: str | None = None,
    rows: str | Sequence[Mapping[str, Any]] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Write a model in the form that other libraries load, once they give again what was scored.

    Args:
        to: the format's name.
        output: the folder to make.
        numbers: format of the weights, as the export format has it.
        quantize: put a merged model into fewer bits anew.
        rows: to compare on: a file, or rows themselves; those of the run by default.
        tell: is told what is done.
    Returns:
        Where it lies, its files with their sizes, and what the comparisons gave.
    Raises:
        MissingExtra: a package that it needs is not installed.
        ModelError: the format does not hold this model, or what was read back is not what was scored; nothing is delivered.
        RunFolderError: the output cannot be written.
    """
    format = check_request(to, output, numbers, quantize)
    if subject.embeds_texts:
        raise ModelError(
            "--to",
            f"got {to}, and a model of embeddings has no logits by which an export is compared with it",
            "Take its folder best/, which sentence-transformers and transformers load by themselves.",
        )
    stored = stored_numbers(subject.model)
    default = stored if stored in format.numbers and quantize is None else next(iter(format.numbers), "")
    choice = ExportOptions(numbers or default, quantize)
    format.check(subject, choice)
    tell("scoring the rows to compare with …")
    subject, scored = in_label_unit(subject, format, choice, score(subject, rows))
    with _draft(output) as draft:
        tell(f"writing {format.name} …")
        written = format.write(subject, draft, choice, scored)
        tell("reading it back …")
        comparisons = format.read_back(subject, draft, choice, scored)
        check(comparisons, str(output))
        sentences = [each.in_words() for each in comparisons]
        changes: MetricChanges | str | None = None
        if quantize is not None and format.load is not None:
            tell("scoring rows before and after …")
            changes = metric_changes(subject, format.load(subject, draft), draft, rows)
            sentences.append(
                f"no metrics before and after: {changes}" if isinstance(changes, str) else changes.in_words()
            )
        write_card(subject, draft, format, choice, scored, written, sentences)
    return {
        "output": str(output),
        "format": format.name,
        **({"numbers": choice.numbers} if choice.numbers else {}),
        **({"quantized": quantize} if quantize else {}),
        "files": {
            path.relative_to(output).as_posix(): path.stat().st_size
            for path in sorted(output.rglob("*"))
            if path.is_file()
        },
        "compared_on": scored.in_words,
        "compared": [each.as_dict() for each in comparisons],
        **({"changes": changes.as_dict()} if isinstance(changes, MetricChanges) else {}),
        "sentences": sentences,
    }


def check_request(to: str, output: Path, numbers: str | None, quantize: str | None) -> Format:
    """Return the format, and see that it can be written here: before a model is loaded, too.

    Raises:
        MissingExtra: a package that it needs is not installed.
        SettingError: there is no such format, or it has no such numbers.
        RunFolderError: the output holds something, or cannot be written.
    """
    format = find_format(to)
    if numbers is not None and numbers not in format.numbers:
        able = (
            f"{to} has {', '.join(format.numbers)}" if format.numbers else f"{to} has but one form of weights"
        )
        raise SettingError(
            "--numbers",
            f"got '{numbers}', and {able}",
            "Give one of them." if format.numbers else "Leave it out.",
        )
    if quantize is not None:
        _check_quantize(format, numbers, quantize)
    packages = [(each, format.extra) for each in format.packages]
    if quantize is not None:
        packages += [(each, "quantization") for each in PACKAGES]
    for package, extra in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(package, extra)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise RunFolderError(
            "--output", f"{output} holds something already", "Name a new folder, or move it away."
        )
    with _folder_beside(output):
        return format


def _check_quantize(format: Format, numbers: str | None, quantize: str) -> None:
    """See that a format holds a model that is quantised so.

    Raises:
        SettingError: it does not.
    """
    if not format.quantizations:
        able = ", ".join(each.name for each in FORMATS.values() if each.quantizations)
        more = " gguf has --numbers q8_0." if format.name == "gguf" else ""
        raise SettingError(
            "--quantize", f"is of the format {able}, and the format is {format.name}", f"Leave it out.{more}"
        )
    if quantize not in format.quantizations:
        raise SettingError("--quantize", f"got '{quantize}'", f"Give {' or '.join(format.quantizations)}.")
    if numbers == BF16:
        raise SettingError("--numbers", f"weights are to be {BF16} and {quantize} at once", "Leave one out.")


@contextmanager
def _draft(output: Path) -> Iterator[Path]:
    """Yield a folder beside the output, which becomes the output when all went well and is removed otherwise.

    Raises:
        RunFolderError: it cannot be written.
    """
    with _folder_beside(output) as draft:
        yield draft
        if output.exists():  # empty, as was seen before
            output.rmdir()
        os.replace(draft, output)


@contextmanager
def _folder_beside(output: Path) -> Iterator[Path]:
    """Yield a new folder beside the output, which is removed at the end with the folders that were made for it.

    Raises:
        RunFolderError: it cannot be written.
    """
    draft = output.with_name(f".{output.name}.draft")
    made = [folder for folder in draft.parents if not folder.exists()]
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        yield draft
    except Exception as error:  # safetensors and tokenizers raise no OSError where a disk is full
        if (problem := disk_problem(error)) is None:
            raise
        raise RunFolderError(
            "--output",
            f"{output} cannot be written: {problem}",
            "Free space, or name a folder that can be written.",
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        for folder in made:
            with suppress(OSError):  # the export is in it
                folder.rmdir()


def find_format(name: str) -> Format:
    """Return a format by its name.

    Raises:
        SettingError: there is none; the nearest one is given.
    """
    if name not in FORMATS:
        raise SettingError("--to", f"no format '{name}'", nearest(name, FORMATS))
    return FORMATS[name]
