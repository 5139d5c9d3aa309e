"""`snugfit export`: a trained model in the form that other libraries load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from snugfit.cli.common.options import AllowCodeOption, JsonOption, RegistryOption
from snugfit.cli.common.output import show
from snugfit.display.activity import Activity


def export(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="A run's folder, a model's, or a stored one: models:/chats@champion."
        ),
    ],
    to: Annotated[
        str,
        typer.Option("--to", metavar="FORMAT", help="hf, adapter, gguf, onnx, torch-export or state-dict."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="The folder to make.")],
    numbers: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Format of the weights. hf, state-dict: fp32, bf16. gguf: f16, bf16, q8_0."
        ),
    ] = None,
    quantize: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="For hf: merge, and quantise anew to nf4 or int8. The loss is printed."
        ),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Rows to compare on; those of the run, where they are here."),
    ] = None,
    push: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/NAME", help="Send it to this repository of the hub; a new one is private."
        ),
    ] = None,
    uri: RegistryOption = None,
    allow_code: AllowCodeOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a trained model in the form that other libraries load.

    It is read back by such a library before it is delivered, and compared with what was scored. README.md in the folder is the model
    card, with that comparison.
    """
    with Activity("export", "loading the model …") as activity:
        from snugfit.deliver.export.export_model import export_source

        result = export_source(
            source,
            to,
            output,
            numbers=numbers,
            quantize=quantize,
            rows=rows,
            push_to=push,
            uri=uri,
            allow_code=allow_code,
            tell=activity,
        )
    sentences = result.pop("sentences")
    if as_json:
        show(result, as_json)
        return
    size = sum(result["files"].values())
    show({"output": result["output"], "size_bytes": size, "compared_on": result["compared_on"]}, as_json)
    for sentence in sentences:
        print(f"{'compared':<20}{sentence}")
    if push is not None:
        show({"pushed": result["pushed"]}, as_json)
