"""Watch tokenizers, the tokens that reach a model, and the labels of causal language models."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.doctor.observe.events.run_events import EndSeen
from snugfit.doctor.observe.events.script_events import Loss
from snugfit.doctor.observe.events.text_events import HeadTokens, Labels, MaskedTokens, Tokenized
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where
from snugfit.doctor.observe.watchers.texts.vocabularies import end_of
from snugfit.doctor.observe.watchers.weights.loaded_weights import LoadedWeights

_Call = Callable[..., Any]
FEW, SMALL_VOCABULARY = 4, 16
"""Entries of an embedding that are segments or types, not tokens; and those that are letters, unless a model of the script reads words too."""
_IGNORED = -100


def look_at_tokens(recorder: Recorder, embedding: nn.Embedding, tokens: Tensor) -> None:
    """Note the token that the rows of an embedding's input begin with; positions, distances of places to each other, and segments are not tokens."""
    few = tokens.dim() != 2 or tokens.shape[0] < 2 or tokens.shape[1] < 4
    size = embedding.num_embeddings
    types = size <= FEW or (size <= SMALL_VOCABULARY and size < recorder.tokens.vocabulary)
    if few or types or bool((tokens == tokens[:1]).all()):
        return
    if bool((tokens[1:, 1:] == tokens[:-1, :-1]).all()):  # distances, as those of T5's attention
        return
    recorder.tokens.note(embedding, tokens)
    if not torch.is_grad_enabled():
        return
    first = int(tokens[0, 0])
    same = (tokens == first).all(0).long().cumprod(0)
    times = int(same.sum())
    special = recorder.special_tokens.get(first, "")
    at = recorder.doubled_at.get(first, "") if times > 1 else ""
    recorder.add(
        HeadTokens(at or where(), recorder.log.updates, first, times, special, recorder.expected_token)
    )


def look_at_ends(recorder: Recorder, loss: Loss, labels: Tensor) -> None:
    """Note how many labels of the first updates are the token that ends a text, in a vocabulary of the script's own."""
    if not (recorder.detailed and loss.grad and loss.ahead == 1 and loss.counted):
        return
    if loss.classes not in recorder.ends:
        recorder.ends[loss.classes] = end_of(loss.classes)
    known = recorder.ends[loss.classes]
    if known is not None:
        number, name = known
        ends = int((labels == number).sum())
        recorder.add(EndSeen(loss.at, loss.update, name, ends, loss.counted, loss.ignored))


def named_arguments(forward: _Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of a module of which this is the function, those without a name too."""
    return {**dict(zip(_parameters_of(forward), args, strict=False)), **kwargs} if args else kwargs


@lru_cache(maxsize=1024)
def is_of_transformers(order: tuple[type, ...]) -> bool:
    """Return whether a class is one of transformers', or made of one, by its order of resolution."""
    return any(each.__module__.startswith("transformers.") for each in order)


@lru_cache(maxsize=256)
def _parameters_of(forward: _Call) -> tuple[str, ...]:
    return tuple(inspect.signature(forward).parameters)[1:]


def look_at_masks(recorder: Recorder, module: nn.Module, kwargs: dict[str, Any]) -> None:
    """Look which tokens a model of transformers is told to leave out, and which labels count: of padding, and of the end."""
    config, tokens = getattr(module, "config", None), kwargs.get("input_ids")
    if not torch.is_grad_enabled() or not isinstance(tokens, Tensor) or tokens.dim() != 2:
        return
    mask, labels = kwargs.get("attention_mask"), kwargs.get("labels")
    padding = getattr(config, "pad_token_id", None)
    unmasked = 0
    blind = mask is None or (
        isinstance(mask, Tensor) and mask.shape == tokens.shape and bool((mask == 1).all())
    )
    if blind and isinstance(padding, int) and _reads_both_ways(module):
        at_the_end = (tokens == padding).flip(1).long().cumprod(1).sum(1)
        padded = at_the_end[at_the_end > 1]
        # to a length that no row has, all of them
        differ = bool((at_the_end == 0).any()) or (len(padded) == len(tokens) and len(padded.unique()) > 1)
        unmasked = int(padded.sum()) if differ else 0
    scored = scored_padding = ends = scored_ends = 0
    if isinstance(mask, Tensor) and isinstance(labels, Tensor) and mask.shape == tokens.shape == labels.shape:
        counts, visible = labels != _IGNORED, mask != 0
        ending = (
            _is_any(tokens, recorder.end_tokens | _numbers(getattr(config, "eos_token_id", None))) & visible
        )
        ending[:, 0] = False  # some models begin with the token that ends
        scored, scored_padding = int(counts.sum()), int((counts & ~visible).sum())
        ends, scored_ends = int(ending.sum()), int((ending & counts).sum())
    recorder.add(
        MaskedTokens(
            where(), recorder.log.updates, scored, scored_padding, ends, scored_ends, unmasked, tokens.numel()
        )
    )


def _reads_both_ways(module: nn.Module) -> bool:
    """Return whether a model attends to what follows a token, so that padding behind a text reaches it."""
    config, name = getattr(module, "config", None), type(module).__name__
    takes_mask = "attention_mask" in inspect.signature(module.forward).parameters
    if getattr(config, "is_encoder_decoder", False):  # its encoder does
        return takes_mask and name.endswith("ForConditionalGeneration")
    decodes = getattr(config, "is_decoder", False)
    kinds = ("bert", "electra", "deberta", "mpnet", "distil", "albert", "roformer", "camembert")
    return takes_mask and not decodes and any(kind in name.lower() for kind in kinds)


def _numbers(value: Any) -> set[int]:
    return {value} if isinstance(value, int) else set(value) if isinstance(value, list | tuple) else set()


def _is_any(tokens: Tensor, numbers: set[int]) -> Tensor:
    return torch.isin(tokens, torch.tensor(sorted(numbers), dtype=tokens.dtype, device=tokens.device))


def look_at_labels(recorder: Recorder, module: nn.Module, kwargs: dict[str, Any]) -> None:
    """Look whether the labels of a causal language model, which shifts them itself, are shifted already."""
    kind = type(module).__name__
    if getattr(getattr(module, "config", None), "is_encoder_decoder", False):
        _look_at_ends(recorder, module.config, kwargs.get("labels"))
    if not kind.endswith(("ForCausalLM", "LMHeadModel")):
        return
    tokens, labels = kwargs.get("input_ids"), kwargs.get("labels")
    if not isinstance(tokens, Tensor) or not isinstance(labels, Tensor) or labels.shape != tokens.shape:
        return
    bare = (labels == _IGNORED).all(1)
    mask = kwargs.get("attention_mask")
    whole = (
        mask.bool().all(1)
        if isinstance(mask, Tensor) and mask.shape == tokens.shape
        else torch.zeros_like(bare)
    )
    recorder.add(
        Labels(
            where(),
            recorder.log.updates,
            shifted=_share(labels[:, :-1], tokens[:, 1:]),
            same=_share(labels, tokens),
            rows=len(labels),
            bare=int(bare.sum()) if torch.is_grad_enabled() else 0,
            cut=int((bare & whole).sum()) if torch.is_grad_enabled() else 0,
        )
    )


def _look_at_ends(recorder: Recorder, config: Any, labels: Any) -> None:
    """Note how many labels of a decoder are the token that ends a text."""
    ending = _numbers(getattr(config, "eos_token_id", None))
    if not (torch.is_grad_enabled() and ending and isinstance(labels, Tensor) and labels.dim() == 2):
        return
    counts = labels != _IGNORED
    ends, counted = int((_is_any(labels, ending) & counts).sum()), int(counts.sum())
    name = f"the end of a text, {min(ending)}"
    recorder.add(EndSeen(where(), recorder.log.updates, name, ends, counted, labels.numel() - counted))


def _share(labels: Tensor, tokens: Tensor) -> float:
    counted = labels != _IGNORED
    return float((labels == tokens)[counted].float().mean()) if bool(counted.any()) else 0.0


def watch_texts(recorder: Recorder, loaded: LoadedWeights, patches: Patches) -> None:
    """Follow the tokenizers and pretrained models of transformers, where they are imported."""

    def tokenizing(original: _Call) -> _Call:
        def __call__(tokenizer: Any, *args: Any, **kwargs: Any) -> Any:
            encoded = original(tokenizer, *args, **kwargs)
            with recorder.guard():
                _note(recorder, tokenizer, encoded, kwargs)
            return encoded

        return __call__

    def loading(original: _Call) -> _Call:
        def from_pretrained(kind: Any, *args: Any, **kwargs: Any) -> Any:
            model = original(kind, *args, **kwargs)
            with recorder.guard():
                name = args[0] if args else kwargs.get("pretrained_model_name_or_path")
                if isinstance(model, nn.Module):
                    loaded.dtypes[recorder.number(model)] = _dtype_on_disk(model, name)
            return model

        return from_pretrained

    def tokenizers_imported(module: ModuleType) -> None:
        patches.wrap(module.PreTrainedTokenizerBase, "__call__", tokenizing)

    def models_imported(module: ModuleType) -> None:
        patches.wrap(module.PreTrainedModel, "from_pretrained", loading)

    patches.after_import("transformers.tokenization_utils_base", tokenizers_imported)
    patches.after_import("transformers.modeling_utils", models_imported)


def _note(recorder: Recorder, tokenizer: Any, encoded: Any, options: dict[str, Any]) -> None:
    recorder.end_tokens |= _numbers(getattr(tokenizer, "eos_token_id", None))
    for name in ("cls", "bos"):
        token = getattr(tokenizer, f"{name}_token_id", None)
        if token is not None:
            recorder.special_tokens.setdefault(token, name)
            if name == "cls":
                recorder.expected_token = "cls"
    _note_doubled(recorder, encoded)
    parts = getattr(encoded, "encodings", None)
    if not parts or not options.get("truncation") or options.get("return_overflowing_tokens"):
        return
    cut = sum(bool(part.overflowing) for part in parts)
    recorder.add(Tokenized(where(), recorder.log.updates, len(parts), cut, max(map(len, parts))))


def _note_doubled(recorder: Recorder, encoded: Any) -> None:
    """Note where a tokenizer was given a text that begins with the special token which it puts before a text."""
    rows = encoded.get("input_ids") if hasattr(encoded, "get") else None
    first = rows[0] if rows is not None and len(rows) else None
    if isinstance(first, int):
        first = rows
    tokens = list(first[:2]) if first is not None and hasattr(first, "__getitem__") else []
    numbers = [
        int(each) for each in tokens if isinstance(each, int) or getattr(each, "numel", lambda: 0)() == 1
    ]
    if len(numbers) == 2 and numbers[0] == numbers[1] and numbers[0] in recorder.special_tokens:
        recorder.doubled_at.setdefault(numbers[0], where())


def _dtype_on_disk(model: Any, name: Any) -> str:
    """Return the dtype that the configuration beside the weights names; `model.config` names the one that was asked for."""
    try:
        saved = type(model.config).get_config_dict(name)[0]
    except (OSError, ValueError):
        return ""
    return str(saved.get("dtype") or saved.get("torch_dtype") or "").removeprefix("torch.")
