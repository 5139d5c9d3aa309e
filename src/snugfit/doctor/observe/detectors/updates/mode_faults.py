"""Modes and dtypes of the model: training and evaluation, batch norm, half precision."""

from __future__ import annotations

from collections import Counter

from snugfit.doctor.findings import Certainty, Finding
from snugfit.doctor.observe.events.log import Log, ModelSeen
from snugfit.doctor.observe.events.log_views import (
    LEAST_PASSES,
    is_one_batch,
    is_scored,
    trained_models,
    windows,
)
from snugfit.doctor.observe.events.run_events import ForgottenMode, TakenOut
from snugfit.doctor.observe.events.script_events import (
    ATTENTION,
    Backward,
    Batch,
    Compared,
    Drop,
    EpochEnd,
    Event,
    Forward,
    Hits,
    Loss,
    SklearnScore,
    Step,
)
from snugfit.doctor.observe.events.state_events import Average, Restore

TINY_ROWS = 8
SMALL_ROWS = 32
FEW_PICTURES, FEW_ACCUMULATED = 2, 4
"""Rows of a batch whose many pixels are no more than so many pictures."""
LARGE_INPUT, FAR_INPUT = 10.0, 100.0
PICTURE = 30.0


def _models(log: Log) -> dict[int, ModelSeen]:
    return {model.id: model for model in log.models}


def _models_of_optimizers(log: Log) -> dict[int, set[int]]:
    """Return the models of the parameters of each optimizer."""
    models = {each.id: each.model for each in log.parameters}
    return {
        each.id: {models[number] for number in each.parameters if number in models} for each in log.optimizers
    }


def trains_in_evaluation_mode(log: Log) -> list[Finding]:
    """Detect that every forward pass of an update ran with dropout and batch norm switched off.

    Passes of models that the optimizer does not move, such as a teacher's that was trained before, are none of its update.
    """
    models, trained, moved = _models(log), trained_models(log), _models_of_optimizers(log)
    bad: list[Forward] = []
    updates = 0
    since: dict[int, list[Forward]] = {}  # the passes of each optimizer's models since its last step
    differentiated = False
    for event in log.events:
        if (
            isinstance(event, Forward)
            and event.grad
            and event.module in trained
            and models[event.module].modal
        ):
            for optimizer, own_models in moved.items():
                if event.module in own_models:
                    since.setdefault(optimizer, []).append(event)
        elif isinstance(event, Backward):
            differentiated = differentiated or bool(event.touched)
        elif isinstance(event, Step):
            own = since.pop(event.optimizer, [])
            if own and differentiated:
                updates += 1
                if not any(each.training or each.at_rest for each in own):
                    bad.append(own[0])
            differentiated = False
    if not bad or (len(bad) < 2 and updates > 1) or _is_frozen_norm_tuning(log, bad[0]):
        return []
    modal = models[bad[0].module].modal
    return [
        Finding(
            "train_mode",
            Certainty.CERTAIN,
            f"{len(bad)} of {updates} updates are computed with the model in evaluation mode: dropout and batch norm are off.",
            _switched_off_at(log, bad[0]) or bad[0].at,
            (
                f"first in update {bad[0].update + 1}, at {bad[0].at}",
                f"modules that this switches off: {', '.join(modal[:4])}",
            ),
            "model.train()   # before each epoch, and again after each evaluation",
        )
    ]


def _switched_off_at(log: Log, forward: Forward) -> str:
    """Return the line that last switched the model of a pass, or what it is in, to evaluation before it; "" where none was seen."""
    before = [each for each in log.switched_off if each.update <= forward.update and each.at]
    own = [each.at for each in before if each.module == forward.module]
    called = {model.id for model in log.models}
    return (own or [each.at for each in before if each.module not in called] or [""])[-1]


def _is_frozen_norm_tuning(log: Log, forward: Forward) -> bool:
    """Return the only modules with modes belong to a part whose parameters are all frozen."""
    parts = {name.split(".")[0] for name in _models(log)[forward.module].modal}
    own = [e for e in log.parameters if e.model == forward.module and e.name.split(".")[0] in parts]
    return bool(own) and not any(each.trainable for each in own)


def evaluates_in_training_mode(log: Log) -> list[Finding]:
    """Detect that a model is scored while dropout is on, or while batch norm uses (and learns) the batch's own statistics."""
    trained = trained_models(log) | {event.module for event in log.of(Average)}
    if not log.optimizers:  # a script that only evaluates what it has loaded
        trained |= {event.module for event in log.of(Restore)}
    scorers = _evaluation_loaders(log)
    bad = []
    loader = 0
    for place, event in enumerate(log.events):
        if isinstance(event, Batch):
            loader = event.loader
        if (
            not isinstance(event, Forward)
            or event.module not in trained
            or event.recalibrates
            or not (event.training and event.affected)
        ):
            continue
        fresh = _came_with_batch(log.events, place)
        alone = not fresh or not log.optimizers
        if (fresh and loader in scorers) or (
            alone and not event.grad and is_scored(log.events, place, compared=False)
        ):
            bad.append(event)
    bad = (
        bad
        or _compared_by_hand(log, trained)
        or _scored_together(log, trained)
        or _scored_in_part(log, trained)
        or _scored_at_the_end(log, trained)
    )
    if not bad:
        return []
    modal = _models(log)[bad[0].module].modal
    return [
        Finding(
            "train_mode",
            Certainty.CERTAIN,
            f"{len(bad)} evaluation batches are scored with the model in training mode.",
            bad[0].at,
            (f"modules that are in training mode: {', '.join(modal[:4])}",),
            "model.eval()\nwith torch.no_grad():\n    ...\nmodel.train()",
        )
    ]


def drops_in_evaluation(log: Log) -> list[Finding]:
    """Detect that passes in evaluation mode, which are scored, drop at random: a function was not told the mode."""
    trained = trained_models(log) | {event.module for event in log.of(Average)}
    scorers = _evaluation_loaders(log)
    call = loader = 0
    dropped: dict[str, list[Drop]] = {}
    passes: set[int] = set()
    for place, event in enumerate(log.events):
        if isinstance(event, Batch):
            loader = event.loader
        elif isinstance(event, Forward):
            call = place
        elif isinstance(event, Drop):
            forward = log.events[call]
            known = isinstance(forward, Forward) and forward.module in trained
            by_loader = loader in scorers and _came_with_batch(log.events, call)
            if known and (by_loader or is_scored(log.events, call, compared=False)):
                dropped.setdefault(event.at, []).append(event)
                passes.add(call)
    if not dropped:
        return _drops_in_methods(log)
    at, events = max(dropped.items(), key=lambda each: len(each[1]))
    function = events[0].function
    return [
        Finding(
            "train_mode",
            Certainty.CERTAIN,
            f"{len(passes)} evaluation batches are scored while {function} drops at random: eval() does not reach it.",
            at,
            ("a function has no mode of its own: it drops unless it is told not to",),
            f"F.{function}(x, p=0.5, training=self.training)"
            if function != ATTENTION
            else "F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)",
        )
    ]


def teaches_in_training_mode(log: Log) -> list[Finding]:
    """Detect a model that has been trained, and then gives another one its targets or features while its dropout or batch norm is in training mode."""
    models, moved = _models(log), _models_of_optimizers(log)
    learned: dict[int, int] = {}  # the last step of each model's optimizer, by place
    stepped: list[int] = []
    for place, event in enumerate(log.events):
        if isinstance(event, Step):
            stepped.append(place)
            learned.update(dict.fromkeys(moved.get(event.optimizer, ()), place))
    passes: dict[int, list[int]] = {}
    for place, event in enumerate(log.events):
        if not isinstance(event, Forward) or place < learned.get(event.module, len(log.events)):
            continue
        switched_on = event.training and event.affected and not (event.grad or event.recalibrates)
        if switched_on and not is_scored(log.events, place):
            passes.setdefault(event.module, []).append(place)
    for number, places in passes.items():
        updates = {sum(each < place for each in stepped) for place in places}
        if len(updates - {len(stepped)}) >= LEAST_PASSES:  # others learn between
            return [
                Finding(
                    "train_mode",
                    Certainty.LIKELY,
                    f"A model that learns no more computes without a graph for another one that does, in training mode in {len(places)} passes.",
                    log.events[places[0]].at,
                    (f"modules that are in training mode: {', '.join(models[number].modal[:4])}",),
                    "teacher.eval()   # once it is trained, and not teacher.train() again",
                )
            ]
    return []


def gives_features_in_training_mode(log: Log) -> list[Finding]:
    """Detect a network that gives features or scores, and is no model of an optimizer but a part of one or none, whose batch norm takes each batch's own statistics while its outputs are taken to NumPy.

    Not passes that read a loader again and again, whose draws are looked at together, nor those of inputs that are drawn, as a generator's are.
    """
    models, moved = _models(log), trained_models(log) | {event.module for event in log.of(Average)}
    passes: dict[int, list[Forward]] = {}
    whole: dict[int, int] = {}  # how often each loader came to its end
    loader = 0
    for place, event in enumerate(log.events):
        if isinstance(event, Step | Backward):
            whole = {}
        elif isinstance(event, Batch):
            loader = event.loader
        elif isinstance(event, EpochEnd):
            whole[event.loader] = whole.get(event.loader, 0) + 1
        elif isinstance(event, Forward) and event.module not in moved and models[event.module].norms:
            switched_on = event.training and event.affected and not (event.grad or event.recalibrates)
            taken = place + 1 < len(log.events) and isinstance(log.events[place + 1], TakenOut)
            once = not whole.get(loader)
            if switched_on and taken and once and _came_with_batch(log.events, place):
                passes.setdefault(event.module, []).append(event)
    for number, seen in passes.items():
        if len(seen) >= LEAST_PASSES:
            return [
                Finding(
                    "train_mode",
                    Certainty.LIKELY,
                    f"What a network gives is taken to NumPy in {len(seen)} passes, and that is in training mode: each row depends on the others of its batch.",
                    seen[0].at,
                    (
                        f"batch norms that take each batch's own statistics: {', '.join(models[number].norms[:4])}",
                        f"rows of a batch: {', '.join(map(str, dict.fromkeys(each.rows for each in seen)))}",
                    ),
                    "model.eval()   # before it gives features or scores",
                )
            ]
    return []


def _drops_in_methods(log: Log) -> list[Finding]:
    """Return functions that drop in methods of modules in evaluation mode, such as `encode()`, without having been told any mode."""
    seen = list(log.of(ForgottenMode))
    if len(seen) < 2 or not log.optimizers:
        return []
    name = seen[0].function
    return [
        Finding(
            "train_mode",
            Certainty.LIKELY,
            f"{name} drops at random in a module that is in evaluation mode: eval() does not reach it.",
            seen[0].at,
            (
                f"{len(seen)} times without a graph",
                "a function has no mode of its own: it drops unless it is told not to",
            ),
            f"F.{name}(x, p=0.5, training=self.training)",
        )
    ]


def _evaluation_loaders(log: Log) -> set[int]:
    """Loaders whose batches are never differentiated, while those of another are."""
    handed: set[int] = set()
    trained: set[int] = set()
    current = 0
    forward = False
    for event in log.events:
        if isinstance(event, Batch):
            current, forward = event.loader, False
        elif isinstance(event, Forward):
            forward = True
            handed.add(current)
        elif isinstance(event, Backward) and forward:
            trained.add(current)
    return handed - trained - {0} if trained - {0} else set()


def _came_with_batch(events: list[Event], place: int) -> bool:
    """Return whether the batch was handed out after the last step or backward pass."""
    for event in reversed(events[:place]):
        if isinstance(event, Step | Backward):
            return False
        if isinstance(event, Batch):
            return True
    return False


def _compared_by_hand(log: Log, trained: set[int]) -> list[Forward]:
    """Return passes in training mode, without a graph, on rows that nothing trains on, whose predictions are compared with something.

    Not those that belong to most updates, as the targets of a consistency loss do; nor several passes that are looked at together,
    as those of Monte Carlo dropout are.
    """
    passes = []
    for place in log.held_out:
        event, before = log.events[place], log.events[place - 1] if place else None
        if not isinstance(event, Forward) or event.module not in trained or event.recalibrates:
            continue
        one_of_many = isinstance(before, Forward) and not before.grad and before.at == event.at
        one_of_many = one_of_many or _is_repeated(log.events, place)
        if event.training and event.affected and not one_of_many and _is_compared(log.events, place):
            passes.append(event)
    return passes if 2 * len({each.update for each in passes}) <= log.updates else []


def _is_repeated(events: list[Event], place: int) -> bool:
    """Return whether the same line calls the model again, or has called it before, and no loader has given other rows between."""
    at = events[place].at
    for others in (events[place + 1 :], events[:place][::-1]):
        other = next((each for each in others if not isinstance(each, TakenOut)), None)
        if isinstance(other, Forward) and not other.grad and other.at == at:
            return True
    return False


def _scored_together(log: Log, trained: set[int]) -> list[Forward]:
    """Return passes in training mode, without a graph, whose rows make up those that scikit-learn scores after them."""
    bad: list[Forward] = []
    passes: list[Forward] = []
    for event in log.events:
        if isinstance(event, Backward | Step):
            passes = []
        elif isinstance(event, Forward) and event.module in trained and not event.grad:
            passes.append(event)
        elif isinstance(event, SklearnScore):
            wrong = [each for each in passes if each.training and each.affected and not each.recalibrates]
            if sum(each.rows for each in passes) == event.rows:
                bad += [each for each in wrong if each not in bad]
    return bad


def _scored_in_part(log: Log, trained: set[int]) -> list[Forward]:
    """Return passes in training mode, without a graph, of a batch that is always the same, as a graph is, and of which some rows are scored."""
    bad: list[Forward] = []
    last: Forward | None = None
    for event in log.events:
        if isinstance(event, Forward):
            last = event
        elif isinstance(event, Backward | Step):
            last = None
        elif isinstance(event, Hits) and last is not None and event.batch == last.rows > event.rows:
            wrong = last.training and last.affected and not (last.grad or last.recalibrates)
            if wrong and last.module in trained:
                bad.append(last)
            last = None
    return bad if bad and is_one_batch(log.events) else []


def _scored_at_the_end(log: Log, trained: set[int]) -> list[Forward]:
    """Return passes in training mode, without a graph, on rows that nothing trains on, behind the last step, after which what they gave together is scored.

    Not where no batch has a size of its own, as where all pass again and again for Monte Carlo dropout, nor where a pass in evaluation mode
    or one of another model lies between. The loss may lie outside of `no_grad()`: nothing is differentiated any more.
    """
    acts = (place for place, event in enumerate(log.events) if isinstance(event, Backward | Step))
    last, held_out = max(acts, default=len(log.events)), set(log.held_out)
    block: list[tuple[int, Forward]] = []
    for place, event in enumerate(log.events[last + 1 :] if log.whole else [], last + 1):
        if isinstance(event, Forward):
            wrong = event.training and event.affected and not (event.grad or event.recalibrates)
            if not wrong or event.module not in trained or (block and block[0][1].module != event.module):
                block = []
            else:
                block.append((place, event))
        elif isinstance(event, Loss | SklearnScore) and block:
            sizes = Counter(each.rows for _, each in block)
            if any(at in held_out and sizes[each.rows] == 1 for at, each in block):
                return [each for _, each in block]
            block = []
    return []


def _is_compared(events: list[Event], place: int) -> bool:
    """Return whether a comparison, or an array for one, follows before the next forward pass, step or backward pass."""
    for event in events[place + 1 :]:
        if isinstance(event, Compared | TakenOut | Forward | Step | Backward):
            return isinstance(event, Compared | TakenOut)
    return False


def batch_norm(log: Log) -> list[Finding]:
    """Batch norm estimates its statistics from few values, or from each micro-batch alone."""
    for model in log.models:
        if not model.norms or not model.norm_rows:
            continue
        accumulating = [window for window in windows(log) if window.accumulates()]
        rows = model.norm_rows
        batches = [event.rows for event in log.of(Forward) if event.module == model.id and event.grad]
        # the first axis of an input may be another than that of the rows: the edges of a graph have two
        least = FEW_ACCUMULATED if accumulating else FEW_PICTURES
        few = bool(batches) and max(*batches, model.norm_batch) <= least
        if rows > TINY_ROWS and not accumulating and not few:
            continue
        bad = rows < SMALL_ROWS or few
        count = max((len(window.passes) for window in accumulating), default=1)
        under = f", while the update has {count * rows}" if accumulating else ""
        return [
            Finding(
                "batch_norm",
                Certainty.LIKELY if bad else Certainty.WORTH_A_LOOK,
                f"Batch norm estimates its statistics from {rows} values at a time{under}"
                + (f", of {max(batches)} rows." if few else "."),
                model.at,
                (f"batch norms: {', '.join(model.norms[:4])}",),
                "Use larger micro-batches, GroupNorm instead, or freeze the statistics: norm.eval() after model.train().",
            )
        ]
    return []


def shared_module(log: Log) -> list[Finding]:
    """Detect one module without weights at several places: its hooks, statistics and replacement cannot tell them apart."""
    return [
        Finding(
            "shared_module",
            Certainty.WORTH_A_LOOK,
            f"{len(model.shared)} modules without weights are used at several places.",
            model.at,
            tuple(
                f"{name or model.name}: {places} places" for name, places in list(model.shared.items())[:4]
            ),
            "Make one module per place: self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()",
        )
        for model in log.models
        if model.shared
    ]


def bf16_in_fp16(log: Log) -> list[Finding]:
    """Weights of a bfloat16 checkpoint run in float16, whose largest number is 65504."""
    models = _models(log)
    for event in log.of(Forward):
        model = models[event.module]
        if model.checkpoint_dtype == "bfloat16" and "float16" in (event.autocast, model.dtype):
            return [
                Finding(
                    "bf16_in_fp16",
                    Certainty.LIKELY,
                    f"{model.name} was pretrained in bfloat16 and runs in float16: activations above 65504 overflow.",
                    event.at,
                    (f"checkpoint: bfloat16; autocast: {event.autocast or 'off'}; weights: {model.dtype}",),
                    "with torch.autocast(device_type, dtype=torch.bfloat16):   # and no GradScaler",
                )
            ]
    return []


def emulated_bf16(log: Log) -> list[Finding]:
    """bfloat16 where the device has no instructions for it."""
    event = next((event for event in log.of(Forward) if not event.native), None)
    if event is None:
        return []
    return [
        Finding(
            "emulated_bf16",
            Certainty.WORTH_A_LOOK if event.device == "cpu" else Certainty.LIKELY,
            "The device computes bfloat16 by converting to float32: it saves memory and costs time.",
            event.at,
            ("the device reports no bfloat16 instructions",),
            "Use float16 with a GradScaler, or float32 (tf32 where there is), on this device.",
        )
    ]


def bias_before_norm(log: Log) -> list[Finding]:
    """Detect biases of layers whose output's mean a norm takes away."""
    return [
        Finding(
            "bias_before_norm",
            Certainty.WORTH_A_LOOK,
            f"{len(model.biased)} layers have a bias that the norm behind them takes away: it gets no gradient but rounding.",
            model.at,
            (", ".join(model.biased[:4]),),
            "nn.Conv2d(..., bias=False)   # before nn.BatchNorm2d, which has a bias of its own",
        )
        for model in log.models
        if model.biased and model.id in trained_models(log)
    ]


def unscaled_inputs(log: Log) -> list[Finding]:
    """Detect inputs far from the scale that the weights of a new layer are drawn for: pictures of 0 to 255, columns in their units."""
    return [
        Finding(
            "unscaled_inputs",
            Certainty.LIKELY
            if model.input_scale >= (PICTURE if model.image else FAR_INPUT)
            else Certainty.WORTH_A_LOOK,
            f"The first layer gets values of {model.input_scale:.3g} (root mean square), and is drawn for values of about 1.",
            model.at,
            (f"first layer: {model.first_layer or model.name}",),
            "pictures = pictures / 255"
            if model.image
            else "rows = (rows - mean) / deviation   # of the training rows",
        )
        for model in log.models
        if model.input_scale >= LARGE_INPUT and model.id in trained_models(log)
    ]


DETECTORS = (
    bias_before_norm,
    unscaled_inputs,
    trains_in_evaluation_mode,
    evaluates_in_training_mode,
    drops_in_evaluation,
    teaches_in_training_mode,
    gives_features_in_training_mode,
    batch_norm,
    shared_module,
    bf16_in_fp16,
    emulated_bf16,
)
