"""The formats of exports, by the names that `--to` takes."""

from __future__ import annotations

from collections.abc import Mapping

from snugfit.deliver.export import adapter, gguf, hf, onnx, state_dict, torch_export
from snugfit.deliver.export.export_format import Format
from snugfit.errors import SettingError, nearest

FORMATS: Mapping[str, Format] = {
    each.FORMAT.name: each.FORMAT for each in (hf, adapter, gguf, onnx, torch_export, state_dict)
}


def find_format(name: str) -> Format:
    """Return a format by its name.

    Raises:
        SettingError: there is none; the nearest one is given.
    """
    if name not in FORMATS:
        raise SettingError("--to", f"no format '{name}'", nearest(name, FORMATS))
    return FORMATS[name]
