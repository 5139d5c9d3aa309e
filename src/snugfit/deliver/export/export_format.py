"""The format of an export: its name, what it needs, how it is written, and by what it is read back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from snugfit.deliver.export.comparison import Comparison
from snugfit.deliver.export.exported_model import ExportedModel
from snugfit.deliver.export.scored import ScoredRows


@dataclass(frozen=True)
class ExportOptions:
    """The choices of who exports.

    Args:
        numbers: format of the weights, such as bf16; empty where the export format has but one.
        quantize: the format in which a merged model is quantised anew; None leaves its weights whole.
    """

    numbers: str = ""
    quantize: str | None = None


@dataclass(frozen=True, kw_only=True)
class Written:
    """The result of writing, for the model card.

    Args:
        usage: code that loads it.
        notes: sentences on what is otherwise than in the model that was scored.
        header: entries of the card's header.
    """

    usage: str
    notes: Sequence[str] = ()
    header: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format that models are exported to.

    Args:
        summary: one sentence.
        packages: needed to write it and to read it back, by the names that they are imported by.
        extra: of ours, which installs them.
        label_unit: whether it holds a model of numbers with their scale in its head, so that its logits are in the unit of the labels.
        numbers: those that weights may be in, the default first; empty where there is no choice.
        quantizations: those that a merged model may be quantised to anew.
        check: refuses a model that the format does not hold, before anything is computed.
        write: writes the files into a folder.
        read_back: reads the files by code that is not ours, and compares with what was scored.
        load: loads a quantised model from the files, to be scored as the whole one was; None where it quantises none.
    """

    name: str
    summary: str
    packages: tuple[str, ...] = ()
    extra: str = "export"
    label_unit: bool = False
    numbers: tuple[str, ...] = ()
    quantizations: tuple[str, ...] = ()
    check: Callable[[ExportedModel, ExportOptions], None]
    write: Callable[[ExportedModel, Path, ExportOptions, ScoredRows], Written]
    read_back: Callable[[ExportedModel, Path, ExportOptions, ScoredRows], list[Comparison]]
    load: Callable[[ExportedModel, Path], nn.Module] | None = None
