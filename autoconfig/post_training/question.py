"""A question of post-training: its request, and the step that it asks for, with what was taken for granted said aloud."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoconfig.planning.prices import price_for
from autoconfig.planning.request_fields import POST_TRAINING
from autoconfig.planning.resolve import check_bounds, field_values, read_model
from autoconfig.post_training.calibration import read_calibration
from autoconfig.post_training.frameworks import (
    OTHER_FRAMEWORK,
    Algorithm,
    Constants,
    Framework,
    asked_version,
    load_algorithm,
    load_framework,
    section,
)
from autoconfig.post_training.job import (
    RECURRENT,
    USUAL_HOST_BYTES,
    PostTrainingJob,
    prompt_room,
    require_decoder,
    spread_prompts,
)
from autoconfig.post_training.samples.lengths import MAX_TOKENS, ResponseLengths
from autoconfig.post_training.samples.rollout import Agents
from autoconfig.specs.errors import InputError, UnsupportedError, option
from autoconfig.specs.hardware.cluster import DEFAULT_GPU, GpuSpec, load_gpu
from autoconfig.specs.layouts import divisors
from autoconfig.specs.models.model_catalogue import config_file_of
from autoconfig.specs.remarks import Effect, Remark, note

USUAL_TOKENS_PER_GPU = 8192
USUAL_GROUP = 8
"""Of algorithms that compare, where a framework's own default is one (TRL 1.16.0: num_generations 8)."""
COMPARING = ("grpo", "dapo", "rloo")
"""Algorithms whose advantage is that over other responses of the prompt."""
FIELDS = {field.name: field for field in POST_TRAINING}
FIT_CHANCE: float = FIELDS["fit_chance"].default
AGENT_FIELDS = ("tool_time", "tool_spread", "tool_tokens", "sandboxes", "drop_prefix")
"""What is of samples with several turns."""


@dataclass(frozen=True, kw_only=True)
class SampleRequest:
    """What a question and the check of a file may both say, unread. None means not given."""

    model: str | Mapping[str, Any] | None = None
    """A name or, over the network, what a config.json would hold."""
    like: str | None = None
    """Family of Hugging Face as which a config.json is read."""
    download: bool = False
    """Whether the config.json of a hub's model may be fetched."""
    gpus: int | None = None
    gpu: str | None = None
    prompt_length: int | None = None
    response_length: int | None = None
    turns: int | None = None
    tool_time: float | None = None
    tool_spread: float | None = None
    tool_tokens: int | None = None
    sandboxes: int | None = None
    drop_prefix: bool = False
    host_memory: float | None = None
    """Bytes of one node's host."""
    fit_chance: float = FIT_CHANCE
    calibration: str | None = None
    """File of what measured steps say; None: nothing was measured."""

    def agents(self, algorithm: Algorithm) -> tuple[Agents, list[Remark]]:
        """Return what samples do between their turns, and what of it was assumed. Raises InputError for what has no turns,
        or is no such number."""
        turns = self.turns or 1
        fields = [name for name in AGENT_FIELDS if getattr(self, name)]
        if fields and turns == 1:
            raise InputError(
                f"{option(fields[0])} is of samples with several turns: say {option('turns')}, from 2 on", field=fields[0]
            )
        if turns > 1 and not algorithm.generates:
            raise InputError(f"{option('turns')} {turns}: {algorithm.name} generates nothing; leave it out", field="turns")
        tools = {"tool_seconds": self.tool_time, "tool_spread": self.tool_spread}
        agents = Agents(
            turns=turns,
            tool_tokens=self.tool_tokens or 0,
            sandboxes=self.sandboxes or 0,
            keeps_prefix=not self.drop_prefix,
            **{name: _number(name, value) for name, value in tools.items() if value is not None},
        )
        at_once = turns > 1 and self.tool_time is None
        return agents, [note("tools that answer at once (--tool-time is not said)", Effect.TIME)] if at_once else []

    @property
    def host_bytes(self) -> float:
        """Return the bytes of one node's host."""
        return USUAL_HOST_BYTES if self.host_memory is None else float(self.host_memory)

    @property
    def gpu_spec(self) -> GpuSpec:
        """Return the GPU. Raises UnknownNameError."""
        return load_gpu(str(self.gpu or DEFAULT_GPU))


@dataclass(frozen=True, kw_only=True)
class RlRequest(SampleRequest):
    """What the person or program asks of one step of post-training, unread. None means not given."""

    algorithm: str = FIELDS["algorithm"].default
    framework: str = FIELDS["framework"].default
    prompts: int | None = None
    group_size: int | None = None
    minibatch: int | None = None
    max_response_length: int | None = None
    tokens_per_gpu: int | None = None
    logprob_micro_batch: int | None = None
    staleness: int = FIELDS["staleness"].default
    goal: str = FIELDS["goal"].default
    hours: float | None = None
    steps: int | None = None
    top: int = FIELDS["top"].default
    price: float | str | None = None
    """Money per GPU and hour, of each type as h100-sxm-80gb=2.2 with commas between (planning.prices)."""
    local_files: bool = True
    """Whether the model may be a file of this machine."""


def _number(name: str, value: object) -> float:
    """Return the number. Raises InputError for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{name.replace('_', ' ')} {str(value)[:40]!r}: use a number")
    return float(value)


def request_of(given: Mapping[str, Any]) -> RlRequest:
    """Return an RlRequest from what any edge was given, by the names of the fields; what is no field of it is not read.
    Raises InputError."""
    if given.get("model") is None:
        raise InputError(f"Missing option '{option('model')}': say {option('model')} qwen2.5-7b (autoconfig models lists them)")
    if given.get("gpus") is None:
        raise InputError(f"Missing option '{option('gpus')}'")
    return RlRequest(**field_values(POST_TRAINING, given))


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """Steps that must be done in these hours."""

    hours: float
    steps: int

    @property
    def step_seconds(self) -> float:
        """Return the most seconds of a step."""
        return self.hours * 3600.0 / self.steps

    def hours_of(self, step_seconds: float) -> float:
        """Return the hours of all steps."""
        return step_seconds * self.steps / 3600.0


@dataclass(frozen=True, kw_only=True)
class RlQuestion:
    """A request understood."""

    request: RlRequest
    job: PostTrainingJob
    gpus: int
    """With a deadline, at most."""
    tokens: int
    """Of a packed micro-batch on one GPU; 0: samples are padded."""
    deadline: Deadline | None
    """That the fewest GPUs are asked for."""
    price: float | None
    """Money for one GPU and hour."""
    constants: Constants | None
    """None: those that ship."""
    assumed: tuple[Remark, ...]

    @property
    def unsaid(self) -> tuple[str, ...]:
        """Return the fields that were not said and move a step of generation."""
        if not self.job.algorithm.generates:
            return ()
        names = ("response_length", "max_response_length", *(("tool_time",) if self.job.agents.turns > 1 else ()))
        return tuple(name for name in names if getattr(self.request, name) is None)


def understand(request: RlRequest) -> RlQuestion:
    """Return the question of a request. Raises InputError naming what cannot be used and what is allowed."""
    check_bounds(POST_TRAINING, request)
    policy, assumed = read_model(
        request.model or "", local_files=request.local_files, like=request.like, download=request.download
    )
    require_decoder(policy)
    deadline, gpu = _deadline(request), request.gpu_spec
    gpus = _gpus(request, gpu)
    algorithm, framework = load_algorithm(request.algorithm), load_framework(request.framework)
    assumed += _framework_remarks(request.framework, framework)
    if policy.is_hybrid:
        assumed.append(note(RECURRENT))
    if policy.is_moe and gpus > 1 and "megatron" not in framework.back_ends:
        raise UnsupportedError(
            f"{policy.name} has experts: {framework.name} shards over all GPUs, which is not priced for experts; use "
            f"{option('framework')} verl or nemo-rl"
        )
    prompts = _prompts(request, framework, gpus, assumed)
    group = _group(request, algorithm, framework, assumed)
    prompt = _or_usual(request.prompt_length, "prompt_length", section("lengths")["prompt_tokens"], assumed)
    responses = _responses(request, algorithm, assumed)
    minibatch = _minibatch(request, prompts, group, framework, assumed)
    agents, remarks = request.agents(algorithm)
    assumed += remarks
    job = PostTrainingJob(
        policy=policy,
        checkpoint=_checkpoint(request),
        algorithm=algorithm,
        framework=framework,
        gpu=gpu,
        prompts=prompts,
        group=group,
        prompt_tokens=float(prompt),
        longest_prompt=prompt_room(prompt),
        responses=responses,
        minibatch=minibatch,
        logprob_micro_batch=request.logprob_micro_batch or 0,
        critic=policy if algorithm.critic else None,
        agents=agents,
        host_memory_bytes=request.host_bytes,
    )
    tokens = _packed(request, job, assumed)
    return RlQuestion(
        request=request,
        job=job,
        gpus=gpus,
        tokens=tokens,
        deadline=deadline,
        assumed=(*assumed, *_too_long(job)),
        constants=read_calibration(request.calibration).applied() if request.calibration else None,
        price=None if request.price is None else price_for(request.price, gpu.id),
    )


def _deadline(request: RlRequest) -> Deadline | None:
    """Return the deadline of `--goal gpus`; None where the quickest step is asked for. Raises InputError for what does not
    go together."""
    goals = FIELDS["goal"].choices
    if request.goal not in goals:
        raise InputError(f"{option('goal')} {str(request.goal)[:40]!r}: use {' or '.join(goals)}", field="goal")
    limits = [name for name in ("hours", "steps") if getattr(request, name) is not None]
    if request.goal == "step":
        if limits:
            raise InputError(f"{option(limits[0])} is of {option('goal')} gpus, the fewest GPUs that meet it", field=limits[0])
        return None
    if request.hours is None or request.steps is None:
        lacking = "hours" if request.hours is None else "steps"
        raise InputError(f"{option('goal')} gpus: say {option(lacking)}, like --steps 200 --hours 12", field=lacking)
    return Deadline(hours=float(request.hours), steps=request.steps)


def _gpus(request: RlRequest, gpu: GpuSpec) -> int:
    """Return the GPUs, with a deadline those of whole nodes. Raises InputError for others."""
    gpus, node = request.gpus or 1, gpu.gpus_per_node
    if gpus <= node or gpus % node == 0:
        return gpus
    if request.goal == "gpus":
        return gpus // node * node
    near = f"{gpus // node * node} or {(gpus // node + 1) * node}"
    raise InputError(f"{option('gpus')} {gpus}: {gpu.name} come in nodes of {node}; use {near}", field="gpus")


def _framework_remarks(name: str, framework: Framework) -> list[Remark]:
    """Return what is assumed of a framework that is not known, or of another release than files are written for."""
    remarks = []
    if framework.name == OTHER_FRAMEWORK:
        why = "of which no run is known here, priced as any other framework"
        remarks.append(Remark("framework", name, why, Effect.EVERYTHING))
    version = asked_version(name, framework)
    if version not in ("", framework.version):
        why = f"priced as its other releases; files are written for {framework.version}"
        remarks.append(Remark("framework", f"{framework.name} {version}", why))
    return remarks


def _or_usual(value: int | None, name: str, usual: int, assumed: list[Remark], why: str = "") -> int:
    """Return the value, or where it is not given the usual one, which is then among what was assumed."""
    if value is None:
        assumed.append(Remark(name, usual, why))
    return usual if value is None else value


def _prompts(request: RlRequest, framework: Framework, gpus: int, assumed: list[Remark]) -> int:
    """Return the prompts of a step: the framework's, and more until they divide over the GPUs."""
    even = spread_prompts(framework.prompts, gpus)
    why = f"as published runs of {framework.name} have it"
    if even != framework.prompts:
        of_runs = f"the {framework.prompts:,} of {framework.name}'s published runs"
        why = f"{of_runs}, and more until they divide over {gpus:,} GPUs"
    return _or_usual(request.prompts, "prompts", even, assumed, why)


def _group(request: RlRequest, algorithm: Algorithm, framework: Framework, assumed: list[Remark]) -> int:
    """Return the responses of a prompt. Raises InputError for a single one where an algorithm compares those of a prompt."""
    alone = algorithm.critic or not algorithm.generates
    compares = algorithm.name in COMPARING and not request.algorithm.lower().startswith(("reinforce", "remax"))
    usual, why = (1, "") if alone else (framework.group, f"as published runs of {framework.name} have it")
    if compares and usual < 2:
        usual, why = USUAL_GROUP, ""
    group = _or_usual(request.group_size, "group_size", usual, assumed, why)
    if compares and group < 2:
        raise InputError(f"{option('group_size')} {group}: {algorithm.name} compares responses of one prompt; use 2 or more")
    return group


def _minibatch(request: RlRequest, prompts: int, group: int, framework: Framework, assumed: list[Remark]) -> int:
    """Return the samples of an optimizer step, which divide those of a step. Raises InputError for others."""
    samples = prompts * group
    size = _or_usual(request.minibatch, "minibatch", samples, assumed)
    if size > samples:
        raise InputError(f"{option('minibatch')} {size:,} is above the {samples:,} samples of a step (prompts x group)")
    unit = group if framework.minibatch_in_prompts else 1
    if samples % size or size % unit:
        sizes = [part * unit for part in divisors(samples // unit)]
        near = {max((part for part in sizes if part < size), default=sizes[0]), min(part for part in sizes if part > size)}
        prompted = f", in whole prompts of {group}" if unit > 1 else ""
        raise InputError(
            f"{option('minibatch')} {size:,} does not divide the {samples:,} samples of a step{prompted}: use "
            f"{' or '.join(f'{part:,}' for part in sorted(near))}"
        )
    return size


def _responses(request: RlRequest, algorithm: Algorithm, assumed: list[Remark]) -> ResponseLengths:
    """Return the lengths of responses; what is not said of mean and cap follows from the other."""
    usual, mean = section("lengths"), request.response_length
    likely = 4 * (mean or algorithm.response_tokens or usual["response_tokens"])
    cap = _or_usual(request.max_response_length, "max_response_length", likely, assumed)
    mean = _or_usual(mean, "response_length", max(1, round(usual_mean(cap))), assumed)
    if mean > cap:
        raise InputError(f"{option('response_length')} {mean:,} is above the cap of {cap:,} ({option('max_response_length')})")
    return ResponseLengths.around(mean, min(cap, MAX_TOKENS))


def usual_mean(cap: float) -> float:
    """Return the mean tokens of responses of which nothing but the cap is known."""
    usual = section("lengths")
    return min(usual["response_share_of_cap"] * cap, float(usual["response_tokens_at_most"]))


def _packed(request: RlRequest, job: PostTrainingJob, assumed: list[Remark]) -> int:
    """Return tokens of a packed micro-batch; 0 where the framework pads samples. Raises InputError where they are asked for
    there."""
    if not job.framework.packs:
        if request.tokens_per_gpu is not None:
            raise InputError(
                f"{option('tokens_per_gpu')}: {job.framework.name} packs no samples, it pads them; leave it out (it finds the "
                f"samples of a device batch), or use {option('framework')} verl"
            )
        assumed.append(note(f"every sample padded to the longest, {job.longest:,} tokens"))
        return 0
    tokens = _or_usual(request.tokens_per_gpu, "tokens_per_gpu", USUAL_TOKENS_PER_GPU, assumed)
    tokens = max(tokens, round(job.tokens))
    if tokens < job.longest:
        why = f"micro-batches that hold the longest sample, {job.longest:,} tokens over context-parallel GPUs"
        assumed.append(note(why))
    return tokens


def _too_long(job: PostTrainingJob) -> list[Remark]:
    """Note that samples are longer than the positions that the model was trained on."""
    most = job.policy.max_position_embeddings
    why = f"{job.longest:,} tokens in a sample, beyond the {most:,} positions of {job.policy.name}"
    return [note(why, Effect.NOTHING)] if job.longest > most else []


def _checkpoint(request: RlRequest) -> str:
    """Return the folder whose config.json was given, or the hub's id; empty for names of the catalogue, for sizes, and for
    folders that a script would have to quote."""
    if not (request.local_files and isinstance(request.model, str)):
        return ""
    file = config_file_of(request.model)
    folder = "" if file is None or file.name != "config.json" else str(file.resolve().parent)
    plain = all(letter.isalnum() or letter in "_./@+=-" for letter in folder)
    return folder if plain else ""
