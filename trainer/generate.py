"""`python -P -m trainer.generate --job job.json --prompt 32 --new 16`: megatron-core's static inference engine.

One process; the batch is the job's micro-batch size, every prompt has --prompt tokens and generates --new. Writes
generation.json beside the job: seconds of the prompts' iteration and of every later one, as the engine's own events time them.
The engine is StaticInferenceEngine with `legacy` (its dynamic engine needs flash attention) over the local layer specification.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specs.errors import InputError, PlanError
from specs.exit_code import ExitCode
from specs.job import Job, read_job

GENERATION_FILE = "generation.json"


def main(arguments: list[str] | None = None) -> ExitCode:
    """Read, generate, write. Returns the process's exit code."""
    parser = argparse.ArgumentParser(prog="python -P -m trainer.generate", description=__doc__, allow_abbrev=False)
    parser.add_argument("--job", type=Path, required=True)
    parser.add_argument("--prompt", type=_count, required=True, help="tokens of every prompt")
    parser.add_argument("--new", type=_count, required=True, help="tokens that every request generates, at least 2")
    options = parser.parse_args(arguments)
    try:
        job = read_job(options.job)
        if job.plan.world_size != 1:
            raise PlanError(f"{job.plan}: the static engine is run on one process; use tp=1,pp=1,dp=1")
        warnings.simplefilter("ignore")  # megatron-core warns at import of everything optional that is not installed
        found = generate(job, options.prompt, options.new)
    except InputError as error:
        print(f"trainer.generate: {error}", file=sys.stderr, flush=True)
        return ExitCode.BAD_JOB
    except ImportError as error:
        print(f"trainer.generate: {error}; pip install 'megatron-autoconfig[train]'", file=sys.stderr, flush=True)
        return ExitCode.MISSING_PACKAGE
    target = options.job.resolve().parent / GENERATION_FILE
    beside = target.with_name(f".{GENERATION_FILE}.{os.getpid()}")
    beside.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    beside.replace(target)
    return ExitCode.RAN


def _count(text: str) -> int:
    value = int(text)
    if not 2 <= value <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text}: give 2 to 1,000,000 tokens")
    return value


def generate(job: Job, prompt: int, new: int) -> dict[str, Any]:
    """{batch, prompt_tokens, new_tokens, prompt_seconds, step_seconds: [each later iteration]}, of the second of two rounds."""
    import torch.distributed as dist

    from trainer.cpu import cpu_for_cuda
    from trainer.parallel import parallel_groups
    from trainer.without_engine import without_engine

    with contextlib.ExitStack() as scope:
        if job.device == "cpu":
            scope.enter_context(cpu_for_cuda())
            scope.enter_context(_timed_events())
        scope.enter_context(without_engine())
        dist.init_process_group("gloo" if job.device == "cpu" else "nccl", store=dist.HashStore(), rank=0, world_size=1)
        scope.callback(dist.destroy_process_group)
        scope.enter_context(parallel_groups(job, 600.0))
        controller = _controller(job, prompt + new)
        rounds = [_round(controller, job, prompt, new) for _ in range(2)]
    return {"batch": job.plan.mbs, "prompt_tokens": prompt, "new_tokens": new, **rounds[-1]}


def _controller(job: Job, length: int) -> Any:
    from megatron.core.inference.contexts import StaticInferenceContext
    from megatron.core.inference.model_inference_wrappers.gpt.gpt_inference_wrapper import GPTInferenceWrapper
    from megatron.core.inference.model_inference_wrappers.inference_wrapper_config import InferenceWrapperConfig
    from megatron.core.inference.text_generation_controllers.text_generation_controller import TextGenerationController

    from specs.parameters import padded_vocab_size
    from trainer.model import model_chunks, transformer_config
    from trainer.weights import set_weights

    config = transformer_config(job)
    (model,) = model_chunks(job, config, own_attention=False)
    if job.device == "cpu":
        set_weights([model], job.model, job.seed)
    model.eval()
    batch = job.plan.mbs
    wrapper = InferenceWrapperConfig(
        hidden_size=job.model.hidden_size,
        params_dtype=config.params_dtype,
        inference_batch_times_seqlen_threshold=-1,
        padded_vocab_size=int(padded_vocab_size(job.model, 1)),
        inference_max_requests=batch,
        inference_max_seq_length=length,
    )
    wrapped = GPTInferenceWrapper(model, wrapper, StaticInferenceContext(batch, length))
    return TextGenerationController(inference_wrapped_model=wrapped, tokenizer=NumberTokenizer(job.model.vocab_size))


def _round(controller: Any, job: Job, prompt: int, new: int) -> dict[str, Any]:
    from megatron.core.inference.engines import StaticInferenceEngine
    from megatron.core.inference.sampling_params import SamplingParams

    engine = StaticInferenceEngine(controller, max_batch_size=job.plan.mbs, legacy=True)
    sampling = SamplingParams(num_tokens_to_generate=new, temperature=1.0, top_k=1)
    sampling.add_attributes({"no_early_termination": True})
    most = job.model.vocab_size - 1
    texts = [" ".join(str((7 * i + j) % most + 1) for j in range(prompt)) for i in range(job.plan.mbs)]
    requests = [engine.add_request(prompt=text, sampling_params=sampling) for text in texts]
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stderr(nowhere):  # the engine's progress bar
        engine.run_engine()
    first, *later = engine.scheduler.completed_request_pool[requests[0]].tpot
    return {"prompt_seconds": first, "step_seconds": later}


class NumberTokenizer:
    """Texts are numbers: `5 7` is tokens 5 and 7. What megatron-core asks of a tokenizer, without a vocabulary file."""

    bos, eod = None, 0

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def tokenize(self, text: str) -> list[int]:
        """Numbers of a text."""
        return [int(word) for word in text.split()]

    def detokenize(self, tokens: list[int], **_: Any) -> str:
        """The text of numbers."""
        return " ".join(map(str, tokens))


class TimedEvent:
    """A CUDA event on a CPU, where everything is done in order: the time at which it was recorded."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.at = 0.0

    def record(self, *_: Any) -> None:
        """Now."""
        self.at = time.perf_counter()

    def elapsed_time(self, end: TimedEvent) -> float:
        """Milliseconds to another event."""
        return 1e3 * (end.at - self.at)

    def synchronize(self) -> None:
        """Done already."""

    def query(self) -> bool:
        """Done already."""
        return True


@contextlib.contextmanager
def _timed_events() -> Iterator[None]:
    from unittest import mock

    import torch

    with mock.patch.object(torch.cuda, "Event", TimedEvent):
        yield


if __name__ == "__main__":
    raise SystemExit(main())
