"""A program of torch.export: runs without the code of the model, in Python or compiled ahead of time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from snugfit.deliver.export.comparison import Comparison
from snugfit.deliver.export.export_format import ExportOptions, Format, Written
from snugfit.deliver.export.exported_model import ExportedModel
from snugfit.deliver.export.graph import check_kind, graph_of, tracing, with_graph_inputs
from snugfit.deliver.export.preprocessing import write_preprocessing
from snugfit.deliver.export.read_back import cells_of, judged, read
from snugfit.deliver.export.scored import ScoredRows
from snugfit.deliver.export.usage import inputs_usage

FILE = "model.pt2"

_USAGE = """\
import torch
INPUTS
model = torch.export.load("FOLDER/model.pt2").module()
logits = model(**{name: inputs[name] for name in NAMES})
"""


def _check(subject: ExportedModel, _choice: ExportOptions) -> None:
    check_kind(subject, "torch-export")


def _write(subject: ExportedModel, folder: Path, _choice: ExportOptions, scored: ScoredRows) -> Written:
    graph, inputs, dynamic = graph_of(subject, scored)
    with tracing(subject, "torch.export", "Take hf or state-dict."):
        program = torch.export.export(graph, (), inputs, dynamic_shapes=dynamic)
    torch.export.save(program, folder / FILE)
    notes = [
        *inputs_in_words(subject, inputs),
        *write_preprocessing(subject, folder, scored, labels=True),
    ]
    usage = _USAGE.replace("INPUTS", inputs_usage(subject, "pt")).replace("NAMES", str(list(inputs)))
    return Written(usage=usage, notes=notes, header={"library_name": "pytorch"})


def inputs_in_words(subject: ExportedModel, inputs: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the inputs of a graph in words, for its card."""

    def shape(tensor: torch.Tensor) -> str:
        sizes = ["batch", *("length" if subject.reads_tokens else str(size) for size in tensor.shape[1:])]
        return f"{' × '.join(sizes)}, {str(tensor.dtype).removeprefix('torch.')}"

    parts = [f"`{name}` ({shape(each)})" for name, each in inputs.items()]
    sentences = [f"Inputs: {', '.join(parts)}. Output: `logits`."]
    if subject.generates:
        sentences.append("There is no cache: each token of an answer takes a call on all tokens before it.")
    return sentences


def _read_back(
    subject: ExportedModel, folder: Path, _choice: ExportOptions, scored: ScoredRows
) -> list[Comparison]:
    asked = with_graph_inputs(subject, scored)
    return [judged(read("torch", folder, asked, {"file": FILE, **cells_of(subject, asked)}), asked)]


FORMAT = Format(
    name="torch-export",
    summary="A program of torch.export (.pt2): logits, any batch and length.",
    label_unit=True,
    check=_check,
    write=_write,
    read_back=_read_back,
)
