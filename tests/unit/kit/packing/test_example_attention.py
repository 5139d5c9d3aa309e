"""Attention that is told where each example begins, by a stand-in for the kernel: the definition, one example after the other.

That the kernel itself computes this is shown by `benchmarks/gpu/run.sh correct`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import varlen

from snugfit.core.batch import Batch
from snugfit.kit.packing import example_attention
from snugfit.kit.packing.example_attention import SPANS, Spans, by_example, is_there
from snugfit.kit.packing.packed_bodies import bodies
from snugfit.kit.packing.packed_rows import Packed
from snugfit.step.step import Step
from snugfit.techniques.learning.sgd import SGD
from snugfit.techniques.placement.packing import Packing, packed
from snugfit.techniques.placement.recompute import Recompute
from tests.laws import problems
from tests.unit.techniques.test_packing import (
    DISTIL,
    GPT2,
    GROUPED,
    LENGTHS,
    NEOX,
    OPT,
    SIZES,
    given,
    logits_and_gradients,
    stock,
)

transformers = pytest.importorskip("transformers")

MODELS: list[tuple[str, str, dict[str, Any]]] = [
    ("BertForSequenceClassification", "BertConfig", SIZES),
    ("DistilBertForTokenClassification", "DistilBertConfig", DISTIL),
    ("GPT2LMHeadModel", "GPT2Config", {**GPT2, "attn_pdrop": 0.0}),
    ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    ("OPTForCausalLM", "OPTConfig", OPT),
    ("GPTNeoXForCausalLM", "GPTNeoXConfig", NEOX),
]


class Kernel:
    """The definition of attention within each example; counts its calls."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int, *,
        scale: float | None = None, window_size: tuple[int, int] = (-1, -1), enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        self.calls.append({"offsets": cu_seq_q.tolist(), "longest": max_q, "causal": window_size == (-1, 0)})
        assert cu_seq_q.dtype == torch.int32 and cu_seq_q is cu_seq_k and max_q == max_k
        assert enable_gqa == (query.shape[1] != key.shape[1])
        outputs = []
        for start, stop in zip(cu_seq_q.tolist(), cu_seq_q.tolist()[1:], strict=False):
            assert 0 < stop - start <= max_q
            q, k, v = (each[start:stop].transpose(0, 1) for each in (query, key, value))
            k, v = (each.repeat_interleave(len(q) // len(k), dim=0) for each in (k, v))
            scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
            if window_size == (-1, 0):
                scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
            outputs.append((scores.softmax(-1) @ v).transpose(0, 1))
        assert stop == len(query), "what is left of the last row too"
        return torch.cat(outputs)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """The stand-in, on this device and in the types of the tests."""
    made = Kernel()
    monkeypatch.setattr(varlen, "varlen_attn", made)
    monkeypatch.setattr("snugfit.kit.packing.packed_bodies.is_there", lambda device: True)
    monkeypatch.setattr(example_attention, "is_there", lambda device: True)
    monkeypatch.setattr(example_attention, "_HALF", (torch.float64, torch.float32, torch.bfloat16))
    return made


@contextmanager
def no_other_attention(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Temporarily raise where attention is computed with a mask."""

    def refused(*_args: Any, **_kwargs: Any) -> Tensor:
        raise AssertionError("attention was computed with a mask")

    with monkeypatch.context() as patch:
        patch.setattr(nn.functional, "scaled_dot_product_attention", refused)
        yield


@pytest.mark.parametrize(
    ("model", "config", "sizes"), MODELS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_stock_model_gives_the_logits_and_gradients_of_padded_rows_without_a_mask(
    model: str, config: str, sizes: dict[str, Any], kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stock(model, config, sizes).eval()
    logits, gradients = logits_and_gradients(made, given())
    checked: set[nn.Module] = set()
    with packed(*bodies(made).values(), None, checked):
        made(**given())  # compared with padded rows, which takes a mask
    kernel.calls.clear()
    with no_other_attention(monkeypatch), packed(*bodies(made).values(), None, checked):
        found, of_packed = logits_and_gradients(made, given())
    assert torch.allclose(found, logits, rtol=1e-10, atol=1e-12)
    assert problems.relative_error(of_packed, gradients) <= 1e-10
    causal = model.endswith(("LMHeadModel", "CausalLM"))
    assert len(kernel.calls) == 2 and all(call["causal"] is causal for call in kernel.calls)
    assert kernel.calls[0]["longest"] == max(LENGTHS)


@pytest.mark.parametrize(
    ("recompute", "times"),
    [([], 1), ([Recompute()], 2), ([Recompute(rows=1)], 0)],
    ids=["whole", "again", "by rows"],
)
def test_steps_train_as_padded_ones_do_also_where_blocks_are_computed_again_in_backward(
    recompute: list[Recompute], times: int, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block that is computed row by row has the mask of each row, and a kernel that was told of all rows would read beyond its own."""

    def trained(*techniques: Any) -> dict[str, Tensor]:
        model = stock("LlamaForCausalLM", "LlamaConfig", GROUPED)
        step = Step(model, SGD(learning_rate=0.1), "causal_lm", techniques, micro_batch=3, nominal=1.0)
        data = given()
        data["labels"] = data["input_ids"].masked_fill(data["attention_mask"] == 0, -100)
        for number in range(2):
            kernel.calls.clear()
            if techniques and number and times:
                with no_other_attention(monkeypatch):
                    assert step(Batch.of(data)).applied
            else:
                assert step(Batch.of(data)).applied
        return {name: each.detach() for name, each in model.named_parameters()}

    plain = trained()
    assert not kernel.calls
    weights = trained(Packing(), *recompute)
    assert problems.relative_error(weights, plain) <= 1e-10
    micro_batches, layers = 2, 2
    assert len(kernel.calls) == micro_batches * layers * times


def test_offsets_are_of_the_examples_and_of_what_is_left_of_each_row() -> None:
    layout = Packed.of([3, 5, 2, 4], tokens=5, device=torch.device("cpu"))
    assert layout.rows == ((1,), (3,), (0, 2))
    assert layout.offsets.tolist() == [0, 5, 9, 10, 13, 15]
    assert layout.offsets.dtype == torch.int32 and layout.longest == 5


def tensors(
    dtype: torch.dtype = torch.bfloat16, dim: int = 16, heads: int = 2, keys: int = 2
) -> list[Tensor]:
    drawn = torch.Generator().manual_seed(0)
    return [torch.randn(1, each, 6, dim, generator=drawn).to(dtype) for each in (heads, keys, keys)]


SPANS_OF_TWO = Spans(torch.tensor([0, 4, 6], dtype=torch.int32), 4, (1, 6), causal=False)
MASK = torch.block_diag(torch.ones(4, 4), torch.ones(2, 2)).bool().view(1, 1, 6, 6)


@pytest.mark.parametrize(
    ("given_tensors", "more", "by_kernel"),
    [
        (lambda: tensors(), {}, True),
        (lambda: tensors(heads=4), {}, True),
        (lambda: tensors(torch.float16), {}, False),
        (lambda: tensors(dim=20), {}, False),
        (lambda: tensors(dim=200), {}, False),
        (lambda: [*tensors()[:2], tensors(dim=8)[2]], {}, False),
        (lambda: tensors(), {"dropout": 0.1}, False),
        (lambda: tensors(), {"position_bias": torch.zeros(1, 2, 6, 6)}, False),
        (lambda: tensors(), {SPANS: None}, False),
        (lambda: tensors(), {SPANS: replace(SPANS_OF_TWO, shape=(2, 6))}, False),
    ],
    ids=[
        "plain",
        "fewer keys",
        "type",
        "odd heads",
        "wide heads",
        "values",
        "dropout",
        "bias",
        "no spans",
        "some rows",
    ],
)
def test_what_the_kernel_does_not_compute_is_computed_with_the_mask(
    given_tensors: Callable[[], list[Tensor]], more: dict[str, Any], by_kernel: bool, kernel: Kernel
) -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    query, key, value = given_tensors()
    module: Any = SimpleNamespace(num_key_value_groups=query.shape[1] // key.shape[1], is_causal=False)
    plain = {name: value for name, value in more.items() if name != SPANS}
    torch.manual_seed(0)
    expected, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, MASK, **plain)
    with by_example():
        torch.manual_seed(0)
        outputs, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](
            module, query, key, value, MASK, **{SPANS: SPANS_OF_TWO, **more}
        )
    assert bool(kernel.calls) is by_kernel
    assert outputs.shape == expected.shape
    torch.testing.assert_close(
        outputs, expected, atol=0.02 if by_kernel else 0, rtol=0.02 if by_kernel else 0
    )


def test_under_autocast_attention_is_in_16_bits_as_torchs_own_is(kernel: Kernel) -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    module: Any = SimpleNamespace(num_key_value_groups=1, is_causal=False)
    with by_example(), torch.autocast("cpu", dtype=torch.bfloat16):
        outputs, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](
            module, *tensors(torch.float32), MASK, **{SPANS: SPANS_OF_TWO}
        )
    assert outputs.dtype == torch.bfloat16 and len(kernel.calls) == 1


def test_transformers_attention_is_what_it_was_afterwards() -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as functions

    before = functions["sdpa"]
    with by_example(), by_example():
        assert functions["sdpa"] is not before
    assert functions["sdpa"] is before and "sdpa" not in functions._local_mapping


@pytest.mark.parametrize(
    ("capability", "there"),
    [((7, 5), False), ((8, 0), True), ((9, 0), True), ((12, 1), True), ((13, 0), False)],
)
def test_the_kernel_is_there_from_ampere_on_unless_it_is_switched_off(
    capability: tuple[int, int], there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert is_there(torch.device("cuda")) is there
    assert not is_there(torch.device("cpu")) and not is_there(torch.device("mps"))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert not is_there(torch.device("cuda"))
