"""The bundle: a folder with a trained model, its tokenizer and what is needed to use it; no pickle."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from snugfit.errors import ModelError, RunFolderError, SettingError
from snugfit.kit.adapters.adapter_files import save_adapter
from snugfit.kit.adapters.adapters import adapted
from snugfit.kit.buffers import has_extra_state
from snugfit.kit.serialize import pack, unpack
from snugfit.models.adapter_bundle import ADAPTER, BASE, Extend, on_its_base
from snugfit.models.folders import CONFIG, WEIGHTS, check_config, check_weights, has_tokenizer
from snugfit.models.hub import quiet_transformers
from snugfit.models.mask_network import MaskNetwork
from snugfit.models.python_functions import load_python_model
from snugfit.models.series_network import SeriesNetwork
from snugfit.models.table_network import TableNetwork
from snugfit.models.tokenizer import load_tokenizer, save_tokenizer
from snugfit.models.torchvision_network import TorchvisionNetwork
from snugfit.models.transformers_import import model_class
from snugfit.system.code_consent import Code, named_code, require
from snugfit.system.disk_files import disk_problem, flush
from snugfit.system.json_text import parse_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

META = "snugfit.json"
FORMAT = 1
NETWORK, SERIES_NETWORK, MASK_NETWORK = "network", "series_network", "mask_network"
TORCHVISION_NETWORK = "torchvision_network"
"""Where the meta data describe a network for tables, series or masks, or one of torchvision, which is made of that again."""
NETWORKS: Mapping[str, type[TableNetwork | SeriesNetwork | MaskNetwork | TorchvisionNetwork]] = {
    NETWORK: TableNetwork,
    SERIES_NETWORK: SeriesNetwork,
    MASK_NETWORK: MaskNetwork,
    TORCHVISION_NETWORK: TorchvisionNetwork,
}
EXTENDED_BY = "extended_by"
"""Where the meta data say which techniques changed the model's modules, as a recipe writes them."""
_CHANGED_BY = "snugfit.changed_by."
"""Beginning of the names under which the weights say so too, to who reads them alone."""
DETERMINISTIC = "deterministic"
"""Where the meta data name the kind of device on which the run computed by deterministic operators."""
ENTRIES = "entries"
"""Where the meta data of a model of one's own say how many entries an example has that is a tuple, its labels among them."""
OWN_FUNCTIONS = "own_functions"
"""Where they say whether `sf.train` was given `collate` and `forward`, which no file holds."""
OWN_LOSS = "own_loss"
"""Where they name the `package.module:function` of the loss that a model of one's own was trained with, by which it is scored."""
LEARNED_BY = "learned_by"
"""Where they name such a loss of a model that is scored by its task's: a name alone, which nothing imports unasked."""
LOSS_WEIGHTS = "loss_weights"
"""Where they have the factors of the terms of a loss of the user's own."""
MADE_BUFFERS = "made_buffers"
"""Where the meta data name the buffers that the model's forward has made, or replaced by others of another shape."""
EXTRA_STATE = "extra_state"
"""Names of the files with what modules give by `get_extra_state`, where that is more than tensors."""

_NAMING = ("numerics", "collate", OWN_LOSS)
"""Meta data whose settings may name code, beside the model and what extended it."""


def save_bundle(
    folder: Path,
    model: nn.Module,
    meta: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    adapters_of: nn.Module | None = None,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Write a model, its tokenizer and `meta` (labels, columns, metrics …) to `folder`, in place of the bundle there.

    All is written to a sibling folder, fsynced, and renamed: a reader, or a process that is killed at any
    point, never meets half a bundle. Tied weights are stored once.

    Args:
        adapters_of: the model whose adapters were merged into `model`; they are written alone to `adapter/`, in peft's
            format. Nothing is where it has none.
        settings: further JSON files by their paths in the folder, in which other libraries look for how the model is used.
    Raises:
        RunFolderError: the folder cannot be written, or holds something else than a bundle.
        ModelError: the model holds state that safetensors cannot.
    """
    new, old = _siblings(folder)
    if folder.exists() and not (folder / META).is_file() and any(folder.iterdir()):
        raise RunFolderError(
            "best",
            f"the best model cannot be written to {folder}: it holds files and no {META}, so they are not Snugfit's",
            "Move them away.",
        )
    try:
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        by_library = not meta.get(EXTENDED_BY) and not any(map(has_extra_state, model.modules()))
        if is_transformers_model(model) and by_library:
            with quiet_transformers():
                model.save_pretrained(new)  # type: ignore[operator]
            _name_widest(model, new / CONFIG)
        else:
            if is_transformers_model(model):
                config: Any = copy.deepcopy(model.config)
                config.architectures = [type(model).__name__]
                config.save_pretrained(new)
            _save_plain(model, new / WEIGHTS, [next(iter(entry)) for entry in meta.get(EXTENDED_BY) or ()])
        if tokenizer is not None:
            save_tokenizer(tokenizer, new, meta.get("max_length") if meta.get("labels") else None)
        for name, values in (settings or {}).items():
            (new / name).parent.mkdir(exist_ok=True)
            (new / name).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        if adapters_of is not None and adapted(adapters_of):
            save_adapter(adapters_of, new / ADAPTER)
        weights = [*new.rglob("*.safetensors"), *new.glob(f"{EXTRA_STATE}.json")]
        files = {path.relative_to(new).as_posix(): _sha256(path) for path in sorted(weights)}
        text = json.dumps(_strict({**meta, "format": FORMAT, "files": files}), indent=2, allow_nan=False)
        (new / META).write_text(text + "\n", encoding="utf-8")
        for path in [*new.rglob("*"), new]:
            flush(path)
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.replace(folder, old)
        os.replace(new, folder)
        flush(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
    except Exception as error:
        if (problem := disk_problem(error)) is None:
            raise
        shutil.rmtree(new, ignore_errors=True)  # half a bundle, on a disk that may be full
        raise RunFolderError(
            "best",
            f"the best model cannot be written to {folder}: {problem}",
            "Free space, or name a folder that can be written.",
        ) from error


def load_bundle(
    folder: Path,
    *,
    model: nn.Module | None = None,
    search: Path | None = None,
    extend: Extend | None = None,
    allow_code: bool = False,
) -> tuple[nn.Module, dict[str, Any], PreTrainedTokenizerBase | None]:
    """Load a bundle: the model in eval mode, its meta data, and its tokenizer if it has one.

    Args:
        model: a model of the same architecture that takes the weights, for one that no
        `package.module:function` makes.
        search: where the module of such a function is looked for first.
        extend: changes the modules as techniques had, from their entries; a `model` that is given was changed already.
        allow_code: consent to run what the bundle names as `package.module:function`.
    Raises:
        CodeRefused: it names code, without consent.
        ModelError: no bundle, a damaged one, or one whose model cannot be made.
    """
    folder = find_bundle(folder)
    meta = read_meta(folder)
    for name, sha256 in meta.get("files", {}).items():
        if not (folder / name).is_file() or _sha256(folder / name) != sha256:
            raise ModelError(
                "model",
                f"{folder / name} is missing or damaged (its sha256 is not the recorded one)",
                "Copy the folder again from where it was made.",
            )
    resolved = (*_NAMING, *(() if model is not None else ("model", EXTENDED_BY)))
    code = named_code({key: meta.get(key) for key in resolved})
    require(code, folder / META, folder=search, allowed=allow_code)
    extended = meta.get(EXTENDED_BY)
    made_buffers = meta.get(MADE_BUFFERS, [])
    plain = extended or made_buffers or (folder / f"{EXTRA_STATE}.json").is_file()
    if meta.get(BASE):
        model = on_its_base(folder, meta, _architecture(folder), extend)
    elif (folder / CONFIG).is_file() and not plain:
        # the library's files may have other names than its modules: it alone knows which is which
        loaded = _load_transformers(folder)
        model = loaded if model is None else _load_state(model, loaded.state_dict(), folder)
    else:
        if model is None:
            model = _made_again(folder, meta, search)
            if extended:
                if extend is None:
                    raise ModelError(
                        "model",
                        f"{folder} holds modules that {', '.join(next(iter(entry)) for entry in extended)} added",
                        "Make the model, let the technique prepare it, and give it: sf.load(run, model=my_model)",
                    )
                model = extend(model, extended)
        _load_plain(model, folder, made_buffers)
    tokenizer = load_tokenizer(folder) if has_tokenizer(folder) else None
    return model.eval(), meta, tokenizer


def _made_again(folder: Path, meta: Mapping[str, Any], search: Path | None) -> nn.Module:
    """Return the model as its library or its function makes it, with new weights."""
    if (folder / CONFIG).is_file():
        check_config(folder)
        with quiet_transformers():
            from transformers import AutoConfig

            config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            made: nn.Module = _architecture(folder)(config)
        return made
    for name, network in NETWORKS.items():
        if meta.get(name):
            return network.of(meta[name]).make()
    if not meta.get("model"):
        raise ModelError(
            "model",
            f"{folder} holds the weights of a model made in Python, and no package.module:function to make it again",
            "Give the model: sf.load(run, model=my_model)",
        )
    return load_python_model(meta["model"], folder=search)


def has_own_architecture(folder: Path) -> bool:
    """Return whether a bundle holds weights of a module that was made in Python, which neither a library nor a function makes again."""
    meta = read_meta(folder)
    return not (folder / CONFIG).is_file() and not any(map(meta.get, ("model", *NETWORKS)))


def code_in(folder: Path) -> Code:
    """Return the settings of a bundle that name code, which whoever uses it has to consent to; none where there is no bundle."""
    with suppress(ModelError):
        meta = read_meta(find_bundle(folder))
        return named_code({key: meta.get(key) for key in (*_NAMING, "task", "model", EXTENDED_BY)})
    return {}


def find_bundle(folder: Path) -> Path:
    """Return the folder to read: `folder`, or the one before it if a save was killed between its two renames.

    Raises:
        ModelError: there is neither.
    """
    old = _siblings(folder)[1]
    for candidate in (folder, old):
        if (candidate / META).is_file():
            return candidate
    raise ModelError(
        "model",
        f"{folder} is no bundle of Snugfit (no {META} in it)",
        "Name the folder best/ of a finished run.",
    )


def read_meta(folder: Path) -> dict[str, Any]:
    """Return the meta data of a bundle.

    Raises:
        ModelError: they cannot be read, or are of a format this version does not know.
    """
    try:
        meta = parse_json((folder / META).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(
            "model",
            f"{folder / META} cannot be read: {error}",
            "Copy the folder again from where it was made.",
        ) from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        stored_format = meta.get("format") if isinstance(meta, dict) else None
        raise ModelError(
            "model",
            f"{folder / META} has format {stored_format}; this version of Snugfit reads format {FORMAT}",
            "Use the version that wrote it, or train anew.",
        )
    return meta


def is_transformers_model(model: nn.Module) -> bool:
    """Return whether transformers can make the model again from its configuration; a user's subclass it cannot."""
    return type(model).__module__.startswith("transformers.") and hasattr(model, "save_pretrained")


def changed_by(keys: Iterable[str]) -> list[str]:
    """Return the techniques that had changed a model, from the names of its weights, as a recipe names them."""
    return sorted(key.removeprefix(_CHANGED_BY) for key in keys if key.startswith(_CHANGED_BY))


def _save_plain(model: nn.Module, path: Path, techniques: Sequence[str]) -> None:
    """Write the weights, and a 0 in the name of each technique that changed the model: a weight that no other library expects."""
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {f"{_CHANGED_BY}{name}": torch.zeros(1) for name in techniques}
    first: dict[tuple[Any, ...], str] = {}
    tied: dict[str, str] = {}
    state = model.state_dict()
    _save_extra_states({name: v for name, v in state.items() if not isinstance(v, Tensor)}, path.parent)
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):
            continue
        place = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        same = first.setdefault(place, name) if tensor.numel() else name
        if same != name:
            tied[name] = same
            continue
        whole = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
        # safetensors refuses views into a storage that others share
        tensors[name] = tensor.detach() if whole else tensor.detach().clone().contiguous()
    save_file(tensors, path, metadata={"format": "pt", **tied})


def _save_extra_states(states: Mapping[str, Any], folder: Path) -> None:
    from safetensors.torch import save_file

    if not states:
        return
    try:
        packed = pack({EXTRA_STATE: states})
    except SettingError as error:
        raise ModelError(
            "model",
            f"its extra state cannot be stored without a pickle ({error})",
            "Make it a buffer, or leave it out of get_extra_state.",
        ) from error
    (folder / f"{EXTRA_STATE}.json").write_text(json.dumps(packed.values[EXTRA_STATE]), encoding="utf-8")
    tensors = packed.tensors[EXTRA_STATE]
    if tensors:
        # safetensors refuses what overlaps
        copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        save_file(copies, folder / f"{EXTRA_STATE}.safetensors")


def _extra_states(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    path = folder / f"{EXTRA_STATE}.json"
    if not path.is_file():
        return {}
    tensors = path.with_suffix(".safetensors")
    packed = parse_json(path.read_text(encoding="utf-8"))
    states: dict[str, Any] = unpack(packed, load_file(tensors) if tensors.is_file() else {}, folder)
    return states


def _make_buffers(model: nn.Module, names: Sequence[str], state: Mapping[str, Tensor]) -> None:
    """Let the model have buffers that its forward would make, so that their values can be loaded."""
    for name in names:
        owner_name, _, leaf = name.rpartition(".")
        owner = model.get_submodule(owner_name)
        if leaf in owner._buffers:
            owner._buffers[leaf] = torch.empty_like(state[name])
        else:
            owner.register_buffer(leaf, torch.empty_like(state[name]))


def _load_plain(model: nn.Module, folder: Path, made_buffers: Sequence[str] = ()) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / WEIGHTS, framework="pt") as file:
            names = [name for name in file.keys() if not name.startswith(_CHANGED_BY)]  # noqa: SIM118 (not a mapping)
            state = {name: file.get_tensor(name) for name in names}
            tied = {name: same for name, same in (file.metadata() or {}).items() if same in state}
    except (OSError, SafetensorError) as error:
        raise ModelError(
            "model",
            f"{folder / WEIGHTS} cannot be read: {error}",
            "Copy the folder again from where it was made.",
        ) from error
    state |= {name: state[same] for name, same in tied.items()}
    _make_buffers(model, [name for name in made_buffers if name in state], state)
    state |= _extra_states(folder)
    _load_state(model, state, folder)


def _load_state(model: nn.Module, state: Mapping[str, Any], folder: Path) -> nn.Module:
    try:
        model.load_state_dict(state, strict=True)
    except RuntimeError as error:
        what = "; ".join(line.strip() for line in str(error).splitlines()[1:4])
        raise ModelError(
            "model",
            f"the weights in {folder} do not fit {type(model).__name__}: {what}",
            "Put its code back as it was, if it has changed since.",
        ) from error
    return model


def _load_transformers(folder: Path) -> nn.Module:
    check_config(folder)
    check_weights(folder)
    with quiet_transformers():
        from safetensors import SafetensorError

        try:
            model, loading_info = _architecture(folder).from_pretrained(
                folder,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                dtype="auto",
                output_loading_info=True,
            )
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise ModelError(
                "model",
                f"{folder} cannot be loaded: {str(error).splitlines()[0]}",
                "Copy the folder again from where it was made.",
            ) from error
    wrong = (
        sorted(loading_info["missing_keys"])
        + sorted(map(str, loading_info["mismatched_keys"]))
        + sorted(loading_info["unexpected_keys"])
    )
    if wrong:
        raise ModelError(
            "model",
            f"{folder} is damaged: its weights and its configuration differ in {wrong[0]}",
            "Copy it again from where it was made.",
        )
    loaded: nn.Module = model
    _as_stored_(loaded, folder)
    return loaded


def _name_widest(model: nn.Module, config: Path) -> None:
    """Have a configuration name the widest type of a model's weights, in place of the first one's.

    Whoever loads them in it loses nothing.
    """
    types = {each.dtype for each in model.parameters() if each.is_floating_point()}
    if len(types) > 1:
        values = parse_json(config.read_text(encoding="utf-8"))
        values["dtype"] = str(functools.reduce(torch.promote_types, types)).removeprefix("torch.")
        config.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _as_stored_(model: nn.Module, folder: Path) -> None:
    """Give each floating weight the type that it is stored in: transformers loads all in one."""
    from safetensors import safe_open

    stored: dict[str, torch.dtype] = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as weights:
            for name in weights.keys():  # noqa: SIM118  # it is no mapping
                if (dtype := _STORED_TYPES.get(weights.get_slice(name).get_dtype())) is not None:
                    stored[name] = dtype
    for name, parameter in model.named_parameters(remove_duplicate=False):  # tied ones are stored by one name
        parameter.data = parameter.data.to(stored.get(name, parameter.dtype))


_STORED_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def _architecture(folder: Path) -> Any:
    """Return the class of transformers that the configuration names."""
    import transformers

    named = parse_json((folder / CONFIG).read_text(encoding="utf-8")).get("architectures") or [""]
    kind = model_class(named[0])
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):  # not any function
        raise ModelError(
            "model",
            f"{folder} needs {named[0] or 'an architecture it does not name'}, which transformers "
            f"{transformers.__version__} does not have",
            "Install the version of transformers that has it.",
        )
    return kind


def _siblings(folder: Path) -> tuple[Path, Path]:
    """Return where a bundle is written before it is renamed, and where the one before it waits until then."""
    return folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")


def _strict(value: Any) -> Any:
    """Return the value with non-finite floats as the strings that the spool writes for them."""
    if isinstance(value, Mapping):
        return {str(key): _strict(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
