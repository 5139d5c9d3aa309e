"""A graph of ONNX: logits, any batch and length, no cache."""

from __future__ import annotations

from pathlib import Path

import torch

from snugfit.deliver.export.comparison import EXACT, Comparison
from snugfit.deliver.export.export_format import ExportOptions, Format, Written
from snugfit.deliver.export.exported_model import ExportedModel
from snugfit.deliver.export.graph import check_kind, graph_of, tracing, with_graph_inputs
from snugfit.deliver.export.preprocessing import write_preprocessing
from snugfit.deliver.export.read_back import cells_of, judged, read
from snugfit.deliver.export.scored import ScoredRows
from snugfit.deliver.export.torch_export import inputs_in_words
from snugfit.deliver.export.usage import inputs_usage

FILE = "model.onnx"

_MOST_BYTES = 1 << 30
"""Of weights inside of one file; a protobuf ends at 2 GiB, so larger ones lie beside it."""

_USAGE = """\
import onnxruntime
INPUTS
session = onnxruntime.InferenceSession("FOLDER/model.onnx")
(logits,) = session.run(None, {each.name: inputs[each.name] for each in session.get_inputs()})
"""


def _check(subject: ExportedModel, _choice: ExportOptions) -> None:
    check_kind(subject, "onnx")


def _write(subject: ExportedModel, folder: Path, _choice: ExportOptions, scored: ScoredRows) -> Written:
    graph, inputs, dynamic = graph_of(subject, scored)
    size = sum(each.nbytes for each in graph.parameters())
    with tracing(subject, "torch.onnx", "Take hf or torch-export."):
        program = torch.onnx.export(
            graph,
            (),
            None,
            kwargs=inputs,
            dynamo=True,
            dynamic_shapes=dynamic,
            output_names=["logits"],
            verbose=False,
        )
    assert program is not None
    program.save(str(folder / FILE), external_data=size > _MOST_BYTES)
    notes = [
        *inputs_in_words(subject, inputs),
        *write_preprocessing(subject, folder, scored, labels=True),
    ]
    usage = _USAGE.replace("INPUTS", inputs_usage(subject, "np"))
    return Written(usage=usage, notes=notes, header={"library_name": "onnx"})


def _read_back(
    subject: ExportedModel, folder: Path, _choice: ExportOptions, scored: ScoredRows
) -> list[Comparison]:
    asked = with_graph_inputs(subject, scored)
    reading = read("onnxruntime", folder, asked, {"file": FILE, **cells_of(subject, asked)})
    comparison = judged(reading, asked)
    spread = max(1.0, *(float(each.abs().max()) for each in scored.logits))
    if comparison.problem is None and not reading.values["batched"] <= EXACT * spread:
        off = reading.values["batched"]
        problem = f"a batch of two rows has logits that differ by {off:.3g} from those of one"
        return [Comparison(comparison.reader, comparison.rows, problem=problem)]
    return [comparison]


FORMAT = Format(
    name="onnx",
    summary="A graph of ONNX: logits, any batch and length, no cache.",
    packages=("onnx", "onnxscript", "onnxruntime"),
    label_unit=True,
    check=_check,
    write=_write,
    read_back=_read_back,
)
