"""Models of transformers whose weights change as they are read, one by one: each process keeps its part alone, or in few bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from snugfit.core.technique import Technique
from snugfit.kit.sharded_loading import KeepPart, stand_in


@contextmanager
def read_in_parts(keep: KeepPart | None) -> Iterator[None]:
    """Temporarily let transformers put a stand-in in the place of each weight that it has read, which has what `keep` leaves of it.

    What it draws, ties and computes itself is whole: a new head, weights that stand in two places, buffers.

    Args:
        keep: None for all of each weight.
    """
    if keep is None:
        yield
        return

    def keep_part(model: Any, name: str) -> None:
        parent, _, own = name.rpartition(".")
        held = model.get_submodule(parent)._parameters
        weight = held.get(own)
        # of another shape than the model's, it has not been put there
        if weight is not None and not weight.is_meta and weight.is_floating_point() and weight.ndim > 0:
            held[own] = stand_in(weight, keep(weight.detach()))

    with _each_read(keep_part):
        yield


@contextmanager
def read_in_formats(techniques: Sequence[Technique]) -> Iterator[None]:
    """Temporarily let transformers hand each weight that it has read to techniques, which give it their format."""
    if not techniques:
        yield
        return

    def give_format(model: Any, name: str) -> None:
        for technique in techniques:
            technique.read(model, name)

    with _each_read(give_format):
        yield


@contextmanager
def _each_read(change: Callable[[Any, str], None]) -> Iterator[None]:
    """Temporarily call `change` with the model and the name of each weight that was put into it, but for tied ones."""
    from transformers import core_model_loading

    put = core_model_loading.set_param_for_module

    def put_changed(model: Any, name: str, *arguments: Any, **more: Any) -> None:
        put(model, name, *arguments, **more)
        tied = model.all_tied_weights_keys
        if name not in tied and name not in tied.values():  # whose values it is going to compare
            change(model, name)

    with mock.patch.object(core_model_loading, "set_param_for_module", put_changed):
        yield
