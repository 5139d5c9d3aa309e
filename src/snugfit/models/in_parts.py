"""Models of transformers of which each process keeps its part alone, weight by weight as they are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from snugfit.core.parts import KeepPart, stand_in


@contextmanager
def read_in_parts(keep: KeepPart | None) -> Iterator[None]:
    """Within, transformers puts a stand-in in the place of each weight that it has read, which has what `keep` leaves of it.

    What it draws, ties and computes itself is whole: a new head, weights that stand in two places, buffers.

    Args:
        keep: None for all of each weight.
    """
    if keep is None:
        yield
        return
    from transformers import core_model_loading

    put = core_model_loading.set_param_for_module

    def put_part(model: Any, name: str, *arguments: Any, **more: Any) -> None:
        put(model, name, *arguments, **more)
        tied = model.all_tied_weights_keys
        if name in tied or name in tied.values():  # whose values it is going to compare
            return
        parent, _, own = name.rpartition(".")
        held = model.get_submodule(parent)._parameters
        weight = held.get(own)
        # of another shape than the model's, it has not been put there
        if weight is not None and not weight.is_meta and weight.is_floating_point() and weight.ndim > 0:
            held[own] = stand_in(weight, keep(weight.detach()))

    with mock.patch.object(core_model_loading, "set_param_for_module", put_part):
        yield
