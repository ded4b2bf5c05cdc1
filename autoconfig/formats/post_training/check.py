"""`autoconfig rl check FILE`: unknown keys, what cannot run, what fits, the step, and the better neighbour."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

from autoconfig.formats.post_training import nemo_rl, openrlhf, slime, trl, verl
from autoconfig.formats.post_training.keys import added_keys, key_types, lacking_keys, unknown_keys, version_of
from autoconfig.formats.post_training.legality import broken, broken_of_model
from autoconfig.formats.post_training.recognise import WANTED, Recognised, recognise
from autoconfig.formats.post_training.run import RlRun, job_of, map_of_framework, named_by, placement_of
from autoconfig.formats.post_training.verdict import (
    MicroBatchVerdict,
    chance_over_means,
    filled_up,
    hanging_on,
    pass_verdicts,
    verdict,
    with_fewer,
)
from autoconfig.formats.post_training.words import PLACEHOLDER, said_agents, said_lengths
from autoconfig.formats.writers.trl import LAUNCH
from autoconfig.maps.tree import NotKnown, Section, load_yaml
from autoconfig.megatron.check_input import read_settings
from autoconfig.planning.request_fields import POST_TRAINING_FILE
from autoconfig.planning.resolve import check_bounds, field_values
from autoconfig.planning.work import bounded, spend
from autoconfig.post_training.frameworks import Constants, load_algorithm
from autoconfig.post_training.job import Placement, PostTrainingJob
from autoconfig.post_training.price import PricedPlacement, price
from autoconfig.post_training.question import FIT_CHANCE, SampleRequest
from autoconfig.post_training.questions.unknowns import Unknown, unknowns, widened
from autoconfig.post_training.rank import Prices, rank
from autoconfig.specs.errors import GIB, InputError, chance_text, option, option_name
from autoconfig.specs.files import read_text
from autoconfig.specs.remarks import Effect, Remark, note
from autoconfig.time_model.hardware.efficiency import efficiency_of

BETTER = 0.98
"""A neighbour is worth saying from this share of the step on."""
LIKELIER = 0.01
"""And where none has the asked chance to fit, from so much more of it on."""
TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}


@dataclass(frozen=True, kw_only=True)
class RlFileRequest(SampleRequest):
    """What the person or program says beside a file, unread. None means not given."""

    set: tuple[str, ...] = ()
    """Keys of the file in place of their own values."""
    version: str | None = None
    """Release whose keys are taken; None: the newest that is known."""


def file_request(given: Mapping[str, Any]) -> RlFileRequest:
    """Return the request of what any edge was given, by the names of the fields. Raises InputError."""
    request = RlFileRequest(**field_values(POST_TRAINING_FILE, given))
    check_bounds(POST_TRAINING_FILE, request)
    return request


@dataclass(frozen=True, kw_only=True)
class RlCheck:
    """What `rl check` says of a file."""

    run: RlRun
    version: str
    unknown: tuple[Remark, ...]
    """Keys that the release does not take, each with a hint."""
    unread: tuple[str, ...] = ()
    """Keys of the file that the release takes and nothing here reads."""
    broken: tuple[str, ...]
    """What cannot run."""
    job: PostTrainingJob | None = None
    priced: PricedPlacement | None = None
    """None where the run is not legal."""
    chance: float = 0.0
    """To fit; where the mean response was assumed, over the means that such runs have."""
    unknowns: tuple[Unknown, ...] = ()
    """What the file does not say and widens the band, the one that does most first."""
    better: PricedPlacement | None = None
    """Of the placements that `rl` ranks with this `fit_chance`; None where the run's is as good."""
    fit_chance: float = FIT_CHANCE
    verdict: MicroBatchVerdict | None = None
    """Of the micro-batches of training."""
    passes: tuple[MicroBatchVerdict, ...] = ()
    """Of those of passes that have their own."""
    filled: PricedPlacement | None = None
    """Where they do not fit surely: the same placement with micro-batches filled up to a number of tokens, or of fewer samples
    where the file has no words for these."""
    fewer: int = 0
    """Samples of a micro-batch of `filled`; 0: filled up."""

    @property
    def filled_words(self) -> str:
        """Return the change of the file to `filled`, in its own words; empty where there is none."""
        tokens = self.filled.placement.tokens_per_gpu if self.filled else 0
        return changed_words(self.run, self.version, tokens=tokens, samples=self.fewer) if self.filled else ""

    @property
    def legal(self) -> bool:
        return not self.broken and not self.unknown

    @property
    def fits(self) -> bool:
        """Return whether every phase is within the GPU, and what waits within the host."""
        return self.priced is not None and self.priced.memory.fits

    @property
    def fit_chance_met(self) -> bool:
        """Return whether it fits with the chance of the question."""
        return self.fits and self.chance >= self.fit_chance

    @property
    def ends_at(self) -> MicroBatchVerdict | None:
        """Return of training and passes the one whose micro-batches exceed the GPU first; None: none does."""
        ending = [one for one in (self.verdict, *self.passes) if one is not None and one.first is not None]
        return min(ending, key=lambda one: one.first or 0, default=None)

    @property
    def headline(self) -> str:
        """Return the verdict on memory in a sentence; empty where the run is not legal."""
        if self.priced is None:
            return ""
        memory, ends = self.priced.memory, self.ends_at
        wanted = f"--fit-chance {self.fit_chance * 100:.6g}%"
        unsure = chance_text(self.chance) != chance_text(memory.chance)
        over = f" over the mean responses of such runs ({chance_text(memory.chance)} at the assumed one)" if unsure else ""
        if self.fit_chance_met:
            return f"It fits: chance {chance_text(self.chance)}{over}"
        if ends is not None:
            return f"It likely runs out of memory at micro-batch {ends.first} of {ends.drawn} of {ends.phase}"
        if memory.fits:
            least = f"{memory.fullest} takes {memory.peak_bytes / GIB:.1f} of {memory.device_bytes / GIB:.1f} GiB"
            least = memory.host_words if memory.host_fit <= self.chance else least
            return f"It may run out of memory: chance to fit {chance_text(self.chance)}{over}, below {wanted}; {least}"
        return "It does not fit"


@bounded()
def read_file(text: str, given: Mapping[str, Any], folder: Path | None = None) -> tuple[Recognised, RlRun]:
    """Return the run of the text of a file in `folder`. Raises InputError or UnsupportedError saying what is read."""
    return _read(text, file_request(given), folder)


def _read(text: str, request: RlFileRequest, folder: Path | None) -> tuple[Recognised, RlRun]:
    document = _with_settings(text, request, folder)
    notes = _name_the_model(document, request)
    run = READERS[document.framework](document, request.gpus, request.version)
    run.means, run.agents = said_lengths(text), said_agents(text)
    run.notes += [*notes, *document.notes, *_gpus_of(document.framework, run, request.gpus)]
    return document, run


def _with_settings(text: str, request: RlFileRequest, folder: Path | None) -> Recognised:
    """Return the file's settings with those that the caller says instead: of its variables, and of its keys."""
    settings = read_settings(request.set)
    shell = {name: value for name, value in settings.items() if re.search(rf"\$(?:{name}\b|\{{{name}\b)", text)}
    document = replace(recognise(text, folder, shell), set_keys=tuple(key for key in settings if key not in shell))
    flat = document.section.flat
    flat |= {key: load_yaml(value) for key, value in settings.items() if key not in shell or key in flat}
    return document


def _name_the_model(document: Recognised, request: RlFileRequest) -> list[Remark]:
    """Put the caller's model, or the catalogue's whose name ends its path, in place of one that is not known. Raises
    InputError where none is known."""
    flat, remarks = document.section.flat, []
    keys = map_of_framework(document.framework).entry("model").keys
    for key in [key for key in keys if key in flat] or keys[:1]:
        value = flat.get(key)
        if request.model:
            flat[key] = request.model
        elif isinstance(value, NotKnown) and (name := _by_its_end(value.text)):
            flat[key] = name
            remarks.append(Remark("model", name, f"as {value.text[:80]} ends", Effect.EVERYTHING))
        elif isinstance(value, NotKnown) or value == PLACEHOLDER:
            raise InputError(f"{key} is not known, as the file leaves it to who starts it: say {option('model')} NAME")
    return remarks


READERS = {
    "verl": verl.read,
    "nemo-rl": nemo_rl.read,
    "openrlhf": openrlhf.read,
    "slime": slime.read,
    "swift": trl.read_swift,
    "trl": trl.read,
}


def _several_turns(run: RlRun, request: RlFileRequest) -> None:
    """Set what samples do between turns: as the question says, else as a remark of our own files says. Raises InputError."""
    agents, remarks = request.agents(load_algorithm(run.algorithm))
    run.notes += remarks
    if agents.turns > 1:
        run.agents = agents
    elif run.many_turns and run.agents.turns == 1:
        why = "samples have several turns, priced as one: say --turns and --tool-time"
        run.notes.append(note(why, Effect.TIME))


def _gpus_of(framework: str, run: RlRun, gpus: int | None) -> list[Remark]:
    """Return a note where the GPUs of the question are not those that the file names, which count; of TRL's none does."""
    if framework in ("trl", "swift") or gpus in (None, run.gpus):
        return []
    why = f"as the file says: {gpus:,} is for files that say none (change the file)"
    return [Remark("gpus", run.gpus, why, Effect.EVERYTHING)]


def _by_its_end(text: str) -> str | None:
    """Return the catalogue's model of a path whose folder alone is not known: `$HOME/models/Qwen2.5-7B`."""
    end = re.fullmatch(r"(?:[^$`]*+[$`])++[^/$`]*+/([^$`]++)", text)
    return named_by(end[1]) if end else None


def check_file(path: Path, given: Mapping[str, Any], constants: Constants | None = None) -> RlCheck:
    """Check the file at `path`, of TRL with accelerate's file beside it; `given`: model, gpus, gpu, prompt_length,
    response_length, version, set, download. Raises InputError."""
    beside = path.with_name(LAUNCH)
    launch = read_text(beside, WANTED) if path.name != LAUNCH and beside.is_file() else ""
    return check_text(read_text(path, WANTED), given, constants, launch, path.parent)


def _launched(text: str, request: RlFileRequest) -> tuple[RlFileRequest, str]:
    """Return (the request with the GPUs of accelerate's file, what of the file is said)."""
    values = load_yaml(text)
    processes = _count(values, "num_processes")
    if processes is None:
        raise InputError(f"{LAUNCH} beside it says no num_processes: correct it, or move it away and say {option('gpus')} N")
    machines = _count(values, "num_machines") or 0
    if machines > 0 and processes % machines:
        raise InputError(
            f"{LAUNCH} beside it has {processes:,} processes on {machines:,} machines, which do not share them evenly: "
            "num_processes counts those of all machines"
        )
    engine = values.get("deepspeed_config")
    stage = engine.get("zero_stage") if isinstance(engine, dict) else None
    kind = str(values.get("distributed_type", "NO")).upper()
    other = "" if (kind, stage) == ("DEEPSPEED", 3) else f"; its {kind} is priced as ZeRO-3 over all of them"
    if request.gpus:
        counts = f", {option_name('gpus')} {request.gpus:,} counts" if request.gpus != processes else ""
        return request, f"{LAUNCH} beside it is for {processes:,} GPUs{counts}{other}"
    return replace(request, gpus=processes), f"{processes:,} GPUs, as {LAUNCH} beside it says{other}"


def _count(values: Any, key: str) -> int | None:
    """Return the whole number of this key; None where it has none."""
    value = values.get(key) if isinstance(values, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


@bounded()
def check_text(
    text: str,
    given: Mapping[str, Any],
    constants: Constants | None = None,
    launch: str = "",
    folder: Path | None = None,
) -> RlCheck:
    """Check a file's text; `launch`: that of accelerate's file beside one of TRL, `folder`: where what it lies over is
    looked for."""
    request, beside = file_request(given), ""
    if launch and recognise(text, folder).framework == "trl":
        request, beside = _launched(launch, request)
    document, run = _read(text, request, folder)
    run.notes += [note(beside, Effect.EVERYTHING)] if beside else []
    gpu = request.gpu_spec
    if not request.gpu:
        run.notes.append(Remark("gpu", gpu.id, "", Effect.EVERYTHING))
    version = version_of(run.framework, request.version or run.version)
    odd = _odd(document, run, version)
    check = RlCheck(
        run=run,
        version=version,
        unknown=tuple(odd),
        unread=_unread(document, odd),
        broken=tuple(_refused(document, run, version)),
        fit_chance=request.fit_chance,
    )
    if check.broken:
        return check
    _several_turns(run, request)
    job = job_of(run, gpu, request.prompt_length, request.response_length, request.like, download=request.download)
    job = replace(job, host_memory_bytes=request.host_bytes)
    placement = placement_of(run, job.tokens)
    check = replace(check, job=job, broken=tuple(broken_of_model(run, job, placement)))
    return check if check.broken else _priced(check, job, placement, constants)


def _refused(document: Recognised, run: RlRun, version: str) -> list[str]:
    """Return what cannot run, whatever the model is."""
    wrong = broken(run)
    if run.algorithm == "dapo" and not wrong:
        run.notes.append(note("no KL term: no pass of a reference, priced as dapo"))
    if document.own_keys and (lacking := lacking_keys(run.framework, version, document.own_keys)):
        wrong.append(f"{run.framework} {version} requires {', '.join(lacking)}: give them, or `defaults:` that have them")
    return wrong


def _priced(legal: RlCheck, job: PostTrainingJob, placement: Placement, constants: Constants | None) -> RlCheck:
    """Add memory, the step and what is better, on the back end that the file has."""
    run, chance = legal.run, legal.fit_chance
    priced = price(job, placement, constants)
    run.notes += copies_of(job, priced)
    tokens = placement.tokens_per_gpu or max(8192, round(job.tokens))
    same = replace(job, framework=replace(job.framework, back_ends=(run.back_end,)))
    prices = Prices(same, tokens, placement.staleness, constants, chance)
    better = _better(priced, [one for one in rank(prices, placement.gpus) if one.memory.fits], chance)
    assumed = any(one.field == "response_length" for one in run.notes)
    run.notes += [note(hanging_on(job, placement, chance))] if assumed else []
    unsaid = ["response_length"] * assumed + ["version"] * (not run.engine_mode_said)
    missing = tuple(unknowns(prices.changed(job), priced, unsaid))
    overall = chance_over_means(job, priced) if assumed else priced.memory.chance
    filled, fewer = _surer(job, priced, run, legal.version, chance, overall)
    return replace(
        legal,
        priced=widened(priced, missing),
        chance=overall,
        unknowns=missing,
        better=widened(better, missing) if better else None,
        verdict=verdict(job, placement),
        passes=pass_verdicts(job, placement),
        filled=filled,
        fewer=fewer,
    )


def _odd(document: Recognised, run: RlRun, version: str) -> list[Remark]:
    """Return the keys that the release does not take, and values of another type; those that hydra adds get a note."""
    flat, written = document.section.flat, document.section.text
    spend(len(flat) * (1 + len(written) / 500))
    names = [key for key in flat if not isinstance(flat[key], NotKnown) and key not in run.other_keys]
    if run.framework == "slime":
        names = slime.own_keys(names)
    else:
        there = (key in written or key.rpartition(".")[2] in written or key in document.set_keys for key in names)
        names = list(compress(names, there))
    remarks = unknown_keys(run.framework, run.back_end, version, names, written)
    added = added_keys(run.framework, [one.field for one in remarks], written)
    run.notes += [Remark(key, None, "a key of the caller's own (+): not read") for key in added]
    return [*(one for one in remarks if one.field not in added), *_types(run.framework, document.section)]


def _unread(document: Recognised, odd: Iterable[Remark]) -> tuple[str, ...]:
    """Return the keys that stand in the file, are not wrong, and that nothing asked for."""
    section, wrong = document.section, {one.field for one in odd}
    spend(len(section.flat) * (1 + len(section.text) / 500))
    dashed = document.framework in ("slime", "swift")
    there = (key for key in section.unused() if key not in wrong)
    return tuple(key for key in there if key in section.text or (dashed and key.replace("_", "-") in section.text))


def _surer(
    job: PostTrainingJob, priced: PricedPlacement, run: RlRun, version: str, chance: float, overall: float
) -> tuple[PricedPlacement | None, int]:
    """Return (the placement with micro-batches that are filled up, or where the file cannot say these, of fewer samples;
    their samples), where training is not sure to fit (`overall`: its chance over means that were assumed) and that is surer."""
    if min(priced.memory.training_fit, overall) >= chance:
        return None, 0
    samples, placed = 0, filled_up(job, priced.placement, chance) if changed_words(run, version, tokens=1) else None
    if placed is None and (smaller := with_fewer(job, priced.placement, chance)) and changed_words(run, version, samples=1):
        samples, placed = smaller
    surer = placed is not None and placed.memory.chance > min(priced.memory.chance, overall) + LIKELIER
    return (placed, samples) if surer else (None, 0)


def changed_words(run: RlRun, version: str, *, tokens: int = 0, samples: int = 0) -> str:
    """Return the settings of the file's framework and release, in its newest words or those before, that fill micro-batches up
    to so many `tokens`, or make them of so many `samples`; empty where it has none."""
    table, name = map_of_framework(run.framework).more, "fewer" if samples else "filled"
    updates = max(1, run.minibatch // (run.train_gpus * max(samples, 1)))
    for text in (table.get(name, ""), table.get(f"{name}_before", "")):
        words = text.format(samples or tokens, updates)
        keys = [word.partition("=")[0].lstrip("-").replace("-", "_") for word in words.split() if not word.isdigit()]
        if words and not unknown_keys(run.framework, run.back_end, version, keys):
            return words
    return ""


def copies_of(job: PostTrainingJob, priced: PricedPlacement) -> list[Remark]:
    """Return the note on what offloading copies in a step: state of training out while the engines generate, and back. Its
    bytes over the host's link (time_model/hardware) are a lower bound: runs load weights for passes too."""
    node = min(job.gpus_per_node or job.gpu.gpus_per_node, priced.placement.gpus)
    copied = 2.0 * priced.memory.waiting_bytes / node
    if copied <= 0.0:
        return []
    seconds = copied / efficiency_of(job.gpu).host_bytes_per_s
    why = (
        f"offloading copies {copied / GIB:,.1f} GiB of a GPU's state in a step, about {seconds:,.1f} s of its host's link: "
        f"they are in the step as far as the {priced.phases.other:,.1f} s beside its phases hold them"
    )
    return [note(why, Effect.TIME)]


def _better(priced: PricedPlacement, fits: list[PricedPlacement], chance: float) -> PricedPlacement | None:
    """Return the quickest with this chance to fit, else the likeliest; None where the run's own is as good by that rule."""
    if not fits:
        return None
    own = priced.memory.chance if priced.memory.fits else 0.0
    first = fits[0]  # of those with the chance, where any has it
    if first.memory.chance < chance:
        first = max(fits, key=lambda one: one.memory.chance)
        return first if first.memory.chance > own + LIKELIER else None
    return first if own < chance or first.seconds < BETTER * priced.seconds else None


def _types(framework: str, section: Section) -> list[Remark]:
    """Return values of another type than the base configuration's."""
    remarks = []
    for key, kind in key_types(framework).items():
        value = section.flat.get(key)
        if kind not in TYPES or value is None or str(value).startswith("$"):
            continue
        good = isinstance(value, TYPES[kind]) and (kind == "bool" or not isinstance(value, bool))
        if not good and not (kind == "float" and re.fullmatch(r"[0-9.]+e-?[0-9]+", str(value))):
            remarks.append(Remark(key, repr(str(value)[:40]), f"{kind} is wanted"))
    return remarks
