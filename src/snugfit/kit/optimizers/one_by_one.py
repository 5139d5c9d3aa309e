"""An optimizer that steps one parameter at a time, and one that steps on other tensors in the place of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from snugfit.core.parameters import ParameterGroup
from snugfit.core.tree import leaves
from snugfit.kit.optimizers.combined import CombinedOptimizer
from snugfit.kit.optimizers.parameter_walk import loss_of
from snugfit.kit.optimizers.state_layout import laid_out_like
from snugfit.kit.phases import alike
from snugfit.kit.placement import set_data_
from snugfit.kit.row_chunks import own_rows, piece_rows, pieces, put_rows
from snugfit.kit.sharded_tensors import is_sharded, sharded_like, spread_state


def stepper(optimizer: Optimizer) -> Callable[[nn.Parameter], None]:
    """Return a function that steps one parameter by itself, with its group's settings of this moment and its own state.

    What some optimizers count in their groups stays as it is: the `optimizer.step()` that ends an update, when no gradient
    is left, counts it once.

    >>> weight, bias = torch.nn.Linear(2, 1).parameters()
    >>> weight.grad, bias.grad = torch.ones(1, 2), torch.ones(1)
    >>> optimizer = torch.optim.AdamW([weight, bias])
    >>> stepper(optimizer)(bias)
    >>> bias in optimizer.state, weight in optimizer.state
    (True, False)
    """
    if isinstance(optimizer, ShadowOptimizer):
        step_on = optimizer.stepper()
        return lambda parameter: step_on([parameter])
    step_in_place = stand_in_stepper(optimizer)
    return lambda parameter: step_in_place(parameter, parameter)


def stand_in_stepper(optimizer: Optimizer) -> Callable[[nn.Parameter, nn.Parameter], None]:
    """Return a function that steps what stands in the place of a parameter, and has the gradient."""
    places = _places(optimizer)

    def step(parameter: nn.Parameter, stepped: nn.Parameter) -> None:
        one, group, number = places[parameter]
        alone = {**group, "params": [stepped]}
        if "param_names" in group:
            alone["param_names"] = [group["param_names"][number]]
        groups = one.param_groups
        one.param_groups = [alone]
        try:
            with _state_lent(one, parameter, stepped):
                one.step()
        finally:
            one.param_groups = groups

    return step


def _places(optimizer: Optimizer) -> dict[nn.Parameter, tuple[Optimizer, ParameterGroup, int]]:
    """Return for each parameter the optimizer that steps it, its group there and its number in that."""
    inner = optimizer.optimizers if isinstance(optimizer, CombinedOptimizer) else (optimizer,)
    return {
        parameter: (one, group, number)
        for one in inner
        for group in one.param_groups
        for number, parameter in enumerate(group["params"])
    }


def stepped_by_element(optimizer: Optimizer) -> set[nn.Parameter]:
    """Return the parameters of which each number may be stepped without its neighbours, to the same result."""
    return {
        parameter
        for parameter, (one, _, _) in _places(optimizer).items()
        if getattr(one, "by_element", type(one) in _BY_ELEMENT)
    }


_BY_ELEMENT = (torch.optim.Adam, torch.optim.AdamW, torch.optim.RAdam, torch.optim.RMSprop, torch.optim.SGD)


@contextmanager
def _state_lent(optimizer: Optimizer, owner: nn.Parameter, stepped: nn.Parameter) -> Iterator[None]:
    """Temporarily give the state of one parameter to another."""
    state = optimizer.state
    if owner in state:
        state[stepped] = state.pop(owner)
    try:
        yield
    finally:
        if stepped in state:
            state[owner] = state.pop(stepped)


class Route:
    """The way of a parameter and its gradient to where it is stepped: this one leaves them in place."""

    device: torch.device | None = None
    """The device that the step is made on; None for that of each parameter."""

    looks_ahead: ClassVar[bool] = False
    """True where a parameter is asked for while the one before it is stepped."""

    def bring(
        self, parameters: Iterable[nn.Parameter], gradient_of: Callable[[nn.Parameter], Tensor | None]
    ) -> Iterator[tuple[nn.Parameter, Tensor, Tensor]]:
        """Yield each parameter with its weight and gradient; when the next one is asked for, the weight is stepped and goes back."""
        for parameter in parameters:
            gradient = gradient_of(parameter)
            assert gradient is not None
            yield parameter, parameter.detach(), gradient.to(parameter.device)


class ShadowOptimizer(Optimizer):
    """Steps an optimizer on other tensors, which stand in the place of the parameters for as long as each is stepped.

    Its groups and its state are the optimizer's own, and it loads and saves as that; there, shadows that hold nothing stand for
    the parameters. `route` says where the step is made, and `gradient_of` where gradients are. Those that derive from it step in
    another type: `widened` says of which parameters, and `lend_wide` lends them.

    Args:
        optimizer: made of the parameters, and without a state yet.
        widened: the type that parameters of a type are stepped in; the same one for those that are stepped as they are.
    """

    own_names: ClassVar[tuple[str, ...]] = ()
    """Names of what is kept of a parameter beside the optimizer's state."""

    def __init__(
        self,
        optimizer: Optimizer,
        widened: Callable[[torch.dtype], torch.dtype] = lambda own: own,
    ) -> None:
        assert not optimizer.state, "its states would be of the parameters"
        self.optimizer, self.widened = optimizer, widened
        self.route = Route()
        self.gradient_of: Callable[[nn.Parameter], Tensor | None] = lambda parameter: parameter.grad
        self.shadows: dict[nn.Parameter, nn.Parameter] = {}
        self.own: dict[nn.Parameter, dict[str, Any]] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                resting = torch.empty(0, dtype=widened(parameter.dtype), device=parameter.device)
                self.shadows[parameter] = nn.Parameter(resting, resting.is_floating_point())
            group["params"] = [self.shadows[parameter] for parameter in group["params"]]
        self._places = {parameter: place for place, parameter in enumerate(self.shadows)}
        self._cut = stepped_by_element(optimizer)
        super().__init__(optimizer.param_groups, {})
        self._share()

    def step_by(self, route: Route) -> None:
        """Step where `route` leads; before the first step."""
        assert not self.optimizer.state
        self.route = route
        for shadow in self.shadows.values():
            set_data_(shadow, shadow.data.to(route.device))

    def lend(self, parameters: Iterable[nn.Parameter]) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        """Shadows, and what is to be stepped in the place of each, which has the gradient; when the next one is asked for, it was.

        The state of a shadow is that of its stand-in for as long. A large parameter that is stepped in another type is lent piece by
        piece, where the optimizer looks at each number by itself: whole, what is made beside a table of embeddings would be more than
        all other gradients.
        """
        for parameter, weight, gradient in self.route.bring(parameters, self.gradient_of):
            if self.widened(weight.dtype) == weight.dtype:
                shadow = self.shadows[parameter]
                yield shadow, standing_in(shadow, weight, gradient)
            else:
                yield from self._lend_widened(parameter, weight, gradient)
            del weight, gradient  # or what was brought would be there beside the next ones

    def _lend_widened(
        self, parameter: nn.Parameter, weight: Tensor, gradient: Tensor
    ) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        """Lend a parameter that is stepped in another type, whole or piece by piece."""
        shadow, own, parts = self.shadows[parameter], self.own.setdefault(parameter, {}), pieces(weight)
        if len(parts) == 1 or is_sharded(weight) or shadow not in self._cut:
            yield from self.lend_wide(parameter, weight, gradient, own, range(len(parts)))
            return
        state, before = self.state[shadow], dict(own)
        after: dict[str, Any] = {}
        for number, piece in alike(list(enumerate(parts)), lambda part: piece_rows(part[1])):
            here = own_rows(before, weight, piece)
            self.state[shadow] = own_rows(state, weight, piece)
            yield from self.lend_wide(
                parameter, weight[piece], gradient[piece], here, range(number, number + 1)
            )
            put_rows(after, state, self.state[shadow], weight, piece)
            put_rows(own, before, here, weight, piece)
            del here  # or the last piece would be there beside the next parameter
        self.state[shadow] = after

    def lend_wide(
        self, parameter: nn.Parameter, weight: Tensor, gradient: Tensor, own: dict[str, Any], parts: range
    ) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        """Lend a parameter that is stepped in another type, or a piece of it, whose state is the shadow's.

        Args:
            weight: to be changed in place after the step.
            own: what is kept of it beside the optimizer's state; to be changed.
            parts: which of the parameter's pieces it is.
        """
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = loss_of(closure)
        stepped = [parameter for parameter in self.shadows if self.gradient_of(parameter) is not None]
        before = dict(zip(stepped[1:], stepped, strict=False)) if self.route.looks_ahead else {}

        def kind(parameter: nn.Parameter) -> Hashable:
            """While it is brought here, the one before it may be stepped."""
            return self._steady(parameter), self._steady(before[parameter]) if parameter in before else None

        self.stepper()(alike(stepped, kind, listed=True))
        self.optimizer.step()  # without a gradient: it counts
        return loss

    def prime(self) -> None:
        """Make the first step, of each parameter by itself: where a dry run watches, of two of each kind, and the others get their states."""
        step_on = self.stepper()
        stepped = [parameter for parameter in self.shadows if self.gradient_of(parameter) is not None]
        for parameter in alike(stepped, self._kind, remains=_States(self)):
            step_on([parameter])
        self.optimizer.step()

    def stepper(self) -> Callable[[Iterable[nn.Parameter]], None]:
        """Return a function that steps some parameters, each of which has a gradient, as `stepper` does."""
        step = stand_in_stepper(self.optimizer)

        @torch.no_grad()
        def step_on(parameters: Iterable[nn.Parameter]) -> None:
            for shadow, stand_in in self.lend(parameters):
                step(shadow, stand_in)
                del stand_in  # or it would be there beside the next one

        return step_on

    def _steady(self, parameter: nn.Parameter) -> Hashable:
        """Return what decides how a parameter is stepped; the first step leaves a state behind, so that no other one is like it."""
        return self._kind(parameter) if self.shadows[parameter] in self.state else self._places[parameter]

    def _kind(self, parameter: nn.Parameter) -> Hashable:
        """Return what a parameter, its gradient and its state are."""
        shadow = self.shadows[parameter]
        held = leaves(
            [parameter, self.gradient_of(parameter), self.state.get(shadow), self.own.get(parameter)]
        )
        group = next(
            n for n, group in enumerate(self.param_groups) if any(each is shadow for each in group["params"])
        )
        return group, *((type(each), each.shape, each.stride(), each.dtype, each.device) for each in held)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of the parameters; shadows keep none."""
        for parameter in self.shadows:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's, and beside each state what is kept of its parameter."""
        state_dict: dict[str, Any] = self.optimizer.state_dict()
        states = {key: dict(state) for key, state in state_dict["state"].items()}
        for parameter, own in self.own.items():
            states.setdefault(self._places[parameter], {}).update(own)
        return {**state_dict, "state": states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load; each tensor in the type that it was saved in, and laid out like its parameter."""
        inner: dict[int, dict[str, Any]] = {}
        own_states: dict[int, dict[str, Any]] = {}
        for place, state in state_dict["state"].items():
            for name, value in state.items():
                (own_states if name in self.own_names else inner).setdefault(place, {})[name] = value
        resting = {shadow: shadow.data for shadow in self.shadows.values()}
        for parameter, shadow in self.shadows.items():
            shadow.data = shadow.data.new_empty(()).expand(parameter.shape)  # the shape, of one element
        try:
            self.optimizer.load_state_dict({**state_dict, "state": inner})
        finally:
            for shadow, data in resting.items():
                shadow.data = data
            self._share()
        keys = [key for group in state_dict["param_groups"] for key in group["params"]]
        own = {shadow: parameter for parameter, shadow in self.shadows.items()}
        shadows = [shadow for group in self.param_groups for shadow in group["params"]]
        for key, shadow in zip(keys, shadows, strict=True):
            if key in inner:
                loaded = _as_saved(self.state[shadow], inner[key])
                self.state[shadow] = laid_out_like(own[shadow], spread_state(own[shadow], loaded))
        self.own = {
            parameter: laid_out_like(
                parameter, _placed_like(parameter, self.shadows[parameter].device, own_states[place])
            )
            for parameter, place in self._places.items()
            if place in own_states
        }

    def _share(self) -> None:
        self.param_groups, self.state = self.optimizer.param_groups, self.optimizer.state


class _States:
    """The state that the first step of a parameter leaves behind, and what is kept beside that."""

    def __init__(self, optimizer: ShadowOptimizer) -> None:
        self._optimizer = optimizer

    def of(self, part: nn.Parameter) -> list[dict[str, Any]]:
        optimizer = self._optimizer
        return [optimizer.state.get(optimizer.shadows[part], {}), optimizer.own.get(part, {})]

    def leave(self, part: nn.Parameter, remains: list[dict[str, Any]]) -> None:
        optimizer = self._optimizer
        state, own = remains
        if state:
            optimizer.state[optimizer.shadows[part]] = state
        if own:
            optimizer.own[part] = own


def _placed_like(parameter: nn.Parameter, device: torch.device, state: dict[str, Any]) -> dict[str, Any]:
    """Return copies where the parameter is stepped."""
    return {
        name: sharded_like(parameter, value.to(device, copy=True)).to(device)
        if isinstance(value, Tensor)
        else value
        for name, value in state.items()
    }


def standing_in(shadow: nn.Parameter, weight: Tensor, gradient: Tensor) -> nn.Parameter:
    """Another parameter, to step in the place of a shadow: one that is spread over devices cannot be given other data."""
    stand_in = nn.Parameter(weight, shadow.requires_grad)
    stand_in.grad = gradient
    return stand_in


def _as_saved(loaded: Any, saved: Any) -> Any:
    """Torch gives each tensor that it loads the type of its parameter."""
    if isinstance(loaded, dict) and isinstance(saved, dict):
        return {name: _as_saved(value, saved.get(name)) for name, value in loaded.items()}
    if type(loaded) is type(saved) and (type(loaded) is Tensor or is_sharded(loaded)):
        return loaded.to(saved.dtype)
    return loaded
