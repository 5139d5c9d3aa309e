"""Modules beside a step's model that other steps train: a discriminator beside its generator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.errors import SettingError
from snugfit.kit.buffers import Buffers


class FixedModules:
    """Modules that a loss or a forward function calls and another step trains.

    While this step computes or scores a micro-batch, their weights get no gradient, which would be added to that of their own step, and copies
    stand in for their buffers, such as batch norm's statistics: those are their own step's to change. Gradients go through them to this step's model.

    Raises:
        SettingError: they share a parameter or a buffer with the model.
    """

    def __init__(self, modules: Sequence[nn.Module], model: nn.Module) -> None:
        self.modules = (modules,) if isinstance(modules, nn.Module) else tuple(modules)
        own = {id(each): name for name, each in (*model.named_parameters(), *model.named_buffers())}
        shared = next((own[id(each)] for each in self.tensors if id(each) in own), None)
        if shared is not None:
            raise SettingError(
                "fixed_modules",
                f"have '{shared}' of the model, which would stay as it is while the step trains the rest",
                "Give modules that share nothing with the model.",
            )

    @property
    def tensors(self) -> list[Tensor]:
        """Return their parameters and buffers."""
        return [tensor for module in self.modules for tensor in (*module.parameters(), *module.buffers())]

    @contextmanager
    def held(self, _batch: Batch) -> Iterator[None]:
        """Temporarily keep all of them as they are, around a micro-batch: each is computed with the same buffers, however the window is split."""
        trained = [each for module in self.modules for each in module.parameters() if each.requires_grad]
        for each in trained:
            each.requires_grad_(False)
        try:
            with ExitStack() as stack:
                for module in self.modules:
                    stack.enter_context(Buffers(module).stood_in_for())
                yield
        finally:
            for each in trained:
                each.requires_grad_(True)
