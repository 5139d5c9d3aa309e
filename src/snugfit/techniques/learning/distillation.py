"""Distillation: a teacher's scores, and if asked for its hidden states, are learned beside the labels."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugfit.core.batch import Batch, inputs_of
from snugfit.core.loss_terms import LossTerms
from snugfit.core.losses import logits_of
from snugfit.core.scalar_reads import is_fake
from snugfit.core.selection import in_order
from snugfit.core.technique import BatchLoss, Card, Context, Family, Seams, Stage, Technique, hash_of
from snugfit.errors import ModelError, SettingError
from snugfit.kit.language_models.chunked_loss_function import Part, before_chunks, current_part
from snugfit.kit.language_models.lm_head import LogitsInUse, Postponed, output_head, postponed, postponed_in
from snugfit.kit.losses.class_axis import class_scores, find_class_dim, refuse_embeddings
from snugfit.kit.module_patterns import find_module
from snugfit.kit.patched_forward import taking_any_float, without_fast_path
from snugfit.kit.placement import cloned
from snugfit.kit.sharded_tensors import is_sharded
from snugfit.kit.skeleton import made_anew
from snugfit.system.user_objects import describe, is_python_path, load_object

START = "start"


def divergence(student: Tensor, teacher: Tensor, temperature: float = 1.0, dim: int = -1) -> Tensor:
    """`T² KL(teacher || student)` of the distributions that both logits give when divided by T; in float32 at least.

    Its shape is that of the logits without `dim`.

    >>> divergence(torch.zeros(1, 2), torch.tensor([[0.0, 2.0]]), temperature=2.0)
    tensor([0.4438])

    Source: Hinton et al. 2015, arXiv:1503.02531, section 2.
    """
    wide = torch.promote_types(student.dtype, torch.float32)
    own = F.log_softmax(student.to(wide) / temperature, dim)
    other = F.log_softmax(teacher.to(wide) / temperature, dim)
    return temperature**2 * (other.exp() * (other - own)).sum(dim)


def feature_distance(student: Tensor, teacher: Tensor, shape: Sequence[int]) -> Tensor:
    """Mean squared difference of two features, for each place of a loss of that shape; in float32 at least.

    A loss of one value a row gets the mean over the row; one of a value a token that token's own.
    """
    wide = torch.promote_types(student.dtype, torch.float32)
    squares = (student.to(wide) - teacher.to(wide)).square()
    return squares.flatten(len(shape)).mean(dim=-1) if squares.ndim > len(shape) else squares


@dataclass(frozen=True)
class Distillation(Technique):
    """Learn `(1 - share)` of the labels' loss and `share` of a teacher's divergence, and match features if asked to.

    The teacher is frozen, in eval mode, and neither in the optimizer nor in a checkpoint, but for the model's own start. `projections` has the
    widths of features, the student's and the teacher's, between which a linear layer is learned: it is in optimizer and checkpoints, and not in
    the model that is delivered.
    """

    teacher: str
    share: float = 0.5
    temperature: float = 2.0
    features: Mapping[str, str] | None = None
    feature_weight: float = 1.0
    projections: Mapping[str, tuple[int, int]] | None = None
    device: str | None = None
    dtype: str | None = None
    teacher_techniques: tuple[Technique, ...] = ()

    __hash__ = hash_of

    card: ClassVar[Card] = Card(
        name="distillation",
        summary="Learns a frozen teacher's scores, and its hidden states if asked to, beside the labels.",
        aliases=("knowledge distillation", "teacher-student training"),
        family=Family.LEARNING,
        source="Hinton et al. 2015, arXiv:1503.02531; features: Romero et al. 2014 (FitNets), arXiv:1412.6550",
        seams=("loss", "modules", "export"),
        stages=(Stage.TEACH, Stage.COMPUTE),
        modules=("teacher",),
        cost="the teacher's weights, and its forward without gradient for each micro-batch of each pass",
        use_when="a large model is to be had for the task, and a small one has to serve it",
    )

    def __post_init__(self) -> None:
        self.require("share", 0 < self.share <= 1, "above 0, up to 1")
        self.require_positive("temperature")
        self.require_not_negative("feature_weight")
        self.require(
            "features",
            self.features is None or isinstance(self.features, Mapping),
            "module names of the student, each with one of the teacher",
        )
        widths = (self.projections or {}).items()
        self.require(
            "projections",
            all(name in (self.features or {}) and len(pair) == 2 and min(pair) > 0 for name, pair in widths),
            "names of features, each with the width in the student and in the teacher",
        )
        self.require(
            "dtype", self.dtype in (None, "float32", "bfloat16", "float16"), "float32, bfloat16 or float16"
        )
        for each in self.teacher_techniques:
            seams = set(each.card.seams) - {"modules", "forward", "export"}
            if seams:
                raise SettingError(
                    "distillation.teacher_techniques",
                    f"'{each.card.name}' has to do with updates ({', '.join(sorted(seams))}), and a teacher has none",
                    "Remove it.",
                )

    @classmethod
    def example(cls) -> Self:
        return cls(teacher=START)

    @property
    def keeps_start(self) -> bool:
        return self.teacher == START

    @property
    def reads_weights(self) -> bool:
        return self.keeps_start

    def prepare(self, model: nn.Module) -> nn.Module:
        if not self.projections:
            return model
        if isinstance(model, nn.Sequential):
            raise SettingError(
                "distillation.projections",
                "are learned beside the student's layers, and the model is a Sequential, which would call them one after the other",
                "Put it into a module of its own.",
            )
        made = nn.ModuleDict()
        for name, (own, other) in self.projections.items():
            module = find_module(model, name, "distillation.features")
            like = next(chain(module.parameters(), model.parameters()))
            device = "cpu" if like.is_meta else like.device
            dtype = like.dtype if like.dtype.is_floating_point else torch.get_default_dtype()
            made[_key(name)] = nn.Linear(own, other, device=device, dtype=dtype)
        model.add_module(_PROJECTIONS, made)
        return model

    def seams(self, context: Context) -> Seams:
        refuse_embeddings("distillation", context.loss)
        teacher = _Teacher(self, context)
        caught = {
            name: find_module(context.model, name, "distillation.features") for name in self.features or {}
        }
        outputs_of: dict[str, Tensor] = {}
        projections = {name: _projection(context.model, name) for name in self.projections or {}}

        def loss(next: BatchLoss) -> BatchLoss:
            def taught(outputs: Any, batch: Batch) -> LossTerms:
                terms = next(outputs, batch)
                part = current_part()
                scores, features = teacher(batch) if part is None else (teacher.of_part(part), {})
                logits = class_scores("distillation", outputs, context.loss)
                dim = find_class_dim("distillation", logits, terms.values, loss=context.loss)
                _require_shape("scores", logits, scores)
                if (
                    terms.weights is not None
                ):  # a NaN in a position of weight 0 would come back through softmax's backward
                    counted = (terms.weights > 0).unsqueeze(dim)
                    logits, scores = torch.where(counted, logits, 0.0), torch.where(counted, scores, 0.0)
                added = divergence(logits, scores, self.temperature, dim)
                values = (1 - self.share) * terms.values + self.share * added
                for name, feature in features.items():
                    own = outputs_of[name]
                    _require_rows(name, own, feature)
                    if name in projections:
                        own = _projected(name, projections[name], own)
                    elif own.shape != feature.shape and own.ndim == feature.ndim:
                        _require_width(name, own, feature)
                    _require_shape(f"features of '{name}'", own, feature)
                    distance = feature_distance(own, feature, terms.values.shape)
                    if terms.weights is not None:
                        distance = torch.where(terms.weights > 0, distance, 0.0)
                    values = values + self.feature_weight * distance
                return replace(terms, values=values)

            return taught

        @contextmanager
        def modules(_batch: Batch) -> Iterator[None]:
            with ExitStack() as stack:
                for name, module in caught.items():
                    stack.enter_context(_caught(module, outputs_of, name))
                stack.enter_context(before_chunks(teacher.before_chunks))
                yield
            outputs_of.clear()

        return Seams(loss=loss, modules=modules, export=_without_projections, state=teacher.start)


_PROJECTIONS = "distillation_projections"


def _key(name: str) -> str:
    """Return the name of a feature as that of a module; without a number, as those of blocks have one."""
    return f"of_{name.replace('.', '_')}"


def _projection(model: nn.Module, name: str) -> nn.Linear:
    projection = model.get_submodule(f"{_PROJECTIONS}.{_key(name)}")
    assert isinstance(projection, nn.Linear)
    return projection


def _projected(name: str, projection: nn.Linear, own: Tensor) -> Tensor:
    """Return a student's feature in the teacher's width: the last dimension, or the channels of a picture."""
    width = projection.in_features
    at = 1 if own.ndim == 4 and own.shape[1] == width else -1
    if own.shape[at] != width:
        raise SettingError(
            "distillation.projections",
            f"'{name}' is of width {width} there, and the student's feature has the shape {tuple(own.shape)}",
            f"Give {own.shape[-1]}.",
        )
    return projection(own.movedim(at, -1).to(projection.weight.dtype)).movedim(-1, at)  # type: ignore[no-any-return]


def _without_projections(model: nn.Module) -> nn.Module:
    """Return the model without what is learned for the teacher alone; the tensors of both are the same."""
    if _PROJECTIONS not in model._modules:
        return model
    delivered = copy.copy(model)
    delivered._modules = {name: each for name, each in model._modules.items() if name != _PROJECTIONS}
    return delivered


class _Teacher:
    """A frozen model that is asked for its scores and features; `start` is its state where no file holds it."""

    def __init__(self, settings: Distillation, context: Context) -> None:
        if is_fake(next(context.model.parameters())) and settings.teacher != START:
            model = made_anew(_loaded_outside(settings, context))
        else:
            model = _load(settings, context)
        model = model.requires_grad_(False).eval()
        dtype = None if settings.dtype is None else getattr(torch, settings.dtype)
        self.device = torch.device(settings.device) if settings.device else context.device
        if settings.device or dtype is not None or settings.teacher != START:
            model = model.to(device=self.device, dtype=dtype)
        for technique in in_order(settings.teacher_techniques, "prepare"):
            model = technique.prepare(model).requires_grad_(False).eval()
        model = context.spread(model)
        within = Context(model, self.device, seed=context.seed)
        ordered = in_order(settings.teacher_techniques, "modules")
        made = [technique.seams(within) for technique in ordered]
        self._contexts: list[Callable[[Batch], AbstractContextManager[Any]]] = [
            seam for seams in made for seam in (seams.modules, seams.forward) if seam is not None
        ]
        self.model, self.dtype = model, _main_dtype(model)
        self.forward = context.forward
        self.home = context.device
        self.caught = {
            name: find_module(model, of_teacher, "distillation.features")
            for name, of_teacher in (settings.features or {}).items()
        }
        self.start = _Start(model) if settings.teacher == START else None

    @torch.no_grad()
    def __call__(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Scores, and features by the student's names, on the batch's device."""
        moved = batch.to(self.device)
        features: dict[str, Tensor] = {}
        with self._around(moved), ExitStack() as stack:
            for name, module in self.caught.items():
                stack.enter_context(_caught(module, features, name))
            outputs = self._run(moved)
        return logits_of(outputs).to(self.home), {
            name: feature.to(self.home) for name, feature in features.items()
        }

    @torch.no_grad()
    def before_chunks(self, batch: Batch) -> tuple[Batch, Postponed | Tensor]:
        """Return a batch on the teacher's device, and scores whose logits are made some tokens at a time; all of them where it computes with them.

        Raises:
            SettingError: features are to be matched too.
        """
        if self.caught:
            raise SettingError(
                "distillation.features",
                "are those of whole rows, and chunked_loss computes the loss of some tokens at a time",
                "Remove one.",
            )
        moved = batch.to(self.device)
        # weights that are spread are there for a forward alone
        if not any(is_sharded(weight) for weight in self.model.parameters()):
            head = output_head(self.model, None, "distillation.teacher")
            with suppress(LogitsInUse), self._around(moved), postponed(head):
                later = postponed_in(self._run(moved))
                if later is not None:
                    return moved, later
        return moved, self(batch)[0]

    @torch.no_grad()
    def of_part(self, part: Part) -> Tensor:
        """Return the scores of a chunk, on the batch's device."""
        moved, scores = part.beginning(self.before_chunks)
        if isinstance(scores, Tensor):
            return part.chunk.seen(scores)
        with self._around(moved):
            logits: Tensor = scores.head(part.chunk.seen(scores.hidden))
        return logits.to(self.home)

    @contextmanager
    def _around(self, batch: Batch) -> Iterator[None]:
        """Temporarily compute as the teacher does, with a batch on its device."""
        with ExitStack() as stack:
            stack.enter_context(
                without_fast_path()
            )  # which no cast reaches: weights may be gathered in 16 bit
            for context in self._contexts:
                stack.enter_context(context(batch))
            if self.dtype is not None:
                stack.enter_context(taking_any_float(self.model, self.dtype))
            yield

    def _run(self, batch: Batch) -> Any:
        if self.forward is not None:
            return self.forward(self.model, batch.data)
        args, kwargs = inputs_of(batch.data)
        return self.model(*args, **kwargs)


class _Start:
    """The model as it was when the run began: no file holds it, so that a checkpoint has to."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def state_dict(self) -> dict[str, Any]:
        return {"parameters": dict(self._named())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, tensor in self._named():
                tensor.copy_(state["parameters"][name])

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self._model.named_parameters():
            yield name, parameter.detach()
        saved = self._model.state_dict(keep_vars=True)
        yield from ((name, buffer) for name, buffer in self._model.named_buffers() if name in saved)


def _loaded_outside(settings: Distillation, context: Context) -> nn.Module:
    """Return the teacher as it is outside of a dry run, where what reads its file is not pretended."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily():
        return _load(settings, context)


def _load(settings: Distillation, context: Context) -> nn.Module:
    source: Any = settings.teacher
    if isinstance(source, nn.Module):
        return cloned(source) if settings.teacher_techniques else source
    if source == START:
        return cloned(context.model) if context.start is None else context.start
    if is_python_path(source):
        teacher = load_object(source, setting="distillation.teacher")
        try:
            module = teacher if isinstance(teacher, nn.Module) else teacher()
        except Exception as failure:
            raise SettingError(
                "distillation.teacher", f"'{source}' failed: {describe(failure)}", "Correct the function."
            ) from failure
        if not isinstance(module, nn.Module):
            raise SettingError(
                "distillation.teacher",
                f"'{source}' gave {type(module).__name__}, not a torch.nn.Module",
                "Return a module.",
            )
        return module
    if context.load is None:
        raise SettingError(
            "distillation.teacher",
            f"'{source}' is the name of a model, and only a recipe for texts can load one by its name",
            "Give the module itself, or package.module:function.",
        )
    try:
        return context.load(source)
    except ModelError as error:
        raise SettingError("distillation.teacher", error.problem, error.remedy) from error


def _main_dtype(model: nn.Module) -> torch.dtype | None:
    """Return the type of most of the model's weights, of those that layers compute in; None without any."""
    counts = dict.fromkeys(_COMPUTING, 0)
    for parameter in model.parameters():
        if parameter.dtype in counts:
            counts[parameter.dtype] += parameter.numel()
    return max(counts, key=counts.__getitem__) if any(counts.values()) else None


_COMPUTING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@contextmanager
def _caught(module: nn.Module, into: dict[str, Tensor], name: str) -> Iterator[None]:
    """Temporarily put the first tensor that `module` gives into a dict."""

    def catch(_module: nn.Module, _args: Any, outputs: Any) -> None:
        into[name] = outputs if isinstance(outputs, Tensor) else outputs[0]

    handle = module.register_forward_hook(catch)
    try:
        yield
    finally:
        handle.remove()


def _require_rows(name: str, student: Tensor, teacher: Tensor) -> None:
    if student.shape[0] != teacher.shape[0]:
        raise SettingError(
            "distillation.features",
            f"'{name}' gives {student.shape[0]} rows in the student and {teacher.shape[0]} in the teacher: it "
            "computes other rows than those of the batch, as modules do inside of what packing packs",
            "Remove packing, or name modules outside of the model's body.",
        )


def _require_width(name: str, student: Tensor, teacher: Tensor) -> None:
    at = 1 if student.ndim == 4 and student.shape[2:] == teacher.shape[2:] else -1
    if student.shape[at] != teacher.shape[at]:
        widths = f"{student.shape[at]}, {teacher.shape[at]}"
        raise SettingError(
            "distillation.features",
            f"'{name}' has the shape {tuple(student.shape)} in the student and {tuple(teacher.shape)} in the teacher",
            f"Learn a projection between the two: projections: {{{name}: [{widths}]}}.",
        )


def _require_shape(what: str, student: Tensor, teacher: Tensor) -> None:
    if student.shape != teacher.shape:
        raise SettingError(
            "distillation.teacher",
            f"its {what} have the shape {tuple(teacher.shape)} and the student's {tuple(student.shape)}",
            "Give both the same labels or vocabulary, and features of as many tokens or pixels.",
        )
