"""What ranks would import, imported once; and the first update of a process, for which torch imports a good deal more."""

from __future__ import annotations

import contextlib
import importlib

import torch

IMPORTED = (
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.launcher.api",
    "torch.distributed.tensor",
    "functorch.compile",
    "torchmetrics",
    "torchao.optim",
    "torchao.quantization",
    "bitsandbytes",
    "transformers.modeling_utils",
    "transformers.models.bert.modeling_bert",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "transformers.models.mixtral.modeling_mixtral",
    "transformers.models.vit.modeling_vit",
    "snugfit.cli",
    "snugfit.run.launch",
    "snugfit.run.plans.planning",
    "snugfit.run.from_recipe",
    "snugfit.run.run",
    "tests.ranks.faulty",
    "tests.ranks.law",
)


def update() -> None:
    """Make one update."""
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.AdamW([parameter])
    parameter.sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()


for name in IMPORTED:
    with contextlib.suppress(ImportError):  # tests that need it skip, or say what is missing
        importlib.import_module(name)
update()
