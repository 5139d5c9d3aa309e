"""Watch the signs of what is learned: adversaries that learn the same, and terms of a loss that grow where they should fall."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.multiprocessing.reductions import StorageWeakRef

from snugfit.doctor.observe.events.run_events import Fault
from snugfit.doctor.observe.graphs.dependence import is_noticed
from snugfit.doctor.observe.graphs.loss_graph import Term, is_penalty, terms_of
from snugfit.doctor.observe.graphs.policy_terms import is_of_policy, sampled_divergences
from snugfit.doctor.observe.graphs.spread_forms import read_as_other
from snugfit.doctor.observe.graphs.term_signs import (
    likelihoods_below,
    losses_below,
    nodes_below,
    overlap_over_sum,
    read_as_both,
    squares_of_drawn,
    takes_losses_for_gains,
)
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.companions import Companion, LossCall, ModelCall, ModuleOutput
from snugfit.doctor.observe.recording.own_source import line_of_loss
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import innermost, where

_Call = Callable[..., Any]
MOST_MADE, MOST_GIVEN, LEAST_SEEN, LEAST_FALLS = 8, 16, 2, 4
NEARLY_ALL = 0.9
_PENALTY = 1e-8
_MINUS = re.compile(r"\(\s*-")


class _Judged(NamedTuple):
    """Scores that a model gave: the model, the one that made what it judged, 0 for rows of the data, and the scores."""

    judge: int
    maker: int
    scores: Tensor


class _Push(NamedTuple):
    """A way in which a backward pass pushes scores of a judge: up or down."""

    judge: int
    maker: int
    up: bool
    at: str


class SignWatch(Companion):
    """A watcher of the directions in which losses push what they are computed of, read from gradients near the end of their graphs."""

    def __init__(self, recorder: Recorder, *, hooked: Callable[[], bool]) -> None:
        self._recorder, self._hooked = recorder, hooked
        self._made: list[tuple[StorageWeakRef, int]] = []
        self._given: list[StorageWeakRef] = []
        self._maker = self._judge = 0
        self._judged: list[_Judged] = []
        self._pushes: list[_Push] = []
        self._of_judge: dict[tuple[int, int], _Push] = {}
        self._entropies: list[GradientEdge] = []
        self._divergences: list[GradientEdge] = []
        self._policies = self._adversarial = False
        self._falling = self._added = 0
        self._rising = False

    def install(self, patches: Patches) -> None:
        """See entropies and divergences of distributions, and whether logarithms of their probabilities are learned from."""
        for name in ("Categorical", "Bernoulli", "Normal", "Independent", "MultivariateNormal", "Beta"):
            kind = getattr(torch.distributions, name)
            patches.wrap(kind, "entropy", self._spreading)
            patches.wrap(kind, "log_prob", self._log_prob)
        patches.wrap(torch.distributions.kl, "kl_divergence", self._diverging)
        patches.wrap(torch.distributions, "kl_divergence", lambda _: torch.distributions.kl.kl_divergence)

    def _spreading(self, original: _Call) -> _Call:
        def entropy(distribution: Any) -> Any:
            result = original(distribution)
            looked = (
                self._recorder.detailed and not torch.compiler.is_dynamo_compiling() and self._recorder.here
            )
            if looked and isinstance(result, Tensor) and result.requires_grad:
                self._entropies = [*self._entropies[-3:], get_gradient_edge(result)]
            return result

        return entropy

    def _log_prob(self, original: _Call) -> _Call:
        def log_prob(distribution: Any, value: Any) -> Any:
            result = original(distribution, value)
            self._policies = self._policies or bool(isinstance(result, Tensor) and result.requires_grad)
            return result

        return log_prob

    def _diverging(self, original: _Call) -> _Call:
        def kl_divergence(p: Any, q: Any) -> Any:
            result = original(p, q)
            looked = (
                self._recorder.detailed and not torch.compiler.is_dynamo_compiling() and self._recorder.here
            )
            if (
                looked
                and isinstance(result, Tensor)
                and result.requires_grad
                and _learns(p) is not _learns(q)
            ):
                self._note_divergence(result)
            return result

        return kl_divergence

    def _note_divergence(self, result: Tensor) -> None:
        self._divergences = [*self._divergences[-3:], get_gradient_edge(result)]

    def lost(self, loss: LossCall) -> None:
        if loss.name == "kl_div" and not loss.target.requires_grad:
            self._note_divergence(loss.result)

    def begins(self, call: ModelCall) -> None:
        plain = [each for each in call.inputs if each.layout is torch.strided]
        storages = [StorageWeakRef(each.untyped_storage()) for each in plain]
        self._maker = next((maker for storage, maker in reversed(self._made) if storage in storages), 0)
        self._judge = self._recorder.number(call.module)
        if self._maker == self._judge:
            self._maker = self._judge = 0
        self._adversarial = self._adversarial or bool(self._maker)

    def ended(self, given: ModuleOutput) -> None:
        output = given.output
        if not given.outermost or not isinstance(output, Tensor) or output.layout is not torch.strided:
            return
        number = self._recorder.number(given.module)
        if output.dim() > 1:
            self._made = [*self._made[1 - MOST_MADE :], (StorageWeakRef(output.untyped_storage()), number)]
        if self._judge == number and output.requires_grad and len(self._judged) < MOST_GIVEN:
            self._judged.append(_Judged(number, self._maker, output))

    def differentiated(self, value: Tensor) -> None:
        # what a pass does not reach may belong to the next one, where real and made rows have a pass each
        judged = self._judged
        if is_noticed(hooked=self._hooked()) or value.numel() != 1 or not value.requires_grad:
            return
        at = line_of_loss() or where()
        for each in judged if self._adversarial else []:
            way = _way(value, each.scores)
            if way is not None:
                self._pushes.append(_Push(each.judge, each.maker, way, at))
        self._look_at_entropies(value)
        self._look_at_terms(value)

    def steps(self, optimizer: Any) -> None:
        """Judge the pushes since the last step: a judge's by its own optimizer, a maker's by another one."""
        pushes, self._pushes = self._pushes, []
        own = {self._recorder.number(each) for group in optimizer.param_groups for each in group["params"]}
        self._judged, self._entropies, self._divergences = [], [], []
        if optimizer.defaults.get("maximize") and self._added >= LEAST_FALLS:
            known = self._recorder.optimizers.get(self._recorder.number(optimizer))
            what = "The optimizer climbs the losses of torch that it is given: each step makes them larger."
            fix = f"torch.optim.{type(optimizer).__name__}(model.parameters(), maximize=False)"
            at, update = known.at if known else where(), self._recorder.log.updates
            self._recorder.add(Fault(at, update, "wrong_sign", what, fix, certain=True))
            self._added = 0
        for push in pushes:
            holds = [self._holds(own, number) for number in (push.judge, push.maker)]
            if holds == [True, False] or (holds[0] and not push.maker):
                self._of_judge[push.judge, push.maker] = push
            elif push.maker and holds == [False, True]:
                fake, real = (self._of_judge.get((push.judge, each)) for each in (push.maker, 0))
                if fake and real and fake.up is not real.up and push.up is fake.up:
                    # real scores go up by nearly all custom: what does otherwise is the one with the wrong sign
                    self._note_adversary(push, push.at if real.up else real.at)

    def _holds(self, own: set[int], number: int) -> bool:
        """Return whether an optimizer has a parameter of a model."""
        module = next(
            (each for each in self._recorder.living(nn.Module) if self._recorder.number(each) == number), None
        )
        return module is not None and any(self._recorder.number(each) in own for each in module.parameters())

    def _note_adversary(self, push: _Push, at: str) -> None:
        way = "up" if push.up else "down"
        what = (
            f"Both the model that makes rows and the one that judges them push the scores of made rows {way}, and scores of real ones the other way: "
            "what makes them learns to be told apart, not to pass for real."
        )
        fix = "generator_loss = criterion(discriminator(fake), real_label)   # what real rows have; or -discriminator(fake).mean()"
        self._recorder.add(
            Fault(at, self._recorder.log.updates, "wrong_sign", what, fix, LEAST_SEEN, certain=True)
        )

    def _look_at_entropies(self, value: Tensor) -> None:
        """Note a policy's entropy that a loss pushes down."""
        entropies, self._entropies = self._entropies, []
        climbs = self._climbs()
        for each in entropies if self._policies and climbs is not None else []:
            if _way(value, each) is climbs:
                what = "The entropy of the policy falls with the loss: it is added, and the policy learns to explore less."
                fix = "loss = policy_loss + 0.5 * value_loss - 0.01 * entropy.mean()"
                if climbs:
                    what = "The entropy of the policy is taken off what the optimizer maximizes: the policy learns to explore less."
                    fix = "objective = policy_gain - 0.5 * value_loss + 0.01 * entropy.mean()"
                at, update = line_of_loss() or where(), self._recorder.log.updates
                self._recorder.add(Fault(at, update, "wrong_sign", what, fix, LEAST_SEEN))
                return

    def _climbs(self) -> bool | None:
        """Return whether the optimizers maximize what is differentiated; None where some do and some do not, since it is open which steps."""
        ways = {each.maximizes for each in self._recorder.log.optimizers}
        return None if len(ways) > 1 else True in ways

    def _look_at_terms(self, value: Tensor) -> None:
        """Note likelihoods of labels, overlaps and sizes of weights that a loss pushes the wrong way, and what it reads in two ways."""
        terms, update = terms_of(value.grad_fn), self._recorder.log.updates
        at = line_of_loss() or where()
        if self._climbs() is False:
            self._look_at_falls(value, terms, at)
        self._look_at_losses(losses_below(terms), at)
        both = read_as_both(value.grad_fn) or read_as_other(value.grad_fn)
        if both is not None:
            self._recorder.add(
                Fault(both.at or at, update, both.pitfall, both.what, both.fix, LEAST_SEEN, certain=True)
            )

    def _look_at_falls(self, value: Tensor, terms: list[Term], at: str) -> None:
        """Note what falls with a loss and should rise, where no optimizer maximizes."""
        update = self._recorder.log.updates
        self._look_at_divergences(value, at)
        edges = [] if takes_losses_for_gains(value.grad_fn) else likelihoods_below(terms)
        if edges and all(_way(value, each) is False for each in edges):
            what = "The logarithms of the probabilities of what is right fall with the loss: it is lacking a minus."
            fix = "loss = -log_probabilities[rows, labels].mean()"
            self._recorder.add(Fault(at, update, "wrong_sign", what, fix, LEAST_SEEN))
        overlap = overlap_over_sum(value)
        if overlap is not None and _way(value, overlap) is False:
            what = "The overlap of the prediction and the mask falls with the loss."
            fix = "loss = 1 - dice"
            self._recorder.add(Fault(at, update, "wrong_sign", what, fix, LEAST_SEEN, certain=True))
        squares = squares_of_drawn(value.grad_fn)
        if squares and all(_way(value, each) is True for each in squares):
            what = "The divergence of what is drawn from its prior is taken off the loss: the squares of the means grow with each step, without bound."
            fix = "divergence = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())\nloss = reconstruction + divergence"
            self._recorder.add(Fault(at, update, "wrong_sign", what, fix, LEAST_SEEN, certain=True))
        if len(terms) > 1 and any(each.factor < -_PENALTY and is_penalty(each.node) for each in terms):
            what = "A penalty of the size of weights is taken off the loss: they grow with it."
            fix = "loss = loss + decay * sum(weight.square().sum() for weight in model.parameters())"
            self._recorder.add(Fault(at, update, "wrong_sign", what, fix, LEAST_SEEN, certain=True))

    def _look_at_divergences(self, value: Tensor, at: str) -> None:
        """Note that a policy's divergence from another one grows with the loss that it learns by."""
        nodes, (known, self._divergences) = nodes_below(value.grad_fn), (self._divergences, [])
        edges = [*sampled_divergences(nodes), *(each for each in known if each.node in nodes)]
        if edges and is_of_policy(nodes) and all(_way(value, each) is True for each in edges):
            what = "The divergence of the policy from the one that is to hold it is taken off the loss: each step makes it larger."
            fix = "loss = policy_loss + coefficient * divergence.mean()"
            self._recorder.add(Fault(at, self._recorder.log.updates, "wrong_sign", what, fix, LEAST_SEEN))

    def _look_at_losses(self, below: bool | None, at: str) -> None:
        """Note losses of torch all of which are taken off what is differentiated, where none is ever added: else a part of the model learns against another."""
        self._rising, self._added = self._rising or not below, self._added + (below is False)
        self._falling += bool(below)
        if below and not self._rising and self._falling >= LEAST_FALLS and self._climbs() is False:
            what = "The loss is differentiated with a minus: each step makes it larger."
            update, frame = self._recorder.log.updates, innermost()
            if frame is not None and _MINUS.search(
                linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            ):
                at = where()
            self._recorder.add(
                Fault(at, update, "wrong_sign", what, "loss.backward()   # without the minus", certain=True)
            )


def _learns(distribution: Any) -> bool:
    """Return whether a distribution has parameters with a graph."""
    held = vars(distribution).values()
    return any(
        each.requires_grad
        if isinstance(each, Tensor)
        else isinstance(each, torch.distributions.Distribution) and _learns(each)
        for each in held
    )


def _way(value: Tensor, part: Tensor | GradientEdge) -> bool | None:
    """Return whether a step against the gradient of a value pushes a part of it up, in nearly all of its numbers; None where it does neither, or is no part."""
    try:
        gradient = torch.autograd.grad(value, part, retain_graph=True, allow_unused=True)[0]
    except RuntimeError:  # a value of the graph was changed in place: the script's own pass says so
        return None
    return _direction(gradient)


def _direction(gradient: Tensor | None) -> bool | None:
    if gradient is None or gradient.is_sparse or gradient.is_complex():
        return None
    signs = gradient[gradient != 0].sign().float()
    if not signs.numel() or abs(float(signs.mean())) < 2 * NEARLY_ALL - 1:
        return None
    return float(signs.mean()) < 0
