from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.varlen import varlen_attn
from torch.utils.checkpoint import checkpoint

from snugfit.kit.autograd_graph import kernels_behind, kernels_of
from snugfit.techniques.placement.attention_kernel import kernels_used
from tests.laws import problems

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}


@pytest.mark.parametrize("kernel", BACKENDS)
@pytest.mark.parametrize("recomputed", [False, True])
def test_the_kernel_that_ran_is_the_one_that_is_told(kernel: str, recomputed: bool) -> None:
    query = torch.randn(1, 2, 4, 8, requires_grad=True)
    attend = torch.nn.functional.scaled_dot_product_attention
    with sdpa_kernel(BACKENDS[kernel]), kernels_used() as used:
        if recomputed:
            outputs = checkpoint(attend, query, query, query, use_reentrant=False)
        else:
            outputs = attend(query, query, query)
    assert kernels_behind(outputs.sin()) == used == {kernel}


@pytest.mark.parametrize("make", [problems.bert, problems.gpt2, problems.vit, problems.viewer])
def test_a_models_kernels_are_those_that_an_observer_of_each_operation_sees(make: problems.Maker) -> None:
    problem = make(())
    step = problems.make_step(problem, ())
    from snugfit.core.batch import Batch

    with kernels_used() as used:
        outputs = step.forward(Batch.of(problem.windows()[0]))
    logits = outputs if isinstance(outputs, torch.Tensor) else outputs.logits
    assert kernels_behind(logits) == used != set()


def test_what_has_no_attention_or_no_graph_tells_of_none() -> None:
    problem = problems.normed(())
    inputs = problem.windows()[0]["numbers"]
    assert kernels_behind(problem.model()(inputs)) == set()
    assert kernels_behind(torch.ones(2)) == set()


def test_compiled_attention_says_that_it_is_compiled() -> None:
    # a function of its own: torch passes over one for good that another test has let it meet under a mode that watches
    def attend(query: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(query, query, query)

    query = torch.randn(1, 2, 4, 8, requires_grad=True)
    assert kernels_behind(torch.compile(attend, backend="aot_eager")(query)) == {"compiled"}


def test_a_kernel_that_is_told_where_examples_begin_is_told_by_its_own_name() -> None:
    with FakeTensorMode(), kernels_used() as used:
        tokens = torch.empty(6, 2, 8, dtype=torch.bfloat16, requires_grad=True)
        offsets = torch.tensor([0, 4, 6], dtype=torch.int32)
        outputs = varlen_attn(tokens, tokens, tokens, offsets, offsets, 4, 4)
        assert kernels_behind(outputs.sin()) == used == {"flash_varlen"}


def test_flex_attention_which_transformers_compiles_is_told_by_its_name() -> None:
    class Stock(torch.nn.Module):
        """As a model of transformers attends by FlexAttention, which has no backward on a CPU: by a function that it has compiled."""

        config = type("Config", (), {"_attn_implementation": "flex_attention"})

    def attend(query: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(query, query, query)

    query = torch.randn(1, 2, 4, 8, requires_grad=True)
    outputs = torch.compile(attend, backend="aot_eager")(query)
    assert kernels_of(outputs, torch.nn.Sequential(Stock())) == {"flex_attention"}
    assert kernels_of(outputs, torch.nn.Linear(2, 2)) == {"compiled"}
