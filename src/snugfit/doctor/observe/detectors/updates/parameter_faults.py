"""Parameters and optimizers: who is trained, by whom, and who is not."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence

from snugfit.doctor.findings import Certainty, Finding
from snugfit.doctor.observe.events.log import Log, OptimizerSeen, ParameterSeen
from snugfit.doctor.observe.events.run_events import LayerMadeAnew
from snugfit.doctor.observe.events.script_events import (
    Backward,
    Forward,
    OptimizerBuilt,
    Step,
)
from snugfit.doctor.observe.events.state_events import NarrowNorm
from snugfit.doctor.observe.source.script_syntax import last_name, spans, syntax_of
from snugfit.doctor.observe.source.trails import place_of

LEAST_UPDATES = 3
LEAST_PASSES = 8
FEW_STEPS = 2


def named(parameters: Sequence[ParameterSeen]) -> str:
    """Return the first names, and how many more."""
    names = [each.name for each in parameters]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _in_optimizers(log: Log) -> set[int]:
    return {number for optimizer in log.optimizers for number in optimizer.parameters}


def _in_last_optimizers(log: Log) -> set[int]:
    """Return the numbers of the parameters of those optimizers that have stepped since the last one was built."""
    stepping: set[int] = set()
    for event in log.events:
        if isinstance(event, OptimizerBuilt):
            stepping.clear()
        elif isinstance(event, Step):
            stepping.add(event.optimizer)
    return {number for each in log.optimizers if each.id in stepping for number in each.parameters}


def _home(log: Log, parameters: Sequence[ParameterSeen]) -> str:
    """Return where the optimizer of these was made."""
    numbers = {each.id for each in parameters}
    owner = next((each for each in log.optimizers if numbers & set(each.parameters)), None)
    return owner.at if owner else ""


def _model_line(log: Log, parameters: Sequence[ParameterSeen]) -> str:
    return next((model.at for model in log.models if model.id == parameters[0].model), "")


def _zeroed_at(log: Log, products: Sequence[ParameterSeen]) -> str:
    """Return the line of a class that fills one of its parameters with zeros by a call of its own; where none does, the line that makes the first."""
    place = place_of(products[0].made_at, log.sources)
    tree = syntax_of(place[0]) if place else ast.Module([], [])
    owner = next(
        (e for e in ast.walk(tree) if isinstance(e, ast.ClassDef) and place and spans(e, place[1])), tree
    )
    lines = {each.made_at.rpartition(":")[2] for each in products}
    put = (e for e in ast.walk(owner) if isinstance(e, ast.Assign) and str(e.lineno) in lines)
    names = {last_name(target) for each in put for target in each.targets} - {""}
    for call in (each for each in ast.walk(owner) if isinstance(each, ast.Call)):
        values = [*call.args, *(each.value for each in call.keywords)]
        nothing = any(isinstance(each, ast.Constant) and not each.value for each in values)
        zeroes = last_name(call.func) in ("zeros_", "zero_") or (
            last_name(call.func) in ("constant_", "fill_") and nothing
        )
        if zeroes and names & {last_name(each) for each in ast.walk(call)}:
            return f"{products[0].made_at.rpartition(':')[0]}:{call.lineno}"
    return products[0].made_at


def no_gradient(log: Log) -> list[Finding]:
    """Detect parameters in an optimizer that never got a gradient, got only zeros, or never moved."""
    used = _in_optimizers(log)
    seen = [each for each in log.parameters if each.id in used and each.trainable and each.updates >= 2]
    without = [each for each in seen if each.no_gradient == each.updates]
    findings = _all_frozen(log)
    if without and any(step.cleared for step in log.of(Step)) and len(without) == len(seen):
        return []  # they were cleared before the step, which is a finding of its own
    if without:
        findings.append(_without(log, seen, without))
    rest = [each for each in seen if each not in without and each.updates >= LEAST_UPDATES]
    zero = [each for each in rest if each.zero_gradient + each.no_gradient == each.updates]
    products = _products_of_zeros(zero)
    if products:
        findings.append(
            Finding(
                "no_gradient",
                Certainty.CERTAIN,
                f"{len(products)} parameters begin as zeros and are multiplied with each other alone: the gradient of each is the other, and none will ever move.",
                _zeroed_at(log, products),
                (named(products), f"all zeros, and their gradients too, in {products[0].updates} updates"),
                "self.a = nn.Parameter(torch.randn(rank, inputs) / rank)   # one of the two; the other begins as zeros",
            )
        )
        zero = [each for each in zero if each not in products]
    if zero:
        findings.append(_zero(log, seen, zero, _certainty_by_share(rest, zero)))
    still = [each for each in rest if each not in zero and not each.moved]
    if still:
        rate = max(each.largest_rate for each in still)
        findings.append(
            Finding(
                "no_gradient",
                _certainty_of_still(log, rest, still),
                f"{len(still)} of {len(seen)} parameters have gradients and did not move in {still[0].updates} updates.",
                _home(log, still),
                (named(still), f"largest learning rate: {rate:g}"),
                "Keep float32 weights, and check the learning rate of their group and the schedule's first values."
                if rate
                else "Their learning rate is 0: check the group's lr and the schedule.",
            )
        )
    return findings


def _zero(log: Log, seen: list[ParameterSeen], zero: list[ParameterSeen], certainty: Certainty) -> Finding:
    """Return what is said of gradients that are exactly zero: a layer norm over one value, which gives its bias whatever it gets, is why."""
    what = f"The gradient of {len(zero)} of {len(seen)} parameters was exactly zero in all {zero[0].updates} updates."
    narrow = [each.at for each in log.of(NarrowNorm)]
    if narrow:
        what += " A layer norm over one value gives its bias, whatever it gets."
        why = f"{len(narrow)} layer norms over one value, the first made at {narrow[0]}"
        fix = "width = 32   # a layer norm needs several values to compare"
        return Finding("no_gradient", certainty, what, narrow[0], (named(zero), why), fix)
    where = _model_line(log, zero) or _home(log, zero)
    fix = "Look for a saturated or rounding operation between them and the loss; a softmax over one class gives zeros too."
    return Finding("no_gradient", certainty, what, where, (named(zero),), fix)


def _products_of_zeros(parameters: Sequence[ParameterSeen]) -> list[ParameterSeen]:
    """Return the matrices of zeros that lie in one module two by two, beside no other parameter whose gradient is zero."""
    by_module: dict[int, list[ParameterSeen]] = {}
    for each in parameters:
        by_module.setdefault(each.owner, []).append(each)
    pairs = [each for owner, each in by_module.items() if owner and len(each) == 2]
    return [
        one for pair in pairs if all(e.zeros and e.dims > 1 and not e.moved for e in pair) for one in pair
    ]


def _certainty_of_still(log: Log, seen: list[ParameterSeen], still: list[ParameterSeen]) -> Certainty:
    """Return how sure it is that weights should move which have gradients: a rate of 0 that no schedule changes is no way to freeze."""
    numbers = {each.id for each in still}
    own = {each.id for each in log.optimizers if numbers & set(each.parameters)}
    scheduled = any(each.optimizer in own for each in log.schedulers)
    matrices = any(each.dims > 1 for each in still)
    if not any(each.largest_rate for each in still) and log.zero_rate:
        return Certainty.WORTH_A_LOOK  # it is how some freeze
    if matrices and not scheduled and not any(each.largest_rate for each in still):
        return Certainty.LIKELY
    return _certainty_by_share(seen, still)


def _certainty_by_share(seen: list[ParameterSeen], bad: list[ParameterSeen]) -> Certainty:
    """Half of a model is no accident, one bias may be: before a batch norm, or where a difference of means cancels it."""
    if len(bad) == len(seen):
        return Certainty.CERTAIN
    large = 2 * sum(each.elements for each in bad) >= sum(each.elements for each in seen)
    return Certainty.LIKELY if large and any(each.largest_rate for each in bad) else Certainty.WORTH_A_LOOK


def _without(log: Log, seen: list[ParameterSeen], without: list[ParameterSeen]) -> Finding:
    harmless = _why_harmless(seen, without)
    what = f"{len(without)} of {len(seen)} parameters in the optimizer got no gradient in {without[0].updates} updates."
    cut = _cut(log, without)
    if len(without) == len(seen):
        step = next(log.of(Step)).at
        idle = next((each for each in log.of(Backward) if not each.touched), None)
        return Finding(
            "no_gradient",
            Certainty.CERTAIN,
            what,
            step if idle is None else cut or idle.made_at or idle.at,
            (named(without), f"the step is at {step}"),
            "Call loss.backward() on a loss that was computed from the model's output, without detach(), .data or no_grad() between.",
        )
    return Finding(
        "no_gradient",
        Certainty.WORTH_A_LOOK if harmless else Certainty.LIKELY,
        f"{what} {harmless}".rstrip(),
        cut or _model_line(log, without) or _home(log, without),
        (named(without),),
        "Use them in forward(), or freeze them: parameter.requires_grad_(False). If they should learn, look for detach(), .data, "
        "no_grad() or a module that forward() forgets.",
    )


def _why_harmless(seen: list[ParameterSeen], without: list[ParameterSeen]) -> str:
    """Return why some parameters may well have no gradient; "" where nothing is known."""
    if all(each.library for each in without) and any(each.library and each not in without for each in seen):
        return "They belong to a part of a library's model that the loss does not use."
    template, copies = _template(seen, without)
    return f"They belong to {template}, of which {copies} are copies, and those train." if copies else ""


def _template(seen: list[ParameterSeen], without: list[ParameterSeen]) -> tuple[str, str]:
    """Return the module that all of some parameters are in and the list of its copies that train, as `nn.TransformerEncoder` makes them of a layer; "" where there are none."""
    trained = {each.name: each.elements for each in seen if each not in without}
    parts = without[0].name.split(".")
    for depth in range(1, len(parts)):
        template, last = ".".join(parts[:depth]), ".".join(parts[depth:])
        one_of_a_list = parts[depth - 1].isdigit()
        if one_of_a_list or not all(each.name.startswith(f"{template}.") for each in without):
            continue
        rest = {each.name.removeprefix(f"{template}."): each.elements for each in without}
        for name in (each for each in trained if each.endswith(f".{last}")):
            copy = name.removesuffix(f".{last}")
            copies, _, number = copy.rpartition(".")
            if number.isdigit() and all(trained.get(f"{copy}.{each}") == size for each, size in rest.items()):
                return template, copies
    return "", ""


def _cut(log: Log, without: list[ParameterSeen]) -> str:
    """Return the line behind which these parameters have no graph, with as few others as possible; "" where none has all of them."""
    wanted = {each.id for each in without}
    cuts = [(len(behind), at) for at, behind in log.cuts.items() if wanted <= set(behind)]
    if cuts:
        nearest = [at for size, at in cuts if size == min(cuts)[0]]
        # of one part called in another the outer one comes first; of a GAN's two passes the one of its generator comes last
        steps = {step.optimizer for step in log.of(Step)}
        return nearest[-1] if len(steps) > 1 else nearest[0]
    parts = [(len(behind), at) for at, behind in log.cuts.items() if behind and wanted >= set(behind)]
    if parts:  # others have no gradient for a reason of their own
        return max(parts, key=lambda part: part[0])[1]
    models = {each.model for each in without}
    passes = [event for event in log.of(Forward) if event.module in models and event.training]
    alone = len(models) == 1 and passes and not any(event.grad for event in passes)
    return passes[0].at if alone else ""


def frozen_moves(log: Log) -> list[Finding]:
    """Detect that an optimizer step changed a parameter that is frozen."""
    moved = [each for each in log.parameters if each.frozen_moved]
    if not moved:
        return []
    return [
        Finding(
            "frozen_moves",
            Certainty.CERTAIN,
            f"{len(moved)} parameters with requires_grad=False are changed by optimizer.step().",
            _home(log, moved),
            (
                named(moved),
                f"changed by {moved[0].frozen_moved} steps: momentum, weight decay or an old gradient goes on",
            ),
            "for parameter in frozen:\n    parameter.requires_grad_(False)\n    parameter.grad = None\n"
            "optimizer = type(optimizer)([p for p in model.parameters() if p.requires_grad], lr=lr)",
        )
    ]


def frozen_late(log: Log) -> list[Finding]:
    """Detect parameters that the first call of train() freezes, after updates have trained them."""
    first = min(log.train_calls, default=0)
    late = [
        each for each in log.parameters if each.frozen_from == first > 0 and each.moved and not each.thawed
    ]
    if not late:
        return []
    return [
        Finding(
            "frozen_moves",
            Certainty.LIKELY,
            f"{len(late)} parameters are frozen from update {first + 1} on, and were trained until then: train() is called first there.",
            _home(log, late),
            (named(late), f"{first} updates before the first train()"),
            "model.train()   # before the optimizer is made and the first batch",
        )
    ]


def frozen_for_good(log: Log) -> list[Finding]:
    """Detect an optimizer that steps no more, or without a gradient, since its parameters were frozen for another's turn and are never trained again."""
    for optimizer, own in frozen_since(log).items():
        seen = next(each for each in log.optimizers if each.id == optimizer)
        return [
            Finding(
                "no_gradient",
                Certainty.LIKELY,
                f"{own} steps of {seen.name} in {log.updates} updates move anything: all of its {len(seen.parameters)} parameters are frozen after that.",
                seen.at,
                ("requires_grad is False for each of them at the end",),
                "critic.requires_grad_(True)   # before its own turn, each time",
            )
        ]
    return []


def frozen_since(log: Log) -> dict[int, int]:
    """Return the optimizers whose parameters are all frozen at the end, though they step on or another one's turn froze them; with the steps that moved something."""
    frozen = {}
    for optimizer in log.optimizers:
        mine = [step for step in log.of(Step) if step.optimizer == optimizer.id]
        own = max((place for place, step in enumerate(mine, 1) if not step.without), default=0)
        on = len(mine) - own >= LEAST_PASSES
        if optimizer.frozen_at_end and own and log.updates >= LEAST_PASSES and (own <= FEW_STEPS or on):
            frozen[optimizer.id] = own
    return frozen


def _all_frozen(log: Log) -> list[Finding]:
    """Return the optimizers that step again and again, and of which no parameter ever trains: all are frozen."""
    trained = {each.id for each in log.parameters if each.trainable or each.moved}
    known = {each.id for each in log.parameters}
    for optimizer in log.optimizers:
        own = set(optimizer.parameters)
        mine = [step for step in log.of(Step) if step.optimizer == optimizer.id]
        idle = len(mine) >= 2 and all(step.without for step in mine)
        if idle and own and own <= known and not own & trained:
            return [
                Finding(
                    "no_gradient",
                    Certainty.CERTAIN,
                    f"All {len(own)} parameters of {optimizer.name} are frozen: its {len(mine)} steps change nothing.",
                    mine[0].at,
                    (f"the optimizer is made at {optimizer.at}", "a loss without a graph is no loss of them"),
                    "for parameter in model.head.parameters():\n    parameter.requires_grad = True   # before the optimizer is made",
                )
            ]
    return []


def not_frozen(log: Log) -> list[Finding]:
    """Detect an attribute that was meant to freeze: a parameter reads `requires_grad` alone, and a module has no such attribute."""
    for model in log.models:
        if model.misspelt:
            name, attribute = next(iter(model.misspelt.items()))
            on_module = attribute == "requires_grad"
            return [
                Finding(
                    "not_frozen",
                    Certainty.CERTAIN,
                    f"{name}.{attribute} = False freezes nothing: "
                    + ("a module has no such setting." if on_module else "the setting is requires_grad."),
                    model.misspelt_at or model.at,
                    (
                        f"{len(model.misspelt)} parameters or modules have it, and train: {', '.join(list(model.misspelt)[:4])}",
                    ),
                    f"model.{name}.requires_grad_(False)" if on_module else "parameter.requires_grad = False",
                )
            ]
    return []


def not_in_optimizer(log: Log) -> list[Finding]:
    """Detect parameters that get gradients and that no optimizer knows."""
    used, stepping = _in_optimizers(log), _in_last_optimizers(log)
    outside = [e for e in log.parameters if e.outside >= 2 and e.id not in stepping and not e.moved_outside]
    left = [each for each in outside if each.frozen_at_build and each.id in used]
    outside = [each for each in outside if each.id not in used]
    late = [each for each in outside if each.frozen_at_build]
    findings = [
        Finding(
            pitfall,
            Certainty.CERTAIN,
            f"{len(unfrozen)} parameters {what}",
            log.optimizers[-1].at,
            (named(unfrozen), f"they had gradients in {unfrozen[0].outside} updates"),
            'optimizer.add_param_group({"params": [p for p in unfrozen.parameters()], "lr": lr})',
        )
        for pitfall, unfrozen, what in (
            (
                "not_in_optimizer",
                left,
                "were frozen when the last optimizer was built, and train again: the one that had them before steps no more.",
            ),
            (
                "group_holes",
                late,
                "were unfrozen after the optimizer was built, and are in none of its groups.",
            ),
        )
        if unfrozen
    ]
    rest = [each for each in outside if not each.frozen_at_build]
    partly = {each.model for each in log.parameters if each.id in used}
    holes = [each for each in rest if each.model in partly]
    whole = [each for each in rest if each.model not in partly]
    if holes:
        # the last: one before it may be that of a pre-training
        optimizer = next(
            (o for o in reversed(log.optimizers) if _shares_model(log, o.parameters, holes[0].model)),
            log.optimizers[0],
        )
        listed = holes[0].listed_at if all(each.listed_at for each in holes) else ""
        findings.append(
            Finding(
                "not_in_optimizer",
                Certainty.CERTAIN,
                f"{len(holes)} parameters get gradients and are in no optimizer: they never train."
                + " Their layers lie in a list or dictionary of Python's, and are no part of the model."
                * bool(listed),
                listed or optimizer.at,
                (named(holes), *([f"the optimizer is made at {optimizer.at}"] if listed else [])),
                "self.layers = nn.ModuleList(layers)   # or nn.ModuleDict: model.parameters() has them then"
                if listed
                else "optimizer = Optimizer(model.parameters(), lr=lr)   # after the model is complete\n"
                "# or, if they should stay: parameter.requires_grad_(False)",
            )
        )
    if whole and log.optimizers:
        findings.append(
            Finding(
                "not_in_optimizer",
                Certainty.LIKELY,
                f"A model in training mode gets gradients for {len(whole)} parameters, and is in no optimizer.",
                _likely_home(log).at,
                (named(whole), f"it is called at {_model_line(log, whole)}"),
                "optimizer = Optimizer([*first.parameters(), *second.parameters()], lr=lr)\n# or: second.requires_grad_(False)",
            )
        )
    return findings


def made_anew(log: Log) -> list[Finding]:
    """Detect a layer that each forward pass makes anew: its weights are others each time, and no optimizer has them."""
    updates: dict[str, set[int]] = {}
    names: dict[str, str] = {}
    for event in log.of(LayerMadeAnew):
        updates.setdefault(event.at, set()).add(event.update)
        names[event.at] = event.name
    for at, seen in updates.items():
        if len(seen) >= LEAST_UPDATES:
            return [
                Finding(
                    "not_in_optimizer",
                    Certainty.CERTAIN,
                    f"{names[at]} is made anew in each forward pass: its weights are drawn each time, and no optimizer has them.",
                    at,
                    (f"made in {len(seen)} of the first updates",),
                    "self.layer = nn.Linear(inputs, outputs)   # once, in __init__, before the optimizer is made",
                )
            ]
    return []


def _likely_home(log: Log) -> OptimizerSeen:
    """Return the optimizer that was meant for a model which is in none: one that steps without gradients of its own, or has another's parameters; else the first."""
    unfed = next((each for each in log.optimizers if _is_unfed(log, each)), None)
    if unfed is not None:
        return unfed
    for place, optimizer in enumerate(log.optimizers):
        if any(set(optimizer.parameters) & set(each.parameters) for each in log.optimizers[:place]):
            return optimizer
    return log.optimizers[0]


def _is_unfed(log: Log, optimizer: OptimizerSeen) -> bool:
    """Return whether no step of an optimizer follows a backward pass that changed its gradients, though each follows one."""
    steps, passes, fed = 0, 0, False
    for event in log.events:
        if isinstance(event, Backward):
            passes, fed = passes + 1, fed or optimizer.id in event.touched
        elif isinstance(event, Step):
            if event.optimizer == optimizer.id:
                if fed or not passes:
                    return False
                steps += 1
            passes, fed = 0, False
    return steps >= 2


def _shares_model(log: Log, numbers: list[int], model: int) -> bool:
    return any(each.model == model for each in log.parameters if each.id in set(numbers))


def twice_in_optimizer(log: Log) -> list[Finding]:
    """Detect that a parameter is in one optimizer twice, or in two that step in turns."""
    names = {each.id: each for each in log.parameters}
    findings = []
    for optimizer in log.optimizers:
        if optimizer.doubled:
            doubled = [names[number] for number in dict.fromkeys(optimizer.doubled)]
            findings.append(
                Finding(
                    "twice_in_optimizer",
                    Certainty.CERTAIN,
                    f"{len(doubled)} parameters are given to {optimizer.name} twice.",
                    optimizer.doubled_at,
                    (named(doubled),),
                    "parameters = {id(p): p for p in all_of_them}.values()   # each once",
                )
            )
    order = [step.optimizer for step in log.of(Step)]
    for place, first in enumerate(log.optimizers):
        for second in log.optimizers[place + 1 :]:
            both = set(first.parameters) & set(second.parameters)
            if both and _in_turns([each for each in order if each in (first.id, second.id)]):
                doubled = [names[number] for number in first.parameters if number in both]
                wrong, right = (first, second) if _is_unfed(log, first) else (second, first)
                findings.append(
                    Finding(
                        "twice_in_optimizer",
                        Certainty.LIKELY,
                        f"{len(doubled)} parameters are in two optimizers that step in turns: each keeps its own momentum of them.",
                        wrong.at,
                        (named(doubled), f"the other optimizer: {right.at}"),
                        "Give each parameter to one optimizer, and what differs to its groups.",
                    )
                )
    return findings


def _in_turns(order: list[int]) -> bool:
    return sum(one != other for one, other in itertools.pairwise(order)) >= 2


def decay_on_vectors(log: Log) -> list[Finding]:
    """Weight decay also shrinks biases and the weights of norms."""
    by_id = {each.id: each for each in log.parameters}
    for optimizer in log.optimizers:
        vectors = [by_id[number] for number in optimizer.decayed if by_id[number].dims < 2]
        if vectors:
            return [
                Finding(
                    "decay_on_vectors",
                    Certainty.WORTH_A_LOOK,
                    f"{optimizer.name} decays {len(vectors)} biases and norms; most recipes leave them out.",
                    optimizer.at,
                    (named(vectors),),
                    'groups = [\n    {"params": [p for p in model.parameters() if p.dim() > 1]},\n'
                    '    {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},\n]',
                )
            ]
    return []


DETECTORS = (
    no_gradient,
    frozen_moves,
    frozen_late,
    frozen_for_good,
    not_frozen,
    not_in_optimizer,
    made_anew,
    twice_in_optimizer,
    decay_on_vectors,
)
