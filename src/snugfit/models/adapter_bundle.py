"""A bundle without the weights of its base: the adapter alone, with the name of the base that it is merged into when it is loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from snugfit.errors import ModelError, SettingError
from snugfit.kit.adapters.adapter_files import load_adapter
from snugfit.kit.adapters.adapters import merged
from snugfit.models.folders import model_files
from snugfit.models.hub import call, quiet_transformers, resolve
from snugfit.models.tokenizer import grow_embeddings

BASE = "base"
"""Where the meta data of such a bundle say on what its adapter goes."""
ADAPTER = "adapter"
"""The folder of the adapter in a bundle."""

_CHANGES = ("extended_by", "made_buffers")
"""Where the meta data of a bundle say that its modules are not those of its library."""

Extend = Callable[[nn.Module, Sequence[Mapping[str, Mapping[str, Any]]]], nn.Module]


@dataclass(frozen=True)
class Base:
    """The model that an adapter was trained on.

    Args:
        model: its folder, or its name on the hub.
        quantized: the techniques that put its weights into fewer bits, as a recipe writes them.
        files: digests of its files of weights.
    """

    model: str
    quantized: tuple[Mapping[str, Mapping[str, Any]], ...] = ()
    files: Mapping[str, str] | None = None

    def with_files(self) -> Base:
        """Return it with the digests of its files as they are now."""
        return Base(self.model, self.quantized, _weights_of(self.model))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def leave_base_out(bundle: Path, meta: Mapping[str, Any], folder: Path, base: Base) -> None:
    """Write a copy of a bundle that has its adapter alone, and the name of the base, to `folder`.

    Args:
        meta: of the bundle.
    Raises:
        SettingError: the bundle has no adapter, or more than that was trained.
    """
    if not (bundle / ADAPTER).is_dir():
        raise SettingError(
            "track.register_adapter",
            f"{bundle} has no adapter, so that nothing would be left of it",
            "Train with lora, or remove it.",
        )
    if changed := [name for name in _CHANGES if meta.get(name)]:
        raise SettingError(
            "track.register_adapter",
            f"{bundle} has more than its base and an adapter: {changed[0]}",
            "Register the merged model.",
        )
    weights = [name for name in meta["files"] if not name.startswith(f"{ADAPTER}/")]
    others = {*weights, *(path.name for path in bundle.glob("*.index.json"))}
    shutil.copytree(
        bundle, folder, ignore=lambda path, names: others & {*names} if Path(path) == bundle else ()
    )
    files = {name: digest for name, digest in meta["files"].items() if name not in weights}
    described = {**meta, "files": files, BASE: base.with_files().as_dict()}
    (folder / "snugfit.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")


def on_its_base(folder: Path, meta: Mapping[str, Any], architecture: Any, extend: Extend | None) -> nn.Module:
    """Return the model of such a bundle: its base as it was trained on, with the adapter merged into it.

    Args:
        architecture: the class of transformers that the bundle names.
        extend: changes a base by techniques, from their entries.
    Raises:
        ModelError: the base is not here, or has other weights than those that the adapter was trained on.
    """
    base = Base(**meta[BASE])
    try:
        _, name, local = resolve(base.model, False, None)
    except ModelError as error:
        raise ModelError(
            "model",
            f"{folder} holds an adapter alone, and its base is not here: {error.problem}",
            f"Put the base there; the adapter is in {folder / ADAPTER}, for peft too.",
        ) from error
    if (here := _weights_of(base.model)) and base.files and here != dict(base.files):
        changed = sorted(key for key in {*here, *base.files} if here.get(key) != base.files.get(key))
        raise ModelError(
            "model",
            f"{folder} holds an adapter alone, and {changed[0]} of its base {base.model} is not the file that it was trained on",
            "Put the base back as it was.",
        )
    model: nn.Module = call(name, local, lambda **more: _read(folder, name, architecture, more))
    if base.quantized:
        assert extend is not None, "whoever loads such a bundle gives it"
        model = extend(model, base.quantized)
    return merged(load_adapter(model, folder / ADAPTER))


def _read(folder: Path, name: str, architecture: Any, more: Mapping[str, Any]) -> nn.Module:
    """Return the base in the architecture of the bundle; a head that it lacks is the adapter's, and so are rows of new tokens."""
    with quiet_transformers():
        from transformers import AutoConfig, GenerationConfig

        config: Any = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        own: Any = AutoConfig.from_pretrained(name, trust_remote_code=False, **more)
        rows = getattr(config, "vocab_size", None)  # a model of pictures has none
        if rows is not None:
            config.vocab_size = own.vocab_size
        model: Any = architecture.from_pretrained(
            name,
            config=config,
            dtype=getattr(config, "dtype", None) or torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            **more,
        )
        if rows is not None and rows != own.vocab_size:
            # rows that the adapter has not are as they were drawn for its training
            grow_embeddings(model, rows)
        if (folder / "generation_config.json").is_file():
            model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    loaded: nn.Module = model
    return loaded


def _weights_of(model: str) -> dict[str, str]:
    """Return digests of the files of weights of a model, in its folder or in the hub's cache."""
    _, name, local = resolve(model, False, None)
    files = model_files(name, local)
    return {name: digest for name, digest in files.items() if name.endswith(".safetensors")}
