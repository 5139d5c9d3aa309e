"""Watch tokenizers, the tokens that reach a model, and the labels of causal language models."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from snugfit.doctor.observe.attribute_patches import Patches
from snugfit.doctor.observe.script_events import HeadTokens, Labels, Tokenized
from snugfit.doctor.observe.watch_log import Recorder, where

if TYPE_CHECKING:
    from snugfit.doctor.observe.watch_modules import ModuleWatch

_Call = Callable[..., Any]
SMALL_VOCABULARY = 16
_IGNORED = -100


def look_at_tokens(recorder: Recorder, embedding: nn.Embedding, tokens: Tensor) -> None:
    """With which token the rows of an embedding's input begin; positions and segments are not tokens."""
    few = tokens.dim() != 2 or tokens.shape[0] < 2 or tokens.shape[1] < 4
    if few or embedding.num_embeddings <= SMALL_VOCABULARY or bool((tokens == tokens[:1]).all()):
        return
    recorder.token_batch(tokens, embedding.num_embeddings)
    if not torch.is_grad_enabled():
        return
    first = int(tokens[0, 0])
    same = (tokens == first).all(0).long().cumprod(0)
    times = int(same.sum())
    special = recorder.special_tokens.get(first, "")
    recorder.add(HeadTokens(where(), recorder.log.updates, first, times, special, recorder.expected_token))


def look_at_labels(recorder: Recorder, module: nn.Module, kwargs: dict[str, Any]) -> None:
    """Look whether the labels of a causal language model, which shifts them itself, are shifted already."""
    kind = type(module).__name__
    if not kind.endswith(("ForCausalLM", "LMHeadModel")):
        return
    tokens, labels = kwargs.get("input_ids"), kwargs.get("labels")
    if not isinstance(tokens, Tensor) or not isinstance(labels, Tensor) or labels.shape != tokens.shape:
        return
    recorder.add(
        Labels(
            where(),
            recorder.log.updates,
            shifted=_share(labels[:, :-1], tokens[:, 1:]),
            same=_share(labels, tokens),
        )
    )


def _share(labels: Tensor, tokens: Tensor) -> float:
    counted = labels != _IGNORED
    return float((labels == tokens)[counted].float().mean()) if bool(counted.any()) else 0.0


def watch_texts(recorder: Recorder, modules: ModuleWatch, patches: Patches) -> None:
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
                    modules.checkpoint_dtypes[recorder.number(model)] = _dtype_on_disk(model, name)
            return model

        return from_pretrained

    def tokenizers_imported(module: ModuleType) -> None:
        patches.wrap(module.PreTrainedTokenizerBase, "__call__", tokenizing)

    def models_imported(module: ModuleType) -> None:
        patches.wrap(module.PreTrainedModel, "from_pretrained", loading)

    patches.after_import("transformers.tokenization_utils_base", tokenizers_imported)
    patches.after_import("transformers.modeling_utils", models_imported)


def _note(recorder: Recorder, tokenizer: Any, encoded: Any, options: dict[str, Any]) -> None:
    for name in ("cls", "bos"):
        token = getattr(tokenizer, f"{name}_token_id", None)
        if token is not None:
            recorder.special_tokens.setdefault(token, name)
            if name == "cls":
                recorder.expected_token = "cls"
    parts = getattr(encoded, "encodings", None)
    if not parts or not options.get("truncation") or options.get("return_overflowing_tokens"):
        return
    cut = sum(bool(part.overflowing) for part in parts)
    recorder.add(Tokenized(where(), recorder.log.updates, len(parts), cut, max(map(len, parts))))


def _dtype_on_disk(model: Any, name: Any) -> str:
    """Return the dtype that the configuration beside the weights names; `model.config` names the one that was asked for."""
    try:
        saved = type(model.config).get_config_dict(name)[0]
    except (OSError, ValueError):
        return ""
    return str(saved.get("dtype") or saved.get("torch_dtype") or "").removeprefix("torch.")
