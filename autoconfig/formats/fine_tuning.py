"""Fine-tuning plans as the files of what trains them: overrides of a Megatron-Bridge recipe; for plans without tensor, pipeline
or context parallelism TRL's configuration with PEFT's adapters, and accelerate's file."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from autoconfig.formats.hooks.accelerate import ACCELERATE
from autoconfig.formats.hooks.deepspeed import DEEPSPEED
from autoconfig.formats.writers import bridge, trainers, trl
from autoconfig.formats.writers.table import WRITERS
from autoconfig.formats.writers.trl import LAUNCH, SFT
from autoconfig.specs.errors import GIB, UnsupportedError
from autoconfig.specs.models.model_catalogue import hub_id
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.software.software import StackOptions, load_stack, with_options
from autoconfig.training.price import report_plan
from autoconfig.training.rank import rank

OVERRIDES = "overrides.txt"
FINE_TUNING_FILES = (OVERRIDES, SFT, LAUNCH, "train.yaml", "axolotl.yaml")
LIKELY = 0.9
"""The least chance to fit of what is written for TRL, as of what a search shows first."""


def fine_tuning_texts(scenario: Scenario, plan: TrainPlan) -> dict[str, str]:
    """Return file name -> text, for each framework that can train the plan. Raises UnsupportedError where none can."""
    refused = {"Megatron-Bridge": bridge.refused(scenario, plan), "TRL": trl.refused(scenario, plan)}
    texts = {} if refused["Megatron-Bridge"] else {OVERRIDES: bridge.write(scenario, plan).text}
    local = None if refused["TRL"] else trl_plan(scenario, plan)
    if local is not None:
        texts |= trainer_texts(scenario, local, "trl")
    elif not refused["TRL"]:
        refused["TRL"] = ["a micro-batch that its layers have the memory for"]
    if not texts:
        reasons = "; ".join(f"{name} cannot say {', '.join(odd)}" for name, odd in refused.items())
        raise UnsupportedError(f"no files of fine-tuning: {reasons}; plan.json holds the plan")
    return texts


def trainer_texts(scenario: Scenario, plan: TrainPlan, form: str) -> dict[str, str]:
    """Return file name -> text of the plan itself for a program around Hugging Face's Trainer, with what says its sharding:
    accelerate's file beside TRL's, the DeepSpeed file that LLaMA-Factory's names. Raises UnsupportedError."""
    if odd := WRITERS[form].refused(scenario, plan):
        raise UnsupportedError(f"{form} cannot say {', '.join(odd)}; plan.json holds the plan")
    written = WRITERS[form].write(scenario, plan)
    texts = {written.file_name: written.text}
    if form == "trl":
        texts[LAUNCH] = ACCELERATE.write(scenario, plan).text
    if form == trainers.FACTORY and (named := trainers.deepspeed_name(plan)):
        texts[named] = DEEPSPEED.write(scenario, plan).text
    return texts


TRAINER_FILES = ("train.yaml", "axolotl.yaml")
RUN_LENGTH = {OVERRIDES: "train.train_iters={}", SFT: "max_steps: {}", **dict.fromkeys(TRAINER_FILES, "max_steps: {}")}
"""File -> its line for a number of optimizer steps (TrainingConfig.train_iters; transformers.TrainingArguments.max_steps)."""


def with_length(texts: Mapping[str, str], steps: int | None) -> dict[str, str]:
    """Return the texts with the steps of the tokens that were asked for; None: none were, and the trainer's own number
    holds."""
    lines = {} if steps is None else {file: f"{line.format(steps)}\n" for file, line in RUN_LENGTH.items()}
    return {file: text + lines.get(file, "") for file, text in texts.items()}


def as_trl(scenario: Scenario) -> Scenario:
    """Return the scenario with TRL's layers and loss."""
    return replace(scenario, software=with_options(load_stack(trl.SOFTWARE), StackOptions(loss_fusion=trl.LOSS)))


def trl_plan(scenario: Scenario, plan: TrainPlan) -> TrainPlan | None:
    """Return the plan as TRL is to run it, whose unfused layers hold more than Megatron's: itself where it fits there, too,
    else the fastest of data parallelism that does; None where none does."""
    own = as_trl(scenario)
    local = plan.replace(dist_opt=False)  # nothing to shard of the optimizer state of adapters
    if report_plan(own, local, None).confidence.fit_probability >= LIKELY:
        return local
    ranking = rank(own, ACCELERATE.wish, fit_chance=LIKELY)
    likely = len(ranking.best) and ranking.fit_chance_met
    return ranking.plan(int(ranking.best[0])) if likely else None


def trl_differs(scenario: Scenario, plan: TrainPlan, texts: Collection[str]) -> str:
    """Return what the files of TRL do otherwise than the plan, or why there are none; empty where they do the same."""
    if SFT not in texts:
        odd = ", ".join(trl.refused(scenario, plan)) or "no micro-batch that its layers have the memory for"
        return f"no {SFT}: TRL cannot say {odd}; autoconfig search --format trl ranks what TRL runs"
    local = trl_plan(scenario, plan)
    if local is None or local == plan.replace(dist_opt=False):
        return ""
    peak = report_plan(as_trl(scenario), local, None)
    return (
        f"{SFT} has {local}: TRL's layers (priced as {trl.SOFTWARE}) hold more than Megatron's; {peak.peak_bytes / GIB:.1f} of "
        f"{peak.limit_bytes / GIB:.1f} GiB, {peak.step_seconds:.3g} s a step. autoconfig search --format "
        "trl ranks what TRL runs"
    )


def fine_tuning_command(scenario: Scenario, folder: Path, texts: Collection[str]) -> str:
    """Return what starts the plan: TRL where it can, else a recipe of Megatron-Bridge."""
    for file, command in (("train.yaml", "llamafactory-cli train"), ("axolotl.yaml", "axolotl train")):
        if file in texts:
            return f"{command} {shlex.quote(str(folder / file))}"
    if SFT in texts:
        files = f"--config {shlex.quote(str(folder / SFT))} --accelerate_config {shlex.quote(str(folder / LAUNCH))}"
        checkpoint = "" if scenario.model.model_type else hub_id(scenario.model.name)
        return f"trl sft {files} --model_name_or_path {checkpoint or 'CHECKPOINT'} --dataset_name DATA"
    return bridge.command(scenario, shlex.quote(str(folder / OVERRIDES)))
