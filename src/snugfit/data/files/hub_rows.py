"""Rows of Hugging Face data sets: by their name on the hub, or from a folder that `save_to_disk` has written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from snugfit.data.files.file_kinds import HUB, OF_SPLITS, is_hub_name
from snugfit.errors import DataError, MissingExtra

if TYPE_CHECKING:
    from datasets import Dataset

_PART = r"[\w.-]+"
_NAME = re.compile(
    rf"{HUB}(?P<name>{_PART}(?:/{_PART})?)(?:/(?P<config>{_PART}))?(?::(?P<split>[^:/][^/]*))?"
)
_BATCH = 256
"""Rows that are decoded at a time."""


class HubName(NamedTuple):
    """A data set on the hub, one of its configurations if it is not the only one, and the rows of it, as datasets writes slices."""

    name: str
    config: str | None
    split: str


def hub_name(source: str, setting: str) -> HubName:
    """Return what a name on the hub says; the split is "train" where it says none.

    Raises:
        DataError: it is none.

    >>> hub_name("hf://nyu-mll/glue/mrpc:validation[:100]", "data.train")
    HubName(name='nyu-mll/glue', config='mrpc', split='validation[:100]')
    """
    match = _NAME.fullmatch(source)
    if match is None:
        raise DataError(
            setting,
            f"'{source}' is no name of a data set on the hub",
            "Write hf://OWNER/NAME, with /CONFIG behind it where there are several and :SPLIT where it is not train, such as "
            "hf://nyu-mll/glue/mrpc:validation.",
        )
    return HubName(match["name"], match["config"], match["split"] or "train")


def read_hub(source: str, setting: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a data set on the hub, or in the cache of an earlier download; numbers of classes are their names.

    Raises:
        DataError: there is no such data set, configuration or split, or the hub cannot be reached.
    """
    wanted = hub_name(source, setting)
    with _datasets(source, setting) as datasets:
        yield from _rows(datasets.load_dataset(wanted.name, wanted.config, split=wanted.split))


def read_saved(folder: Path, source: str, setting: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a data set on the disk.

    Raises:
        DataError: it has several splits, or cannot be read.
    """
    _check_one_split(folder, source, setting)
    with _datasets(source, setting) as datasets:
        yield from _rows(datasets.load_from_disk(str(folder)))


def _check_one_split(folder: Path, source: str, setting: str) -> None:
    """See that a folder holds one data set.

    Raises:
        DataError: it holds several splits.
    """
    if (folder / OF_SPLITS).is_file():
        splits = sorted(each.name for each in folder.iterdir() if each.is_dir())
        raise DataError(
            setting,
            f"{source} holds the splits {', '.join(splits)} of a data set",
            f"Name one of them: {source.rstrip('/')}/{'train' if 'train' in splits else next(iter(splits), 'SPLIT')}",
        )


@contextmanager
def opened_hub(source: str, setting: str) -> Iterator[Any]:
    """Temporarily give a data set on the hub whose rows come one after the other; whatever fails is an error of the source.

    Raises:
        DataError: as `read_hub`, or the data set cannot be streamed.
    """
    wanted = hub_name(source, setting)
    with _datasets(source, setting) as datasets:
        yield datasets.load_dataset(wanted.name, wanted.config, split=wanted.split, streaming=True)


@contextmanager
def opened_saved(folder: Path, source: str, setting: str) -> Iterator[Dataset]:
    """Temporarily give a data set on the disk, whose rows are read as they are asked for.

    Raises:
        DataError: as `read_saved`.
    """
    _check_one_split(folder, source, setting)
    with _datasets(source, setting) as datasets:
        yield datasets.load_from_disk(str(folder))


@contextmanager
def _datasets(source: str, setting: str) -> Iterator[Any]:
    """Temporarily give the library without its progress bars; whatever it raises is an error of the source."""
    try:
        import datasets
    except ImportError as error:
        raise MissingExtra("datasets", "datasets") from error
    shown = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        yield datasets
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            setting, f"{source} cannot be loaded: {_reason(error)}", _remedy(source, error)
        ) from error
    finally:
        if shown:
            datasets.enable_progress_bars()


def _reason(error: Exception) -> str:
    if "NotFound" in type(error).__name__:
        return "there is no such data set, or this account may not read it"
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__


def _remedy(source: str, error: Exception) -> str:
    text = f"{type(error).__name__} {error}"
    if not is_hub_name(source):
        return "Save it again with save_to_disk."
    if isinstance(error, ConnectionError) or "offline" in text.lower():
        return (
            "Where the hub can be reached, write it to a folder with datasets.load_dataset(…).save_to_disk('FOLDER'), and name the folder "
            "here."
        )
    if "NotFound" in text or "gated" in text:
        return "Correct the name; for one that is gated or private, log in first: hf auth login."
    return "Correct what stands behind the name: hf://OWNER/NAME/CONFIG:SPLIT."


def _rows(dataset: Dataset) -> Iterator[dict[str, Any]]:
    """Yield the rows, of which few are in memory at a time; pictures and sounds stay the bytes that they are."""
    import datasets

    for name, feature in dataset.features.items():
        if isinstance(feature, (datasets.Image, datasets.Audio)):
            dataset = dataset.cast_column(name, type(feature)(decode=False))
    named = {
        column: convert for column, feature in dataset.features.items() if (convert := _by_names(feature))
    }
    for batch in dataset.with_format("arrow").iter(_BATCH):
        for row in batch.to_pylist():
            yield {
                column: named[column](value) if column in named else value for column, value in row.items()
            }


def _by_names(feature: Any) -> Callable[[Any], Any] | None:
    """Return what puts names in the place of the numbers of classes in a value; None where it has none."""
    import datasets

    if isinstance(feature, datasets.ClassLabel):
        names = feature.names
        # -1: without a label; a number without a name stays, and is a label like others
        return lambda value: (
            None if value is None or value < 0 else names[value] if value < len(names) else value
        )
    if isinstance(feature, datasets.List | datasets.LargeList):
        convert = _by_names(feature.feature)
        return None if convert is None else lambda values: values and [convert(each) for each in values]
    if isinstance(feature, Mapping):
        inner = {key: convert for key, each in feature.items() if (convert := _by_names(each))}
        if inner:
            return lambda value: (
                value and {key: inner[key](each) if key in inner else each for key, each in value.items()}
            )
    return None
