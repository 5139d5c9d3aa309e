"""Adapters alone in a folder, in peft's format."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from snugfit.core.scalar_reads import is_fake
from snugfit.errors import ModelError, SettingError
from snugfit.kit.adapters.adapters import ADAPTER, adapted, put_in, require_peft

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
LOCAL_PREFIX = "./"
"""Before the name of a base in an exported adapter: a folder whose place is not told."""
_PREFIX = "base_model.model."


def save_adapter(model: nn.Module, folder: str | Path) -> None:
    """Write the adapters, and the head that trains with them, to `folder`.

    `peft.PeftModel.from_pretrained(base, folder)` puts them on the model they were trained on.

    Raises:
        SettingError: the model has no adapters: an empty file would look like a result.
    """
    from safetensors.torch import save_file

    if not adapted(model):
        raise SettingError(
            "adapter",
            f"the model has no adapters, so there is nothing to write to {folder}",
            "Add adapters, such as lora.",
        )
    config: Any = copy.deepcopy(model.peft_config[ADAPTER])  # type: ignore[index]
    config.inference_mode = True
    if config.base_model_name_or_path is None:
        config.base_model_name_or_path = getattr(getattr(model, "config", None), "_name_or_path", None)
    config.task_type = config.task_type or _task_type(model)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    state = _state(model, config.modules_to_save or ())
    tensors = {f"{_PREFIX}{name}": tensor.detach().clone().contiguous() for name, tensor in state.items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    config.save_pretrained(str(folder))


def _task_type(model: nn.Module) -> str | None:
    """Return peft's name for what a model of transformers is for, by which its Auto classes load; None for other models."""
    if not type(model).__module__.startswith("transformers."):
        return None
    from transformers.models.auto import modeling_auto

    for kind, mapping in _TASK_TYPES.items():
        if type(model).__name__ in getattr(modeling_auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES").values():
            return kind
    return None


_TASK_TYPES = {
    "SEQ_CLS": "SEQUENCE_CLASSIFICATION",
    "TOKEN_CLS": "TOKEN_CLASSIFICATION",
    "QUESTION_ANS": "QUESTION_ANSWERING",
    "SEQ_2_SEQ_LM": "SEQ_TO_SEQ_CAUSAL_LM",
    "CAUSAL_LM": "CAUSAL_LM",
}
"""Kinds of adapters by peft, and the part of the name of the table in which transformers lists such models."""


def adapter_config(folder: str | Path) -> Any:
    """Return the configuration of peft of the adapter in a folder.

    Raises:
        ModelError: the folder holds none.
        MissingExtra: peft is not installed.
    """
    require_peft()
    from peft import PeftConfig

    for file in (CONFIG, WEIGHTS):
        if not (Path(folder) / file).is_file():
            raise ModelError(
                "adapter",
                f"{folder} holds no adapter of peft (no {file} in it)",
                f"Name the folder that holds {file}.",
            )
    try:
        return PeftConfig.from_pretrained(str(folder))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _unreadable(Path(folder) / CONFIG, error) from error


def names_base(written: str, base: str) -> bool:
    """Return whether the configuration of an adapter names this base: its folder, its name on the hub, or in an export its folder's name alone."""
    same_name = written.startswith(LOCAL_PREFIX) and Path(written).name == Path(base).name
    return same_name or Path(written).resolve() == Path(base).resolve()


def _unreadable(file: Path, error: Exception) -> ModelError:
    return ModelError(
        "adapter", f"{file} cannot be read: {str(error).splitlines()[0]}", "Copy the adapter again."
    )


def load_adapter(model: nn.Module, folder: str | Path, *, dropout: float | None = None) -> nn.Module:
    """Put the adapters of `folder` on the model in place; into its own adapters if it has the same ones already.

    Args:
        dropout: of their inputs, in place of what they were trained with.
    Raises:
        ModelError: the folder holds none, or those of another model.
        MissingExtra: peft is not installed.
    """
    config = adapter_config(folder)
    from peft import set_peft_model_state_dict
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = Path(folder)
    if dropout is not None:
        config.lora_dropout = dropout
    head, config.modules_to_save = list(config.modules_to_save or ()), None
    config.inference_mode = False
    with _disable_current_modes():  # of a dry run, whose tensors have no numbers
        try:
            tensors = load_file(folder / WEIGHTS)
        except (OSError, SafetensorError) as error:
            raise _unreadable(folder / WEIGHTS, error) from error
    state = {name.removeprefix(_PREFIX): tensor for name, tensor in tensors.items()}
    try:
        if not adapted(model):
            put_in(model, config)
            config.modules_to_save = head or None
            for name in head:
                model.get_submodule(name).requires_grad_(True)
        own = _state(model, head)
    except (SettingError, AttributeError) as error:
        raise ModelError(
            "adapter",
            f"{folder} is of another model: {str(error).splitlines()[0]}",
            "Name an adapter of this model.",
        ) from error
    differing = set(own) ^ set(state)
    differing |= {name for name in set(own) & set(state) if own[name].shape != state[name].shape}
    if differing:
        names = ", ".join(sorted(differing)[:3])
        raise ModelError(
            "adapter",
            f"{folder} is of another model, by name or shape: {names}",
            "Name an adapter of this model.",
        )
    _check_meanings(model, config, folder)
    if not any(tensor.is_meta or is_fake(tensor) for tensor in own.values()):
        set_peft_model_state_dict(model, state, adapter_name=ADAPTER)
    return model


_MEANINGS = (
    *("lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern"),
    "trainable_token_indices",
)
"""Settings of peft that say what the tensors of an adapter stand for."""


def _check_meanings(model: nn.Module, config: Any, folder: Path) -> None:
    """See that the adapters of a model are scaled as those in the folder were, and are of the same tokens.

    Raises:
        ModelError: they are not.
    """
    own = model.peft_config[ADAPTER]  # type: ignore[index]
    for name in _MEANINGS:
        then, now = getattr(config, name, None), getattr(own, name, None)
        if then != now:
            raise ModelError(
                "adapter",
                f"{folder} was trained with {name} {then!r}, and the model's own adapters have {now!r}: the same "
                "numbers would stand for others",
                "Make them alike, or load it on the model without adapters.",
            )


def _state(model: nn.Module, head: Sequence[str]) -> dict[str, Tensor]:
    """Return the adapters' tensors by peft's names, and those of the modules that train in full."""
    from peft import get_peft_model_state_dict

    # saving the embeddings too would ask the hub whether their size has changed
    adapter_tensors: dict[str, Tensor] = get_peft_model_state_dict(
        model, adapter_name=ADAPTER, save_embedding_layers=False
    )
    for name in head:
        tensors = model.get_submodule(name).state_dict()
        adapter_tensors |= {f"{name}.{key}": tensor for key, tensor in tensors.items()}
    return adapter_tensors
