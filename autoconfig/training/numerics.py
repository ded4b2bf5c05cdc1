"""Types, dropout and adapters of a run: as asked, else as the software and such models have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoconfig.specs.errors import InputError, option
from autoconfig.specs.hardware.cluster import GpuSpec
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.remarks import Effect, Remark, note
from autoconfig.specs.scenario import BLACKWELL, LORA_MODULES, PRECISION_WORDS, PRECISIONS, Numerics
from autoconfig.specs.software.software import SoftwareStack

OF_ATTENTION = LORA_MODULES[:2]


@dataclass(frozen=True)
class AskedNumerics:
    """What a question says of its numerics: values of the fields of Numerics, master_weights among them, None: nothing. What is
    taken where nothing is said goes to `assumed`."""

    fields: Mapping[str, object]

    @property
    def trains_adapters(self) -> bool:
        """Whether adapters are trained. Raises InputError for fields of adapters where they are refused."""
        return trains_adapters(self.fields)

    def software(self, named: str | None, assumed: list[Remark]) -> str | None:
        """The software that is asked for, or the one that runs what no Megatron stack does."""
        fields = with_masters(self.fields)
        name = not_megatrons(fields)
        if named is not None or not name:
            return named
        why = f"transformers, with {option(name)} {fields[name]}"
        assumed.append(Remark("software", QUANTISED_STACK, why, Effect.EVERYTHING))
        return QUANTISED_STACK

    def read(self, model: ModelSpec, gpu: GpuSpec, stack: SoftwareStack, assumed: list[Remark]) -> Numerics:
        """The types, dropout and adapters that are given, else those that the stack and such models have. Raises InputError."""
        given: dict[str, Any] = {key: value for key, value in with_masters(self.fields).items() if value is not None}
        _read_precision(given, gpu, stack, assumed)
        if trains_adapters(given):
            given |= read_adapters(given, model, assumed)
        if (name := not_megatrons(given)) and stack.sharding == "megatron":
            raise InputError(
                f"{option(name)} {str(given[name])[:20]} is not Megatron's, as which {stack.name} is priced, but runs "
                f"under transformers: {option('software')} {QUANTISED_STACK}",
                field=name,
            )
        if given.get("optimizer") == "muon":
            assumed.append(Remark("optimizer", "muon", "its Newton-Schulz iterations are left out of the time", Effect.TIME))
        _read_gradients(given, stack, assumed)
        if given.get("optimizer") == "paged_adam8bit":
            assumed.append(note(PAGED))
        _read_dropout(given, model, assumed)
        return Numerics(**given)


def _read_precision(given: dict[str, Any], gpu: GpuSpec, stack: SoftwareStack, assumed: list[Remark]) -> None:
    if "precision" not in given:
        given["precision"] = "bf16" if "bf16" in gpu.flops_per_s else "fp16"
        assumed.append(Remark("precision", given["precision"], ""))
    precision, recipe = given["precision"], given.get("fp8_recipe")
    if precision in PRECISION_WORDS and precision not in PRECISIONS:
        if recipe not in (None, precision):
            raise InputError(f"{option('precision')} {precision} is fp8 with this recipe; drop {option('fp8_recipe')} {recipe}")
        given |= {"precision": "fp8", "fp8_recipe": precision}
    elif precision == "fp8" and recipe is None and (stack.release or scales_by_tensor(stack)):
        given["fp8_recipe"] = usual_fp8_recipe(stack, gpu)
        assumed.append(Remark("fp8_recipe", given["fp8_recipe"], f"as {stack.name} runs fp8 on {gpu.id}"))


def _read_gradients(given: dict[str, Any], stack: SoftwareStack, assumed: list[Remark]) -> None:
    """Types of gradients, and of the weights that are gathered. Raises InputError where weights in bf16 alone are of no use."""
    if given.get("weights_are_masters"):
        if trains_adapters(given) or given["precision"] != "bf16" or given.get("grad_reduce_dtype", "bf16") != "bf16":
            raise InputError(
                f"{option('weights_are_masters')} is of training all weights in bf16, whose gradients are bf16, too: leave out "
                f"{option('peft')}, other values of {option('precision')} and {option('grad_reduce_dtype')}",
                field="weights_are_masters",
            )
        given["grad_reduce_dtype"] = "bf16"
    if "grad_reduce_dtype" not in given:
        given["grad_reduce_dtype"] = stack.memory.default_grad_dtype
        assumed.append(Remark("grad_reduce_dtype", given["grad_reduce_dtype"], ""))
    if given["precision"] == "fp8" and "fp8_param_gather" not in given and stack.memory.default_fp8_param_gather:
        given["fp8_param_gather"] = True
        assumed.append(Remark("fp8_param_gather", True, f"as {stack.name} runs fp8"))


def _read_dropout(given: dict[str, Any], model: ModelSpec, assumed: list[Remark]) -> None:
    default = usual_dropout(model)
    missing = [key for key in ("attention_dropout", "hidden_dropout") if key not in given]
    given |= dict.fromkeys(missing, default)
    why = "Megatron's default" if default else "as models of this kind are trained"
    assumed += [Remark(key, default, why * (key == missing[-1])) for key in missing]


def with_masters(numerics: Mapping[str, object]) -> dict[str, object]:
    """The fields of numerics, master_weights in the word of Numerics. Raises InputError where both are said and differ."""
    fields = dict(numerics)
    word = fields.pop("master_weights", None)
    if word is None:
        return fields
    if word not in ("fp32", "none"):
        raise InputError(f"{option('master_weights')} {str(word)[:20]!r}: use fp32 or none", field="master_weights")
    if fields.get("weights_are_masters") not in (None, word == "none"):
        raise InputError(f"{option('master_weights')} {word} contradicts {option('weights_are_masters')}: drop one of them")
    return {**fields, "weights_are_masters": True} if word == "none" else fields


PAGED = "paged moments are counted in host memory and priced as fast as on the GPU, where they stay while there is room"
QUANTISED_STACK = "torch-eager"
"""As which layers of transformers are priced, whose linear layers bitsandbytes quantises."""


def not_megatrons(numerics: Mapping[str, object]) -> str:
    """The given field of numerics that says something that no Megatron stack has; empty: none."""
    names = ("frozen_dtype", "optimizer", "weights_are_masters", "optimizer_in_backward")
    return next((name for name in names if numerics.get(name) not in (None, getattr(Numerics, name))), "")


def scales_by_tensor(stack: SoftwareStack) -> bool:
    """Whether its fp8 is torchao's, which has no delayed scaling any more (float8/README.md from 0.6 of September 2024 on)."""
    return stack.sharding == "torch" and stack.year >= 2024


def usual_fp8_recipe(stack: SoftwareStack, gpu: GpuSpec) -> str:
    """Scaling where nothing is said: of dated releases MXFP8 on Blackwell, by tensor before it and with torchao; of others
    delayed."""
    if not stack.release:
        return "tensorwise" if scales_by_tensor(stack) else "delayed"
    return "mxfp8" if (gpu.compute_capability or 0.0) >= BLACKWELL else "tensorwise"


def usual_dropout(model: ModelSpec) -> float:
    """Megatron's default for models of the time of GPT-3; later ones train without."""
    return 0.1 if model.position_embedding_type == "learned_absolute" else 0.0


def trains_adapters(numerics: Mapping[str, object]) -> bool:
    """Whether adapters are trained. Raises InputError for fields of adapters where they are refused."""
    fields = [name for name in ("lora_rank", "lora_target_modules", "frozen_dtype") if numerics.get(name) is not None]
    if fields and numerics.get("peft") == "none":
        raise InputError(f"{option(fields[0])} is for adapters, and {option('peft')} none trains all weights: drop one of them")
    return bool(fields) or numerics.get("peft") not in (None, "none")


def read_adapters(given: Mapping[str, Any], model: ModelSpec, assumed: list[Remark]) -> dict[str, Any]:
    """Kind, rank and layers of the adapters; what is not given is said in `assumed`. Raises InputError for adapters on experts,
    which no formula prices."""
    if "peft" not in given:
        assumed.append(Remark("peft", "lora", "as its adapters are given"))
    if "lora_rank" not in given:
        assumed.append(Remark("lora_rank", Numerics.lora_rank, ""))
    modules = given.get("lora_target_modules")
    if modules is None:
        named = OF_ATTENTION if model.is_moe else LORA_MODULES
        if model.is_moe:
            assumed.append(Remark("lora_target_modules", "attention", "none on experts"))
    else:
        named = tuple(modules.replace(",", " ").split() if isinstance(modules, str) else modules)
    if model.is_moe and (odd := [name for name in named if name in LORA_MODULES and name not in OF_ATTENTION]):
        raise InputError(
            f"{option('lora_target_modules')} {odd[0]}: {model.name} has experts, and adapters on experts are not priced here; "
            f"give {' or '.join(OF_ATTENTION)}"
        )
    return {"peft": given.get("peft", "lora"), "lora_target_modules": named}
