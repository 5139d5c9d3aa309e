"""Ways of running a model in which there is nothing to look at: its values are stand-ins, or it is being written down.

What torch tells of them by private names alone stands here.
"""

from __future__ import annotations

import torch
from torch.fx._symbolic_trace import is_fx_symbolic_tracing


def tracing() -> str:
    """Return the way in which the model runs now; "" where it computes as the script says.

    >>> tracing()
    ''
    >>> torch.func.vmap(lambda row: row * len(tracing()))(torch.ones(2, 1)).tolist()
    [[10.0], [10.0]]
    """
    if torch.jit.is_tracing():
        return "torch.jit.trace"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "torch.func"
    if is_fx_symbolic_tracing():
        return "torch.fx"
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
        return "fake tensors"
    return "torch.export" if torch.compiler.is_exporting() else ""
