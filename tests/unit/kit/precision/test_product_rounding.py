"""Switches of rounding on CUDA: all say the same by their older and newer names, and are as before afterwards.

Only a GPU can show the digits of a product; tests/unit/techniques/test_tf32.py does where there is one.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.kit.precision import product_rounding
from snugfit.kit.precision.product_rounding import Switches, products_as_chosen, products_in
from snugfit.step.evaluate import Scored, evaluate
from snugfit.step.step import Step

CUDA = torch.device("cuda")
BACKENDS: Any = torch.backends


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = Switches.now()
    yield
    before.set()


def older_names() -> tuple[Any, ...]:
    return (
        torch.get_float32_matmul_precision(),
        BACKENDS.cuda.matmul.allow_tf32,
        BACKENDS.cudnn.allow_tf32,
    )


def newer_names() -> tuple[str, ...]:
    return tuple(
        place.fp32_precision for place in (BACKENDS.cuda.matmul, BACKENDS.cudnn.conv, BACKENDS.cudnn.rnn)
    )


@pytest.mark.parametrize(
    "name",
    [
        "_get_fp32_precision_getter",
        "_set_fp32_precision_setter",
        "_get_float32_matmul_precision",
        "_set_float32_matmul_precision",
        "_get_cudnn_allow_tf32",
        "_set_cudnn_allow_tf32",
        "_get_cublas_allow_bf16_reduced_precision_reduction",
        "_set_cublas_allow_bf16_reduced_precision_reduction",
        "_get_cublas_allow_fp16_reduced_precision_reduction",
        "_set_cublas_allow_fp16_reduced_precision_reduction",
    ],
)
def test_the_private_switch_is_still_there(name: str) -> None:
    assert callable(getattr(torch._C, name))


@pytest.mark.parametrize("asked", ["ieee", "tf32"])
def test_all_names_say_the_same_and_16_bit_products_are_added_up_in_float32(asked: str) -> None:
    """Inductor and flex attention ask by the older names, which raise where the newer ones say something else."""
    before = Switches.now()
    with products_in(asked):
        tf32 = asked == "tf32"
        assert newer_names() == (asked,) * 3
        assert older_names() == ("high" if tf32 else "highest", tf32, tf32)
        assert not BACKENDS.cuda.matmul.allow_bf16_reduced_precision_reduction
        assert not BACKENDS.cuda.matmul.allow_fp16_reduced_precision_reduction
        assert BACKENDS.mkldnn.matmul.fp32_precision == before.host, "the host's products are its own"
    assert Switches.now() == before


def set_by_hand(*names: str) -> None:
    if "older high" in names:
        torch.set_float32_matmul_precision("high")
    if "older medium" in names:
        torch.set_float32_matmul_precision("medium")
    if "newer tf32" in names:
        BACKENDS.cuda.matmul.fp32_precision = "tf32"
    if "conv ieee" in names:
        BACKENDS.cudnn.conv.fp32_precision = "ieee"
    if "older cudnn" in names:
        BACKENDS.cudnn.allow_tf32 = False
    if "bf16" in names:
        BACKENDS.cuda.matmul.allow_bf16_reduced_precision_reduction = False


@pytest.mark.parametrize("asked", ["ieee", "tf32"])
@pytest.mark.parametrize(
    "names",
    [("older high",), ("older medium",), ("newer tf32",), ("conv ieee",), ("older cudnn", "bf16")],
    ids=" ".join,
)
def test_what_was_set_by_hand_is_restored_also_after_an_error(names: tuple[str, ...], asked: str) -> None:
    set_by_hand(*names)
    before = Switches.now()
    found = []
    with suppress(ZeroDivisionError), products_in(asked):
        found.append(older_names()[0])
        raise ZeroDivisionError
    assert found == ["high" if asked == "tf32" else "highest"]
    assert Switches.now() == before


@pytest.mark.parametrize(
    ("names", "expected"),
    [((), "ieee"), (("conv ieee",), "ieee"), (("older high",), "tf32"), (("newer tf32",), "tf32")],
)
def test_convolutions_round_as_products_were_asked_to(names: tuple[str, ...], expected: str) -> None:
    set_by_hand(*names)
    with products_as_chosen(CUDA):
        assert newer_names() == (expected,) * 3
    with products_as_chosen(torch.device("cpu")):
        assert Switches.now().older_cudnn, "a CPU pays nothing for it"


class Looking(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        SEEN.append(newer_names())
        return super().forward(inputs)


SEEN: list[tuple[str, ...]] = []


def test_updates_and_evaluation_compute_float32_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA, where torch alone would convolve in tf32."""
    for place in ("step", "evaluate"):
        monkeypatch.setattr(
            f"snugfit.step.{place}.products_as_chosen", lambda device: products_as_chosen(CUDA)
        )
    SEEN.clear()
    model = Looking(2, 3)
    step = Step(model, torch.optim.SGD(model.parameters(), lr=0.1), micro_batch=2)
    window = Batch.of((torch.ones(4, 2), torch.zeros(4, dtype=torch.long)))
    before = Switches.now()
    step(window)
    evaluate(Scored.of(step), [window], {})
    with step.computed(window):
        pass
    assert len(SEEN) == 6 and {*SEEN} == {("ieee",) * 3}
    assert Switches.now() == before


def test_nobody_hears_that_torch_would_rather_have_the_newer_names_alone(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    messages: list[str] = []
    put = torch._C._set_cudnn_allow_tf32

    def once(value: bool) -> None:
        if not messages:
            messages.append("Please use the new API settings to control TF32 behavior")
            warnings.warn(messages[0], stacklevel=1)
        put(value)

    monkeypatch.setattr(torch._C, "_set_cudnn_allow_tf32", once)
    product_rounding._hear_once.cache_clear()
    with products_in("ieee"):
        pass
    assert messages and not recwarn.list
