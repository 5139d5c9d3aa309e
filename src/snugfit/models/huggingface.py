"""Models and tokenizers of transformers, by folder or name; nothing that is loaded can run code."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack
from unittest import mock

import torch

from snugfit.core.entry import entry_name
from snugfit.core.random import preserved_randomness, seed_device
from snugfit.core.technique import Technique
from snugfit.errors import ModelError
from snugfit.kit.adapters.embedding_rows import note_tokenizer
from snugfit.kit.precision.checkpoint_precision import forget_origin, remember_origin
from snugfit.kit.sharded_loading import KeepPart
from snugfit.models.bundle import changed_by
from snugfit.models.folders import (
    PROCESSOR,
    check_config,
    check_kernels,
    check_weights,
    read_processor,
)
from snugfit.models.hub import call, quiet_transformers, resolve
from snugfit.models.in_parts import read_in_formats, read_in_parts
from snugfit.models.timm_config import TIMM, timm_config
from snugfit.models.tokenizer import fit_tokenizer
from snugfit.models.transformers_import import model_class

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class LoadedModel:
    """A model as its library hands it out (in eval mode), and what to tell of how it was made."""

    model: PreTrainedModel
    messages: tuple[str, ...] = ()


TEXTS, PICTURES = "AutoModelForSequenceClassification", "AutoModelForImageClassification"
TOKENS, SOUNDS = "AutoModelForTokenClassification", "AutoModelForAudioClassification"
"""Classes of transformers that load a classifier."""

ANY_LABELS = "multi_label_classification"
"""The `problem_type` of transformers for rows with any number of labels."""


class LoadOptions(TypedDict, total=False):
    """The options of loading a model, which `load_classifier` describes."""

    tokenizer: PreTrainedTokenizerBase | None
    seed: int
    from_scratch: bool
    folder: Path | None
    techniques: Sequence[Technique]
    empty: bool
    keep: KeepPart | None


def load_classifier(
    source: str | Path,
    labels: Sequence[str],
    *,
    of: str = TEXTS,
    problem: str | None = None,
    headless: bool = False,
    **options: Unpack[LoadOptions],
) -> LoadedModel:
    """Load an encoder or decoder with a head for `labels`, in float32 but for what techniques load otherwise.

    A head that the source brings is kept if it was made for the same labels in the same order; otherwise a
    new one is drawn from `seed`, and said.

    Args:
        source: a folder, a name on the hub, or `config:FOLDER` for the architecture without its weights.
        of: what it classifies, as the class of transformers that loads it.
        problem: what transformers' own loss and pipelines are to take the logits for, as its `problem_type`; None for one class a row.
        headless: the head will be taken out, so that nothing is said of it.
        tokenizer: whose padding token the model is told, and whose vocabulary it must have room for.
        folder: where a relative path is looked for.
        techniques: those of the run; one that quantises has the weights come so, and the model is never whole in memory.
        empty: on the meta device, from its configuration alone: a model without weights.
        keep: what to keep of each weight that is read, as `core.parts` says; techniques that read weights want them whole.
    Raises:
        ModelError: it cannot be loaded.
    """
    brought: list[str] = []

    def set_head(config: PretrainedConfig) -> None:
        brought.extend(_name_classes(config, labels))
        config.update({"problem_type": problem})  # a head for another problem would keep its own loss
        if of == SOUNDS and getattr(config, "apply_spec_augment", False):
            # it would draw from NumPy's generator, which no resumed run has as it was; the task masks features itself
            config.update({"apply_spec_augment": False})

    drawn = _load(of, source, set_head, **options)
    if headless:
        return LoadedModel(drawn.model, drawn.messages_of_body)
    messages = list(drawn.messages)
    if _head_of_others(drawn, brought, labels):
        head = [name for name, _ in drawn.model.named_parameters() if not _in_body(drawn.model, name)]
        _renew(drawn, head, options.get("seed", 0))
        messages.append(_new_head(source, brought, labels))
    return LoadedModel(drawn.model, tuple(messages))


def load_segmenter(source: str | Path, labels: Sequence[str], **options: Unpack[LoadOptions]) -> LoadedModel:
    """Load a model that tells the class of each pixel, in float32; the arguments are those of `load_classifier`.

    A head that the source brings for other classes is kept but for its last layer, which is drawn anew, and said.

    Raises:
        ModelError: it cannot be loaded, or is no such model.
    """
    from snugfit.models.segmenter import class_weights

    brought: list[str] = []

    def check(config: PretrainedConfig) -> None:
        from transformers.models.auto.modeling_auto import (
            MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES as known,
        )

        if config.model_type not in known:
            raise ModelError(
                "model",
                f"{source} ({config.model_type}) does not tell the class of each pixel",
                f"Take a model of the kind {', '.join(known)}, such as nvidia/mit-b0, or unet.",
            )
        brought.extend(_name_classes(config, labels))

    drawn = _load("AutoModelForSemanticSegmentation", source, check, **options)
    messages = list(drawn.messages)
    if _head_of_others(drawn, brought, labels):
        _renew(drawn, class_weights(drawn.model), options.get("seed", 0))
        messages.append(_new_head(source, brought, labels))
    return LoadedModel(drawn.model, tuple(messages))


def _name_classes(config: PretrainedConfig, labels: Sequence[str]) -> list[str]:
    """Have a configuration name these classes; return those that it named."""
    brought = [str(label) for _, label in sorted((config.id2label or {}).items())]
    label2id = {label: place for place, label in enumerate(labels)}
    config.update({"id2label": dict(enumerate(labels)), "label2id": label2id, "num_labels": len(labels)})
    return brought


def _head_of_others(drawn: _Loaded, brought: Sequence[str], labels: Sequence[str]) -> bool:
    """Return whether the head that was read is for other classes, though for as many."""
    unnamed = [f"LABEL_{place}" for place in range(len(labels))]
    return drawn.weights_read and not drawn.new_head and list(brought) not in (list(labels), unnamed)


def _new_head(source: str | Path, brought: Sequence[str], labels: Sequence[str]) -> str:
    return f"the head of {source} is for {_short(brought)}: a new one is drawn for {_short(labels)}"


def load_encoder(source: str | Path, **options: Unpack[LoadOptions]) -> LoadedModel:
    """Load a model without a head, in float32; the arguments are those of `load_classifier`.

    A pooler, which makes something of the first token alone, is kept and never trained.

    Raises:
        ModelError: it cannot be loaded.
    """
    drawn = _load("AutoModel", source, **options)
    _freeze_pooler(drawn.model)
    # what it says of a head is of the pooler alone, as all else is body
    return LoadedModel(drawn.model, drawn.messages_of_body)


def _freeze_pooler(model: torch.nn.Module) -> None:
    pooler = getattr(model, "pooler", None)
    if isinstance(pooler, torch.nn.Module):
        pooler.requires_grad_(False)


def load_causal_lm(source: str | Path, **options: Unpack[LoadOptions]) -> LoadedModel:
    """Load a causal language model, in float32; the arguments are those of `load_classifier`.

    Raises:
        ModelError: it cannot be loaded, or its attention sees what it is to predict.
    """
    loaded = _load("AutoModelForCausalLM", source, **options)
    config = loaded.config
    causal = [module.is_causal for module in loaded.model.modules() if hasattr(module, "is_causal")]
    if causal and not any(causal):
        raise ModelError(
            "model",
            f"{source} ({config.model_type}) is an encoder: every token sees the ones after it, so there is nothing "
            "to predict",
            "Take a decoder, such as gpt2, for task: causal-lm.",
        )
    return LoadedModel(loaded.model, loaded.messages)


def load_masked_lm(source: str | Path, **options: Unpack[LoadOptions]) -> LoadedModel:
    """Load an encoder that predicts hidden tokens, in float32; the arguments are those of `load_classifier`.

    Raises:
        ModelError: it cannot be loaded, or is no such encoder.
    """

    def check(config: PretrainedConfig) -> None:
        from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

        if config.model_type not in MODEL_FOR_MASKED_LM_MAPPING_NAMES or config.is_encoder_decoder:
            raise ModelError(
                "model",
                f"{source} ({config.model_type}) is no encoder that predicts hidden tokens",
                "Take one, such as google-bert/bert-base-uncased.",
            )

    loaded = _load("AutoModelForMaskedLM", source, check, **options)
    return LoadedModel(loaded.model, loaded.messages)


def load_masked_pictures(
    source: str | Path, kinds: Sequence[str], **options: Unpack[LoadOptions]
) -> LoadedModel:
    """Load an encoder of pictures that draws hidden patches, in float32; the arguments are those of `load_classifier`.

    Args:
        kinds: types of models that do.
    Raises:
        ModelError: it cannot be loaded, or is no such encoder.
    """
    from snugfit.models.masked_encoder import prepare_config

    def prepare(config: PretrainedConfig) -> None:
        prepare_config(config, source, kinds)

    loaded = _load("AutoModelForMaskedImageModeling", source, prepare, **options)
    return LoadedModel(loaded.model, loaded.messages)


def load_text_to_text(source: str | Path, **options: Unpack[LoadOptions]) -> LoadedModel:
    """Load a model that reads one text and writes another, in float32; the arguments are those of `load_classifier`.

    Raises:
        ModelError: it cannot be loaded, or its configuration does not say how what it writes begins.
    """

    def check(config: PretrainedConfig) -> None:
        if not config.is_encoder_decoder:
            raise ModelError(
                "model",
                f"{source} ({config.model_type}) does not read one text and write another",
                "Take an encoder with a decoder, such as google-t5/t5-small or facebook/bart-base.",
            )
        if getattr(config, "decoder_start_token_id", None) is None:
            raise ModelError(
                "model",
                f"the configuration of {source} has no decoder_start_token_id, with which each text that it writes begins",
                "Give it one in config.json: the padding token's for T5, the end-of-sequence token's for BART.",
            )

    loaded = _load("AutoModelForSeq2SeqLM", source, check, **options)
    return LoadedModel(loaded.model, loaded.messages)


def input_settings(
    source: str | Path, *, from_scratch: bool = False, folder: Path | None = None
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return what a model's configuration says, and what it says of how pictures or sounds are made for it; None where that is nothing.

    Raises:
        ModelError: it cannot be loaded.
    """
    from_scratch, name, local = resolve(source, from_scratch, folder)
    config = _load_config(name, local, from_scratch)
    if local is None and not _is_of_timm(name, local, from_scratch):
        local = _fetched_processor(name)
    return config.to_dict(), None if local is None else read_processor(local)


def hears_sounds(config: Mapping[str, Any]) -> bool:
    """Return whether a configuration is that of a model that classifies sounds."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES

    return config.get("model_type") in MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES


def _fetched_processor(name: str) -> Path | None:
    """Return the folder in the hub's cache that a model's processor lies in; None where it has none."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    def load(local_files_only: bool = False) -> Path | None:
        try:
            return Path(hf_hub_download(name, PROCESSOR, local_files_only=local_files_only)).parent
        except EntryNotFoundError:
            if local_files_only:  # not in the cache, so perhaps on the hub
                raise
            return None

    return call(name, None, load)


@dataclass(frozen=True)
class _Loaded:
    """A model with its configuration; `new_head` where weights were read that have none, which the last message says."""

    model: PreTrainedModel
    config: PretrainedConfig
    messages: tuple[str, ...] = ()
    weights_read: bool = False
    new_head: bool = False

    @property
    def messages_of_body(self) -> tuple[str, ...]:
        return self.messages[:-1] if self.new_head else self.messages


def _load(
    auto: str,
    source: str | Path,
    prepare: Callable[[PretrainedConfig], None] = lambda _config: None,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    seed: int = 0,
    from_scratch: bool = False,
    folder: Path | None = None,
    techniques: Sequence[Technique] = (),
    empty: bool = False,
    keep: KeepPart | None = None,
) -> _Loaded:
    """Load a model by a class of transformers, in eval mode.

    Args:
        prepare: checks or changes its configuration before a model is made of it.
    """
    from_scratch, name, local = resolve(source, from_scratch, folder)
    config = _load_config(name, local, from_scratch)
    prepare(config)
    if empty:
        loaded = _Loaded(_empty(auto, name, local, config), config)
    elif from_scratch:
        loaded = _Loaded(_drawn(auto, name, local, config, seed), config)
    else:
        loaded = _read(auto, name, local, config, seed, techniques, keep)
    if tokenizer is not None:
        fit_tokenizer(loaded.model, tokenizer, source)
        note_tokenizer(loaded.model, tokenizer)
    return loaded


def _is_of_timm(name: str, local: Path | None, from_scratch: bool) -> bool:
    """Return whether timm itself says what a model is, so that the hub is not asked."""
    return local is None and from_scratch and name.startswith(TIMM)


def _load_config(name: str, local: Path | None, from_scratch: bool) -> PretrainedConfig:
    if local is not None:
        check_config(local)
    with quiet_transformers():
        if _is_of_timm(name, local, from_scratch):
            return timm_config(name)
        from transformers import AutoConfig

        config: PretrainedConfig = call(
            name, local, lambda **more: AutoConfig.from_pretrained(name, trust_remote_code=False, **more)
        )
    check_kernels({"attn_implementation": config._attn_implementation}, name)  # of one from the hub too
    return config


def _drawn(auto: str, name: str, local: Path | None, config: PretrainedConfig, seed: int) -> PreTrainedModel:
    """Return a model of which all weights are drawn from a seed."""
    device = torch.device("cpu")
    with quiet_transformers(), preserved_randomness(device):
        seed_device(seed, device)
        forget_origin(config)
        return _made(auto, name, local, config).eval()


def _empty(auto: str, name: str, local: Path | None, config: PretrainedConfig) -> PreTrainedModel:
    """Return the architecture on the meta device."""
    with quiet_transformers():
        from transformers.initialization import no_init_weights

        with torch.device("meta"), no_init_weights():  # there is nothing to draw
            model = _made(auto, name, local, config)
        model.tie_weights()  # what draws weights ties them too
    return model.eval()


def _made(auto: str, name: str, local: Path | None, config: PretrainedConfig) -> PreTrainedModel:
    """Return a model of a configuration alone, in float32."""
    kind: Any = model_class(auto)
    model: PreTrainedModel = call(
        name, local, lambda **_: kind.from_config(config, dtype=torch.float32, trust_remote_code=False)
    )
    return model


def _read(
    auto: str,
    name: str,
    local: Path | None,
    config: PretrainedConfig,
    seed: int,
    techniques: Sequence[Technique],
    keep: KeepPart | None,
) -> _Loaded:
    """Return a model with its weights; those that its files lack are drawn from a seed."""
    if local is not None:
        check_weights(local)
    device = torch.device("cpu")
    with quiet_transformers(), preserved_randomness(device):
        kind: Any = model_class(auto)
        seed_device(seed, device)
        loading = [
            each for each in techniques if type(each).loading is not Technique.loading or each.reads_files
        ]
        formats = _formats(kind, config, loading)
        # transformers' threads would read ahead of what is being quantised or cut, up to the whole model
        alone = {"HF_DEACTIVATE_ASYNC_LOAD": "1"} if loading or keep else {}
        with mock.patch.dict(os.environ, alone), read_in_parts(keep), read_in_formats(loading):
            model, loading_info = call(
                name,
                local,
                lambda **more: kind.from_pretrained(
                    name,
                    config=config,
                    use_safetensors=True,
                    trust_remote_code=False,
                    ignore_mismatched_sizes=True,
                    output_loading_info=True,
                    **{"dtype": torch.float32, **formats},
                    **more,
                ),
            )
        remember_origin(model.config, config.dtype)  # the loaded model's own says float32
    return _judge(name, model.eval(), config, loading_info, techniques)


def _formats(kind: Any, config: PretrainedConfig, loading: Sequence[Technique]) -> dict[str, Any]:
    """Return the arguments by which weights come in the formats that techniques give them."""
    if not loading:
        return {}
    with torch.device("meta"):
        model = kind.from_config(config, trust_remote_code=False)
    return {key: value for technique in loading for key, value in technique.loading(model).items()}


def _judge(
    name: str,
    model: Any,
    config: PretrainedConfig,
    loading_info: dict[str, Any],
    techniques: Sequence[Technique],
) -> _Loaded:
    """Tell a new head, which is said, from weights of another architecture, which are an error.

    Weights that were trained with a technique that the run has not, and compute something else without it, are said too.
    """
    changes = changed_by(loading_info["unexpected_keys"])
    mismatched = {entry[0] for entry in loading_info["mismatched_keys"]}
    new = sorted(set(loading_info["missing_keys"]) | mismatched)
    wrong = sorted(key for key in mismatched if _in_body(model, key))
    lacking = [key for key in new if _in_body(model, key)]
    total = sum(1 for _ in model.named_parameters())
    if wrong or len(new) > total / 2:
        what = f"the shape of {wrong[0]} differs" if wrong else f"{len(new)} of {total} tensors are missing"
        if changes:
            what += f", as they were trained with {', '.join(changes)}"
        raise ModelError(
            "model",
            f"the weights of {name} do not fit its configuration ({type(model).__name__}): {what}",
            "Name weights and a configuration that belong together.",
        )
    messages = [f"{key} is not among the weights of {name}: drawn anew" for key in lacking[:3]]
    if len(lacking) > 3:
        messages.append(f"and {len(lacking) - 3} more tensors of the body are drawn anew")
    own = {entry_name(type(each)) for each in techniques}
    messages += [
        f"{name} was trained with {each}, without which its weights compute something else: add it to techniques"
        for each in changes
        if each not in own
    ]
    head = [key for key in new if not _in_body(model, key)]
    if head:
        messages.append(
            f"the head is newly initialised ({', '.join(head[:4])}{' …' if len(head) > 4 else ''})"
        )
    return _Loaded(model, config, tuple(messages), weights_read=True, new_head=bool(head))


def _renew(loaded: _Loaded, keys: Sequence[str], seed: int) -> None:
    """Give these parameters the values that a new model of the same configuration would have."""
    model, device = loaded.model, torch.device("cpu")
    with quiet_transformers(), preserved_randomness(device):
        seed_device(seed, device)
        fresh = type(model)(loaded.config)
    drawn = dict(fresh.named_parameters())
    for key in keys:
        parameter = model.get_parameter(key)
        parent, _, name = key.rpartition(".")
        new = torch.nn.Parameter(drawn[key].detach().to(parameter.dtype), parameter.requires_grad)
        setattr(model.get_submodule(parent), name, new)


_HEADS = ("pooler.", "projector.", "classifier.", "decode_head.", "auxiliary_head.")
"""Of models that are no body with a head beside it: Whisper's classifier of sounds and UperNet among them."""


def _in_body(model: Any, key: str) -> bool:
    """Return whether a weight is none of the head, which timm's models have inside their body."""
    if model.base_model is model:
        return not key.startswith(_HEADS)
    body = f"{model.base_model_prefix}."
    if not key.startswith(body):
        return False
    own = getattr(model.base_model, "pretrained_cfg", None) or {}
    heads = own.get("classifier") or ()
    heads = (heads,) if isinstance(heads, str) else tuple(heads)
    return not key.removeprefix(body).startswith(tuple(f"{head}." for head in heads))


def _short(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
