"""Jobs of mode `generate`: rounds of requests through megatron-core's static inference engine, timed by its own events.

A round is one batch: `plan.mbs` requests with prompts of `generation.prompt` tokens, each answered with `generation.new`.
Tensor ranks run the same batch and take the same greedy tokens. The engine is StaticInferenceEngine with `legacy` (its dynamic
engine needs flash attention) over the local layer specification; the attention core is megatron-core's and reads the KV cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import statistics
import time
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from autoconfig.specs.errors import InputError, PlanError
from autoconfig.specs.job import Generation, Job
from autoconfig.specs.measurement import Served
from autoconfig.specs.models.parameters import padded_vocab_size
from autoconfig.trainer.host.live_memory import LiveMemory
from autoconfig.trainer.model import model_chunks, transformer_config
from autoconfig.trainer.training import Progress
from autoconfig.trainer.weights import set_weights
from megatron.core.inference.contexts import StaticInferenceContext
from megatron.core.inference.engines import StaticInferenceEngine
from megatron.core.inference.model_inference_wrappers.gpt.gpt_inference_wrapper import GPTInferenceWrapper
from megatron.core.inference.sampling_params import SamplingParams
from megatron.core.inference.text_generation_controllers.text_generation_controller import TextGenerationController

try:  # megatron-core until 0.16
    from megatron.core.inference.model_inference_wrappers.inference_wrapper_config import InferenceWrapperConfig
except ImportError:  # later wrappers read the model's own configuration
    InferenceWrapperConfig = None


def generate(job: Job, progress: Progress, memory: LiveMemory | None, memory_scope: contextlib.ExitStack) -> None:
    """All rounds, warm-up first; `progress` holds them. Live bytes are counted in the first (`memory_scope` is left after it):
    counting slows operators down. Raises InputError for what the static engine cannot run."""
    asked = _asked(job)
    with mock.patch.object(torch.cuda, "Event", TimedEvent) if job.device == "cpu" else contextlib.nullcontext():
        model, controller = _controller(job, asked)
        if memory is not None:
            memory.tag([parameter.data for parameter in model.parameters()], "weights")
            memory.reset_peak()
        firsts: list[float] = []
        laters: list[float] = []
        answers: list[list[int]] = []
        for number in range(job.warmup_steps + job.steps):
            dist.barrier()
            start = time.perf_counter()
            first, later, answers = _round(controller, job, asked)
            progress.step_seconds.append(time.perf_counter() - start)
            firsts.append(first)
            laters.append(later)
            memory_scope.close()
            if dist.get_rank() == 0:
                print(f"round {number + 1}: first tokens {first:.4g} s, then {later:.4g} s a token", flush=True)
    timed = zip(firsts[job.warmup_steps :], laters[job.warmup_steps :], strict=True)
    first, later = min(timed, key=lambda one: one[0] + (asked.new - 1) * one[1])
    progress.served = Served(
        ttft_seconds=first,
        tpot_seconds=later,
        output_tokens_per_second=job.plan.mbs * asked.new / (first + (asked.new - 1) * later),
        requests=job.plan.mbs * job.steps,
        ttft_samples=tuple(firsts[job.warmup_steps :]),
        tpot_samples=tuple(laters[job.warmup_steps :]),
        answers_digest=hashlib.sha256(json.dumps(answers).encode()).hexdigest(),
    )


def _asked(job: Job) -> Generation:
    asked, plan = job.generation, job.plan
    if asked is None or asked.engine != "megatron":
        raise InputError("the training core generates with megatron-core's static engine: generation.engine=megatron")
    if job.software != "megatron-local":
        raise InputError(f"software {job.software}: the static engine runs over megatron-local")
    if plan.world_size != plan.tp:
        raise PlanError(f"{plan}: one instance of the static engine is tensor-parallel only here; use pp=1,cp=1,dp=1")
    return asked


def _controller(job: Job, asked: Generation) -> tuple[Any, Any]:
    config = transformer_config(job)
    (model,) = model_chunks(job, config, own_attention=False)
    if job.device == "cpu":
        set_weights([model], job.model, job.seed)
    model.eval()
    tokenizer = NumberTokenizer(job.model.vocab_size)
    return model, TextGenerationController(inference_wrapped_model=_wrapped(model, job, asked, config), tokenizer=tokenizer)


def _wrapped(model: Any, job: Job, asked: Generation, config: Any) -> Any:
    """The model with its static KV cache, as the installed megatron-core wraps it."""
    batch, length = job.plan.mbs, asked.prompt + asked.new
    context = StaticInferenceContext(batch, length)
    if InferenceWrapperConfig is None:
        return GPTInferenceWrapper(model, context)
    wrapper = InferenceWrapperConfig(
        hidden_size=job.model.hidden_size,
        params_dtype=config.params_dtype,
        inference_batch_times_seqlen_threshold=-1,
        padded_vocab_size=int(padded_vocab_size(job.model, job.plan.tp)),
        inference_max_requests=batch,
        inference_max_seq_length=length,
    )
    return GPTInferenceWrapper(model, wrapper, context)


def _round(controller: Any, job: Job, asked: Generation) -> tuple[float, float, list[list[int]]]:
    engine = StaticInferenceEngine(controller, max_batch_size=job.plan.mbs, legacy=True)
    sampling = SamplingParams(num_tokens_to_generate=asked.new, temperature=1.0, top_k=1)
    sampling.add_attributes({"no_early_termination": True})
    most = job.model.vocab_size - 1
    texts = [" ".join(str((7 * i + j) % most + 1) for j in range(asked.prompt)) for i in range(job.plan.mbs)]
    requests = [engine.add_request(prompt=text, sampling_params=sampling) for text in texts]
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stderr(nowhere):  # the engine's progress bar
        engine.run_engine()
    done = [engine.scheduler.completed_request_pool[request] for request in requests]
    first, *later = done[0].tpot
    return float(first), statistics.fmean(later), [[int(token) for token in one.generated_tokens] for one in done]


class NumberTokenizer:
    """Texts are numbers: `5 7` is tokens 5 and 7. What megatron-core asks of a tokenizer, without a vocabulary file."""

    bos, eod = None, 0

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def tokenize(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def detokenize(self, tokens: list[int], **_: Any) -> str:
        return " ".join(map(str, tokens))


class TimedEvent:
    """A CUDA event on a CPU, where everything is done in order: the time at which it was recorded."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.at = 0.0

    def record(self, *_: Any) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, end: TimedEvent) -> float:
        return 1e3 * (end.at - self.at)

    def synchronize(self) -> None:
        """Done already."""

    def query(self) -> bool:
        return True
