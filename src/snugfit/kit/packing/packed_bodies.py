"""The bodies of models that can compute packed examples, and one call of such a body."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.scalar_reads import read
from snugfit.core.tree import leaves, map_tree
from snugfit.errors import SettingError
from snugfit.kit.packing.example_attention import SPANS, Spans, is_there
from snugfit.kit.packing.packed_rows import Packed
from snugfit.kit.patched_forward import replaced_forward

_TORCH = (nn.TransformerEncoder, nn.TransformerEncoderLayer)
_HF_INPUTS = {"input_ids", "attention_mask", "position_ids"}
_FOREIGN = ("position_ids", "past_key_values", "encoder_hidden_states", "output_attentions")


def bodies(model: nn.Module) -> dict[str, nn.Module]:
    """Return the parts of a model that can be packed, by name: bodies of transformers' models, and torch's own encoders.

    >>> list(bodies(nn.Sequential(nn.Linear(8, 8), nn.TransformerEncoderLayer(8, 2))))
    ['1']
    """
    candidates = {name: module for name, module in model.named_modules() if _is_packable(module)}
    stock = {name for name, module in candidates.items() if not isinstance(module, _TORCH)}

    def within(inner: str, outer: str) -> bool:
        return inner != outer and (not outer or inner.startswith(f"{outer}."))

    # the innermost body of transformers, beside the heads around it; the outermost encoder of torch, with all its layers
    return {
        name: module
        for name, module in candidates.items()
        if not (name in stock and any(within(other, name) for other in stock))
        and not (name not in stock and any(within(name, other) for other in candidates))
    }


def call_of(
    body: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> BodyCall:
    """Return one call of a body, from the arguments that it was given."""
    kind = TorchCall if isinstance(body, _TORCH) else StockCall
    return kind(body, forward, args, kwargs)


class BodyCall:
    """A call of a body with padded examples, which can be run packed instead."""

    def __init__(
        self, body: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.body, self.forward = body, forward
        bound = inspect.signature(forward).bind(*args, **kwargs).arguments
        self.given: dict[str, Any] = {**bound, **bound.pop("kwargs", {})}
        self.one_row = False

    def layout(self, assume: tuple[int, ...] | None, mask: Tensor | None = None) -> Packed | None:
        """Return the packed rows; None where they would be as many as the examples.

        Args:
            assume: how long the examples are where tensors have no numbers; all full, if None.
            mask: the tensor of whose rows `assume` says that they are padded on the right, and how long they are; a body that
                gets it itself has nothing to read.
        """
        real = self.real()
        if real is None:
            return None
        examples, tokens = real.shape
        if assume is None or len(assume) != examples:
            assume, mask = (tokens,) * examples, None
        if mask is not None and self.given.get("attention_mask") is mask:
            lengths, hole_count = [*assume], 0
        else:
            holes = (real[:, 1:] & ~real[:, :-1]).sum()
            *lengths, hole_count = read(torch.cat([real.sum(dim=1), holes.unsqueeze(0)]), assume=[*assume, 0])
        if hole_count:
            raise SettingError(
                "packing",
                f"in {hole_count} places of {examples} rows a token that counts follows one that does not. Only rows that "
                "are padded on the right can be packed",
                "Set tokenizer.padding_side = 'right', or remove it.",
            )
        if max(lengths) == 0:
            return None
        packed = Packed.of(lengths, tokens, real.device, self.one_row)
        return packed if len(packed.rows) < examples else None

    def real(self) -> Tensor | None:
        """Return which tokens are no padding, shape (examples, tokens); None where nothing says so."""
        raise NotImplementedError

    def inputs(self, examples: int, tokens: int) -> dict[str, Tensor]:
        """Return what there is one entry of for each token, (examples, tokens, ...), by name."""
        raise NotImplementedError

    def run(self, layout: Packed, inputs: Mapping[str, Tensor]) -> Any:
        """Return what the body returns of these inputs, computed in packed rows, as of the padded batch."""
        raise NotImplementedError

    def examples_first(self, outputs: Any) -> Any:
        """Return the outputs with one entry an example first, where another layout was given."""
        return outputs


class StockCall(BodyCall):
    """A body of transformers: token ids to hidden states.

    Positions that begin anew tell a causal model what belongs together; an encoder gets a mask that does.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        for name in _FOREIGN:
            if self.given.get(name) is not None and self.given[name] is not False:
                raise SettingError(
                    "packing",
                    f"{type(self.body).__name__} is called with {name}, which cannot be packed",
                    "Remove it from the batch, or packing.",
                )
        config: Any = self.body.config
        self.implementation: str = config._attn_implementation
        self.one_row = self.implementation.startswith(
            "flash"
        )  # its kernels look for examples in one row only
        self.by_example = attends_by_example(self.body) and any(
            each.kind is each.VAR_KEYWORD for each in inspect.signature(self.forward).parameters.values()
        )

    def real(self) -> Tensor | None:
        mask = self.given.get("attention_mask")
        return mask != 0 if isinstance(mask, Tensor) and mask.ndim == 2 else None

    def inputs(self, examples: int, tokens: int) -> dict[str, Tensor]:
        return {
            name: value
            for name, value in self.given.items()
            if isinstance(value, Tensor)
            and value.shape[:2] == (examples, tokens)
            and name != "attention_mask"
        }

    def run(self, layout: Packed, inputs: Mapping[str, Tensor]) -> Any:
        arguments = {**self.given, **{name: layout.pack(value) for name, value in inputs.items()}}
        arguments["position_ids"] = layout.positions + _first_position(self.body)
        mask, causal = self._mask(layout)
        arguments["attention_mask"] = mask
        if self.by_example and mask is not None:
            arguments[SPANS] = Spans(layout.offsets, layout.longest, (len(layout.rows), layout.width), causal)
        if "use_cache" in inspect.signature(self.forward).parameters or "past_key_values" in arguments:
            arguments["use_cache"] = False
        pooled: list[Tensor] = []
        pooler = getattr(self.body, "pooler", None)
        with nullcontext() if pooler is None else _unpacked_before(pooler, layout, pooled):
            outputs = self.forward(**arguments)

        def unpack(tensor: Tensor) -> Tensor:
            aside = any(tensor is one for one in pooled) or not layout.is_packed(tensor)
            return tensor if aside else layout.unpack(tensor)

        return map_tree(unpack, outputs)

    def _mask(self, layout: Packed) -> tuple[Tensor | None, bool]:
        """Return which tokens see which, and whether none sees a later one.

        The mask is None where the model finds it by the positions, as windows and flash kernels need it.
        """
        config: Any = self.body.config
        causal = any(getattr(module, "is_causal", False) for module in self.body.modules())
        if self.one_row:
            return None, causal
        kinds = list(getattr(config, "layer_types", None) or ())
        if {*kinds} - {"full_attention"} or (causal and getattr(config, "sliding_window", None)):
            if causal:
                return None, causal
            raise SettingError(
                "packing",
                f"{type(self.body).__name__} attends within windows in some of its layers ({', '.join(kinds[:4])}, "
                "...), and a mask that keeps examples apart would take their place",
                "Use length_grouping, or flash_attention_2.",
            )
        mask = layout.same_example().unsqueeze(1)
        if causal:  # some, such as OPT, make their mask without a look at the positions
            mask = mask.tril()
        if self.implementation != "eager":
            return mask, causal
        dtype = next(p.dtype for p in self.body.parameters() if p.is_floating_point())
        return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min), causal


class TorchCall(BodyCall):
    """An encoder of torch, or one layer of it: hidden states to hidden states."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        body: Any = self.body
        layer = body.layers[0] if isinstance(body, nn.TransformerEncoder) else body
        self.heads: int = layer.self_attn.num_heads
        self.batch_first: bool = layer.self_attn.batch_first
        self.mask_name = "mask" if isinstance(body, nn.TransformerEncoder) else "src_mask"

    def real(self) -> Tensor | None:
        padding = self.given.get("src_key_padding_mask")
        if not isinstance(padding, Tensor) or padding.ndim != 2:
            return None
        return ~padding if padding.dtype == torch.bool else padding == 0

    def inputs(self, _examples: int, _tokens: int) -> dict[str, Tensor]:
        return {"src": self.examples_first(self.given["src"])}

    def run(self, layout: Packed, inputs: Mapping[str, Tensor]) -> Any:
        blocked = ~layout.same_example()
        mask = self.given.get(self.mask_name)
        if mask is not None and mask.ndim != 2:
            raise SettingError(
                "packing",
                f"{type(self.body).__name__} is called with a mask of shape {tuple(mask.shape)}, one for each example",
                "Give it a mask that all share, of shape (tokens, tokens), or remove packing.",
            )
        if mask is not None:
            shared = mask[layout.positions.unsqueeze(2), layout.positions.unsqueeze(1)]
            blocked = (
                shared | blocked if mask.dtype == torch.bool else shared.masked_fill(blocked, -torch.inf)
            )
        hidden = layout.pack(inputs["src"])
        outputs: Tensor = self.forward(
            hidden if self.batch_first else hidden.transpose(0, 1),
            **{self.mask_name: blocked.repeat_interleave(self.heads, dim=0)},
        )
        unpacked = layout.unpack(self.examples_first(outputs))
        return unpacked if self.batch_first else unpacked.transpose(0, 1)

    def examples_first(self, outputs: Any) -> Any:
        return outputs if self.batch_first else outputs.transpose(0, 1)


def attends_by_example(body: nn.Module) -> bool:
    """Return whether a kernel that is told where examples begin may compute the body's attention."""
    config = getattr(body, "config", None)
    sdpa = getattr(config, "_attn_implementation", None) == "sdpa"
    # any of them: weights that are streamed wait on the host
    return sdpa and any(is_there(parameter.device) for parameter in body.parameters())


def _is_packable(module: nn.Module) -> bool:
    if isinstance(module, _TORCH):
        return True
    if not hasattr(getattr(module, "config", None), "_attn_implementation"):
        return False
    return set(inspect.signature(type(module).forward).parameters) >= _HF_INPUTS


def _first_position(body: nn.Module) -> int:
    """RoBERTa and its kind count from behind the position of padding."""
    table = getattr(getattr(body, "embeddings", None), "position_embeddings", None)
    padding: int | None = getattr(table, "padding_idx", None)
    return 0 if padding is None else padding + 1


@contextmanager
def _unpacked_before(pooler: nn.Module, layout: Packed, pooled: list[Tensor]) -> Iterator[None]:
    """Temporarily give `pooler`, which takes some token of each example, the examples as they were; `pooled` gets what it gives."""
    forward = pooler.forward

    def pool(hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        if hidden.ndim != 3 or not layout.is_packed(hidden):
            raise SettingError(
                "packing",
                f"the pooler of the model gets a tensor of shape {tuple(hidden.shape)}, not the hidden states of all "
                "tokens, so packed examples cannot be told apart in it",
                "Use length_grouping.",
            )
        outputs = forward(layout.unpack(hidden), *args, **kwargs)
        pooled.extend(leaves(outputs))
        return outputs

    with replaced_forward(pooler, pool):
        yield
