"""The weights alone, by their names in the module: plain safetensors, every name of them, tied ones too."""

from __future__ import annotations

import copy
from importlib.metadata import version
from pathlib import Path

import torch
from torch import nn

from snugfit.deliver.export.comparison import Comparison, differences
from snugfit.deliver.export.export_format import ExportOptions, Format, Written
from snugfit.deliver.export.exported_model import ExportedModel
from snugfit.deliver.export.numbers import BF16, FP32, dtype_of, rounding_to
from snugfit.deliver.export.preprocessing import write_preprocessing
from snugfit.deliver.export.read_back import judged, read
from snugfit.deliver.export.scored import ScoredRows, logits_for, rounded_logits
from snugfit.errors import ModelError

FILE = "model.safetensors"

_USAGE = """\
from safetensors.torch import load_file

model.load_state_dict(load_file("FOLDER/model.safetensors"), strict=True)
"""

_USAGE_OF_TRANSFORMERS = """\
import transformers
from safetensors.torch import load_file

model = transformers.CLASS(transformers.AutoConfig.from_pretrained("FOLDER"))
model.load_state_dict(load_file("FOLDER/model.safetensors"), strict=True)
model.eval()
"""

_USAGE_OF_CHANGED = """\
from snugfit.deliver.predictor import extended

model = extended(model, ENTRIES)  # before the weights are loaded

"""


def _check(subject: ExportedModel, _choice: ExportOptions) -> None:
    others = [
        name for name, value in subject.model.state_dict().items() if not isinstance(value, torch.Tensor)
    ]
    if others:
        raise ModelError(
            "--to",
            f"state-dict holds tensors alone, and {others[0]} of the model is none",
            "Copy the folder best/, which holds it.",
        )


def _write(subject: ExportedModel, folder: Path, choice: ExportOptions, scored: ScoredRows) -> Written:
    from safetensors.torch import save_file

    dtype = dtype_of(choice.numbers)
    tensors = {
        name: (each.detach().to(dtype) if each.is_floating_point() else each.detach()).clone().contiguous()
        for name, each in subject.model.state_dict().items()
    }
    save_file(tensors, folder / FILE, metadata={"format": "pt"})
    notes, usage = [], _USAGE
    if subject.is_of_transformers:
        own = type(subject.model).__name__
        config = copy.deepcopy(subject.config)
        config.architectures = [own]
        config.save_pretrained(folder)
        usage = _USAGE_OF_TRANSFORMERS.replace("CLASS", own)
    else:
        notes.append(
            f"The module is a `{type(subject.model).__name__}` of the code that it was trained with."
        )
    if subject.changes:
        names = ", ".join(next(iter(entry)) for entry in subject.changes)
        notes.append(
            f"The module was changed by {names} after it was made. The names of its weights may fit one that was not, which then gives other outputs."
        )
        usage = _USAGE_OF_CHANGED.replace("ENTRIES", repr([*subject.changes])) + usage
    notes += write_preprocessing(subject, folder, scored, labels=not subject.is_of_transformers)
    return Written(usage=usage, notes=notes, header={"library_name": "pytorch"})


def _read_back(
    subject: ExportedModel, folder: Path, choice: ExportOptions, scored: ScoredRows
) -> list[Comparison]:
    round_weight = rounding_to(choice.numbers)
    if subject.is_of_transformers and scored.inputs:
        whole = rounded_logits(scored, round_weight)
        return [judged(read("state", folder, scored, {"file": FILE}), scored, whole=whole)]
    return [_strictly(subject.model, folder, scored, choice)]


def _strictly(model: nn.Module, folder: Path, scored: ScoredRows, choice: ExportOptions) -> Comparison:
    """Return the comparison for a module that only its own code makes: emptied, and filled from the file by safetensors and torch."""
    from safetensors.torch import load_file

    round_weight = rounding_to(choice.numbers)
    reader = f"safetensors {version('safetensors')}"
    empty = copy.deepcopy(model).float()
    for tensor in empty.state_dict().values():
        tensor.fill_(float("nan") if tensor.is_floating_point() else 0)
    stored = load_file(folder / FILE)
    empty.load_state_dict(stored, strict=True)
    state = model.state_dict()
    for name, each in state.items():
        own = each if round_weight is None else round_weight(each)
        if not torch.equal(own.to(stored[name].dtype), stored[name]):
            return Comparison(reader, len(scored.inputs), problem=f"'{name}' differs")
    with torch.no_grad():
        given = logits_for(empty.eval(), scored.inputs)
    difference, largest = differences(scored.logits, given)
    whole = rounded_logits(scored, round_weight) if scored.inputs else None
    rounding = None if whole is None else differences(scored.logits, whole)[0]
    compared = bool(scored.inputs)
    return Comparison(
        reader,
        len(scored.inputs),
        difference if compared else None,
        largest if compared else None,
        rounding,
        checked=(f"all {len(state)} tensors",),
    )


FORMAT = Format(
    name="state-dict",
    summary="The weights alone, by their names in the module, as plain safetensors.",
    packages=("safetensors",),
    extra="text",
    numbers=(FP32, BF16),
    check=_check,
    write=_write,
    read_back=_read_back,
)
