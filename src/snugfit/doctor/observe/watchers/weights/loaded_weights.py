"""Weights that were loaded, compared with those that the first optimizer step after it finds."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from snugfit.doctor.observe.events.state_events import Overwritten, Restore
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where

MATRICES, SAMPLED, FEWEST = 16, 256, 8
ALIKE = 0.5
"""Cosine of what was loaded and what is there now, above which something of it is left."""
FEW_EQUAL, LEAST_LIKE = 0.05, 64
"""Share of equal values that no chance gives, and values of which chance gives no such cosine."""


class _Loaded(NamedTuple):
    module: weakref.ref[nn.Module]
    at: str
    samples: dict[str, Tensor]


class LoadedWeights:
    """The last weights that were loaded into each module."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._loaded: dict[int, _Loaded] = {}
        self._file: _File | None = None
        self._was_read = False
        self.dtypes: dict[int, str] = {}  # of what a module's checkpoint held, by its number

    def dtype_of(self, model: nn.Module) -> str:
        """Return "bfloat16" where the checkpoint of a model, or of a part of it, held that; "" else."""
        for each in model.modules():
            dtype = self.dtypes.get(self._recorder.number(each))
            if dtype is None and type(each).__module__.startswith("transformers."):
                dtype = str(getattr(getattr(each, "config", None), "dtype", "")).removeprefix("torch.")
            if dtype == "bfloat16":
                return dtype
        return ""

    def read(self, contents: Any) -> None:
        """Remember the matrices of a checkpoint that was read, until a module has some of them."""
        self._was_read = True
        states = [contents, *(contents.values() if isinstance(contents, Mapping) else ())]
        matrices = {
            str(name): each.detach().reshape(-1)[:SAMPLED].to("cpu", copy=True)
            for state in states
            if isinstance(state, Mapping)
            for name, each in state.items()
            if isinstance(each, Tensor) and _is_matrix(each)
        }
        # masks and measures of importance have the forms of weights, and no signs
        matrices = {
            name: each
            for name, each in matrices.items()
            if each.is_complex() or bool((each.float() < 0).any())
        }
        shapes = {
            tuple(each.shape)
            for state in states
            if isinstance(state, Mapping)
            for each in state.values()
            if isinstance(each, Tensor)
        }
        if matrices:
            self._file = _File(where(), self._recorder.log.updates, matrices, shapes)

    def unused(self, parameters: Iterable[Tensor]) -> str:
        """Return a name in the checkpoint that was read last, where these parameters have the forms of its own and none of its values; "" else.

        It is forgotten then, and where some of its values are found.
        """
        file = self._file
        if file is None:
            return ""
        mine = [each for each in parameters if each.dim() > 1 and each.numel() > FEWEST]
        alike = [each for each in mine if tuple(each.shape) in file.shapes]
        if not mine or 2 * len(alike) < len(mine):
            return ""
        self._file = None
        return "" if file.is_in(alike) else next(iter(file.matrices))

    def computes(self, module: nn.Module) -> None:
        """Forget the checkpoint that was read last where a module computes with values of it, as in `torch.func.functional_call`."""
        if self._file is not None and self._file.is_in(module.parameters()):
            self._file = None

    def takes_of_file(self) -> bool:
        """Return whether the state that is put into a module now is the first since a file was read."""
        was_read, self._was_read = self._was_read, False
        return was_read

    def restored(self, module: nn.Module) -> None:
        """Remember samples of the matrices that were loaded."""
        self._loaded[self._recorder.number(module)] = _Loaded(weakref.ref(module), where(), _samples(module))

    def before_step(self, optimizer: Any) -> None:
        """Note what of the loaded weights that this optimizer moves is gone, before it moves them."""
        if self._file is not None:
            self._look_at_file(optimizer)
        if not self._loaded:
            return
        own = {id(each) for group in optimizer.param_groups for each in group["params"]}
        for number, (reference, at, samples) in list(self._loaded.items()):
            module = reference()
            if module is None:
                del self._loaded[number]
            elif any(id(each) in own for each in module.parameters()):
                del self._loaded[number]
                self._compare(at, samples, _samples(module))

    def _look_at_file(self, optimizer: Any) -> None:
        """Note a checkpoint that was read, and of which nothing is in the weights that this optimizer moves for the first time since."""
        file, updates = self._file, self._recorder.log.updates
        given = [each for group in optimizer.param_groups for each in group["params"]]
        foreign = self.unused(given) if file is not None and file.update == updates else ""
        self._file = None
        if file is not None and foreign and file.is_in(_parameters_beside(self._recorder, given)):
            return  # a teacher's, whose student has the same form
        if file is not None and foreign:
            entries = len(given)
            restored = Restore(file.at, updates, 0, "", "", entries, entries, foreign)
            self._recorder.add(restored)

    def _compare(self, at: str, before: dict[str, Tensor], now: dict[str, Tensor]) -> None:
        pairs = [(each.float(), now[name].float()) for name, each in before.items() if name in now]
        pairs = [(one, other) for one, other in pairs if one.shape == other.shape and one.any()]
        lost = sum(
            float(torch.nn.functional.cosine_similarity(one, other, dim=0)) < ALIKE for one, other in pairs
        )
        if lost:
            self._recorder.add(Overwritten(at, self._recorder.log.updates, len(pairs), lost))


class _File(NamedTuple):
    """A checkpoint that was read: where, before which update, samples of its matrices by name, and the forms of all that it holds."""

    at: str
    update: int
    matrices: dict[str, Tensor]
    shapes: set[tuple[int, ...]]

    def is_in(self, parameters: Iterable[Tensor]) -> bool:
        """Return whether one of these has values of one of its matrices, or was made of them."""
        now = (each.detach().reshape(-1)[:SAMPLED].cpu() for each in parameters if _is_matrix(each))
        return any(
            one.shape == other.shape and _is_made_of(one, other)
            for one in now
            for other in self.matrices.values()
        )


def _is_matrix(values: Tensor) -> bool:
    return values.layout is torch.strided and values.dim() > 1 and values.numel() > FEWEST


def _is_made_of(one: Tensor, other: Tensor) -> bool:
    """Return whether samples of one are those of the other, of which some may be set to 0, or are like them, as a mean of several checkpoints is."""
    other = other.to(one.dtype)
    if one.is_complex():
        return torch.equal(one, other)
    one, other = one.float(), other.float()
    if float(((one == other) & (one != 0)).float().mean()) > FEW_EQUAL:
        return True
    return len(one) >= LEAST_LIKE and float(torch.nn.functional.cosine_similarity(one, other, dim=0)) > ALIKE


def _parameters_beside(recorder: Recorder, parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return the parameters of all modules seen, but for these."""
    given = {id(each) for each in parameters}
    modules = recorder.living(nn.Module)
    return [each for module in modules for each in module.parameters() if id(each) not in given]


def _samples(module: nn.Module) -> dict[str, Tensor]:
    named = (
        (name, each) for name, each in module.named_parameters() if each.dim() > 1 and each.numel() > FEWEST
    )
    return {
        # loaded on the processor, and moved to a device before the step
        name: each.detach().reshape(-1)[:SAMPLED].to("cpu", copy=True)
        for _, (name, each) in zip(range(MATRICES), named, strict=False)
    }
