"""LoRA, DoRA, rsLoRA and LoRA+: low-rank adapters beside frozen weights."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from torch import nn

from snugfit.core.parameters import ParameterGroup, divided
from snugfit.core.technique import Card, Context, Family, Fidelity, Seams, Stage, Technique
from snugfit.errors import ModelError, SettingError, SnugfitWarning
from snugfit.kit.adapters.adapter_files import CONFIG, adapter_config, load_adapter, names_base
from snugfit.kit.adapters.adapters import adapted, inject, merged, require_peft
from snugfit.kit.adapters.embedding_rows import token_rows
from snugfit.kit.adapters.target_modules import head_of, targets_of
from snugfit.kit.module_patterns import matched_by


def lora_(
    model: nn.Module,
    rank: int = 8,
    alpha: float = 16.0,
    dropout: float = 0.0,
    targets: Sequence[str] = (),
    *,
    dora: bool = False,
    rslora: bool = False,
    head: Sequence[str] | None = None,
    tokens: Sequence[str | int] = (),
) -> nn.Module:
    """Freeze `model` and put a trainable `B A * alpha / rank` beside each target's weight, in place; `B` begins at zero.

    Args:
        targets: patterns of modules' names; without any, every linear layer and convolution but a language model's output.
        dora: the length of each row of the weight is learned apart from its direction.
        rslora: scale by `alpha / sqrt(rank)`.
        head: patterns of modules to train in full; None stands for the head of a stock classifier.
        tokens: whose rows train too, in the embeddings and in a head that has rows of its own: by their numbers, or as the tokenizer
            writes them that a recipe's model has.
    Raises:
        SettingError: a pattern matches nothing, or something that cannot be adapted; a token is none of the model's.
        MissingExtra: peft is not installed.
    Source: Hu et al. 2021, arXiv:2106.09685; DoRA: arXiv:2402.09353; rsLoRA: arXiv:2312.03732; by peft.

    >>> model = lora_(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), rank=1, targets=["0"])
    >>> [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    ['0.lora_A.default.weight', '0.lora_B.default.weight']
    """
    require_peft()
    from peft import LoraConfig

    heads = head_of(model, head, "lora")
    layers = targets_of(model, targets, heads, "lora")
    rows = token_rows(model, tokens, "lora.tokens") if tokens else {}
    for name in rows:
        if name in layers or matched_by(heads, name):
            raise SettingError(
                "lora.tokens",
                f"'{name}' trains already, by lora.{'targets' if name in layers else 'head'}",
                "Remove one.",
            )
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        use_dora=dora,
        use_rslora=rslora,
        trainable_token_indices=rows or None,
    )
    return inject(model, config, layers, heads)


def is_second(name: str) -> bool:
    """Return whether the parameter is an adapter's `B`, which begins at zero.

    >>> is_second("fc.lora_B.default.weight"), is_second("fc.lora_A.default.weight")
    (True, False)
    """
    return "lora_B" in name or "lora_embedding_B" in name


@dataclass(frozen=True)
class LoRA(Technique):
    """Train low-rank adapters and the head; what is evaluated has them beside the weights, what is saved has them merged."""

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    targets: tuple[str, ...] = ()
    dora: bool = False
    rslora: bool = False
    head: tuple[str, ...] | None = None
    tokens: tuple[str | int, ...] = ()
    plus: float = 1.0
    start: str | None = None

    card: ClassVar[Card] = Card(
        name="lora",
        summary="Trains small low-rank matrices beside frozen weights, and merges them into the model that is saved.",
        aliases=("low-rank adapters", "PEFT"),
        family=Family.LEARNING,
        source="Hu et al. 2021, arXiv:2106.09685; DoRA 2402.09353; rsLoRA 2312.03732; LoRA+ 2402.12354; peft",
        seams=("groups", "export"),
        stages=(Stage.ADAPT,),
        fidelity=Fidelity.ADAPTERS,
        paths=("start",),
        added=("tokens",),
        saves_memory=True,
        cost="rank * (inputs + outputs) parameters a layer; no gradients or moments of the rest; DoRA: a norm a forward",
        use_when="a large pretrained model is tuned in little memory; ten times the learning rate of full tuning",
    )

    def __post_init__(self) -> None:
        self.require("rank", self.rank >= 1, "at least 1")
        self.require_positive("alpha", "plus")
        self.require("dropout", 0 <= self.dropout < 1, "in [0, 1)")
        if self.start is not None and (self.targets or self.head or self.tokens):
            raise SettingError(
                "lora.start",
                "names an adapter, which has its own layers, and lora.targets, lora.head or lora.tokens names others",
                "Remove one.",
            )

    @classmethod
    def example(cls) -> Self:
        return cls(rank=2, alpha=8.0, plus=4.0)

    @property
    def reads_weights(self) -> bool:
        # its magnitudes are the weights' norms; rows begin as they are
        return self.dora or len(self.tokens) > 0

    def prepare(self, model: nn.Module) -> nn.Module:
        if self.start is not None:
            return self._gone_on_with(model, Path(self.start))
        return lora_(
            model,
            self.rank,
            self.alpha,
            self.dropout,
            self.targets,
            dora=self.dora,
            rslora=self.rslora,
            head=self.head,
            tokens=self.tokens,
        )

    def seams(self, context: Context) -> Seams:
        return Seams(groups=self._faster, export=merged)

    def _gone_on_with(self, model: nn.Module, start: Path) -> nn.Module:
        """Put the adapter of a folder on the model, which has to be what the settings say.

        Raises:
            ModelError, SettingError: it is another one, or of another model.
        """
        if adapted(model):
            raise SettingError(
                "lora.start", "the model has adapters already", "Merge them first, or leave lora.start out."
            )
        # best/ of a run, or the run's folder
        places = (start, start / "adapter", start / "best" / "adapter")
        folder = next((place for place in places if (place / CONFIG).is_file()), start)
        try:
            config = adapter_config(folder)
        except ModelError as error:
            raise error.about("lora.start") from error
        kind = getattr(config.peft_type, "value", config.peft_type)
        if kind != "LORA":
            raise SettingError(
                "lora.start", f"{folder} holds an adapter of the kind {kind}", "Name one of lora."
            )
        base = getattr(getattr(model, "config", None), "name_or_path", "")
        if base and (Path(base) / "adapter").resolve() == folder.resolve():
            raise SettingError(
                "lora.start",
                f"{folder} is merged into the weights of {base} already",
                f"Name the model that it was trained on: model: {config.base_model_name_or_path}.",
            )
        trained_on = config.base_model_name_or_path
        if base and trained_on and not names_base(trained_on, base):
            warnings.warn(
                f"lora.start: {folder} was trained on {trained_on}, and goes on beside the weights of {base}",
                SnugfitWarning,
                stacklevel=2,
            )
        alike = {
            "rank": config.r,
            "alpha": config.lora_alpha,
            "dora": config.use_dora,
            "rslora": config.use_rslora,
        }
        for name, there in alike.items():
            if getattr(self, name) != there:
                raise SettingError(
                    f"lora.{name}",
                    f"is {getattr(self, name)}, and the adapter of lora.start ({folder}) has {there}",
                    f"Write {name}: {str(there).lower()}.",
                )
        try:
            return load_adapter(model, folder, dropout=self.dropout)
        except ModelError as error:
            raise error.about("lora.start") from error

    def _faster(self, groups: list[ParameterGroup]) -> list[ParameterGroup]:
        """LoRA+: `B` learns at a multiple of the rate of `A`."""
        if self.plus == 1:
            return groups
        cut = divided(groups, lambda name, _: "lora_B" if is_second(name) else None)
        return [
            {**group, "lr_factor": group.get("lr_factor", 1.0) * self.plus} if part else group
            for part, group in cut
        ]
