"""TRL: `trl grpo --config grpo.yaml` with an accelerate file for DeepSpeed ZeRO-3."""

from __future__ import annotations

from autoconfig.formats.post_training.keys import likeliest_version, versions
from autoconfig.formats.post_training.run import RlRun, model_value
from autoconfig.maps.tree import Section
from autoconfig.planning.export_files import MARK, remark
from autoconfig.post_training.job import LEAST_PROMPT
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.plan import NONE, Recompute
from autoconfig.specs.remarks import Effect, Remark, note

VERSION = "1.16.0"
WRITTEN = ("grpo", "dapo")
DEFAULTS = {"vllm_mode": "colocate", "beta": 0.0, "gradient_checkpointing": True}
OLDER_DEFAULTS: dict[str, dict[str, object]] = {
    "0.24.0": {"vllm_mode": "server"},
    "0.19.1": {"vllm_mode": "server", "gradient_checkpointing": False},
    "0.16.1": {"vllm_mode": "server", "gradient_checkpointing": False, "beta": 0.04},
}
"""What a file need not say in releases before 1.0 (trl/trainer/grpo_config.py of each; 0.16.1 has no vllm_mode: a server)."""


def read(section: Section, gpus: int | None, said: str | None = None) -> RlRun:
    """The run on `gpus` GPUs, which a TRL file does not name; what it leaves out as in the release that is `said`, else in the
    newest that takes most of its keys. Raises InputError."""
    version = said or likeliest_version("trl", section.flat, versions("trl"))
    run = _run(section, gpus, version)
    if not said and version != VERSION:
        run.notes.append(Remark("version", version, "the newest release that takes most of its keys", Effect.EVERYTHING))
    if run.rollout_gpus:
        own = f"{run.engine_tp} {'GPU' if run.engine_tp == 1 else 'GPUs'} of its own, beside the {gpus} that train"
        run.notes.append(note(f"vllm_mode server: the server, which another command starts, is taken to have {own}"))
    return run


def _run(section: Section, gpus: int | None, version: str) -> RlRun:
    """The same of this release."""
    usual = {**DEFAULTS, **OLDER_DEFAULTS.get(version, {})}
    section.flat.update({key: value for key, value in usual.items() if section.flat.get(key) is None})
    if gpus is None:
        raise InputError("a TRL configuration does not say its GPUs: say --gpus N")
    model = section.word("model_name_or_path")
    if model is None:
        raise InputError("model_name_or_path is not in the file: say --model NAME")
    group = section.count("num_generations") or 8
    each = section.count("per_device_train_batch_size") or 8
    steps = section.count("gradient_accumulation_steps") or 1
    update = each * gpus * steps
    batch = section.count("generation_batch_size")
    repeats = section.count("steps_per_generation")
    if batch and repeats:
        raise InputError("generation_batch_size and steps_per_generation are both given: TRL takes one of them")
    batch = batch or each * gpus * (repeats or steps)
    if batch % group:
        raise InputError(f"the generation batch of {batch:,} samples is not a multiple of num_generations {group}")
    if batch % (each * gpus):
        raise InputError(f"the generation batch of {batch:,} samples is not a multiple of {each * gpus:,} a device step")
    mode = section.word("vllm_mode")
    if mode not in ("colocate", "server"):
        raise InputError(f"vllm_mode {str(mode)[:40]!r}: use colocate or server")
    tp = section.count("vllm_tensor_parallel_size") or 1
    use_vllm = section.flag("use_vllm")
    share = section.number("vllm_gpu_memory_utilization")
    beta = section.number("beta")
    response = section.count("max_completion_length") or 256
    whole = section.count("vllm_max_model_length") or 0
    return RlRun(
        framework="trl",
        version=version,
        back_end="fsdp",
        model=model,
        algorithm="grpo" if beta else "dapo",
        algorithm_word="grpo",
        nodes=1 if gpus < 8 or gpus % 8 else gpus // 8,
        gpus_per_node=gpus if gpus < 8 or gpus % 8 else 8,
        rollout_gpus=tp if use_vllm and mode == "server" else 0,
        prompts=max(1, batch // group),
        group=group,
        minibatch=min(update, batch),
        prompt_cap=section.count("max_prompt_length") or (whole - response if whole > response else LEAST_PROMPT),
        response_cap=response,
        recompute=Recompute.parse("full") if section.flag("gradient_checkpointing") else NONE,
        offload=False,
        engine="vllm" if use_vllm else "hf",
        engine_tp=tp if use_vllm else 1,
        memory_share=0.3 if share is None else share,
        engine_sleeps=section.flag("vllm_enable_sleep_mode"),
        mbs=each,
        compares=True,
        lora_rank=(section.count("lora_r") or 16) if section.flag("use_peft") else 0,
    )


def write(run: RlRun) -> dict[str, str]:
    """grpo.yaml and accelerate.yaml. Raises UnsupportedError for what TRL has no keys for."""
    if run.algorithm not in WRITTEN:
        raise UnsupportedError(f"trl grpo is no {run.algorithm}: use grpo or dapo")
    if run.back_end != "fsdp" or run.tp * run.pp * run.cp > 1:
        raise UnsupportedError("TRL trains with ZeRO-3 over all GPUs: no tensor, pipeline or context parallelism")
    if run.rollout_gpus or run.staleness:
        raise UnsupportedError("a step of TRL's GRPOTrainer is synchronous, with engines on the GPUs of training")
    gpus, samples, each = run.train_gpus, run.prompts * run.group, run.mbs
    if run.tokens_per_gpu:
        raise UnsupportedError("TRL's GRPOTrainer pads the samples of a device batch: it packs none")
    if run.minibatch % (gpus * each):
        raise UnsupportedError(f"{run.minibatch:,} samples do not divide over {gpus} GPUs of {each} samples each")
    lines = [
        MARK,
        f"# {remark(run.model)}, {run.algorithm} with TRL {VERSION} on {gpus} GPUs; add dataset_name and reward_funcs.",
        "# trl grpo --config grpo.yaml --accelerate_config accelerate.yaml",
        f"model_name_or_path: {model_value(run)}",
        "output_dir: grpo",
        "bf16: true",
        f"dtype: {'bfloat16' if run.lora_rank else 'float32'}  # of the weights; trained ones are fp32, products bf16",
        f"num_generations: {run.group}",
        f"per_device_train_batch_size: {each}",
        f"gradient_accumulation_steps: {run.minibatch // (gpus * each)}",
        f"generation_batch_size: {samples}",
        f"max_completion_length: {run.response_cap}",
        f"beta: {0.04 if run.algorithm == 'grpo' else 0.0}",
        f"gradient_checkpointing: {str(run.recompute != NONE).lower()}",
        "use_vllm: true",
        "vllm_mode: colocate",
        f"vllm_tensor_parallel_size: {run.engine_tp}",
        f"vllm_gpu_memory_utilization: {run.memory_share:g}",
        f"vllm_max_model_length: {run.prompt_cap + run.response_cap}",
        "vllm_enable_sleep_mode: true",
    ]
    if run.lora_rank:
        lines += ["use_peft: true", f"lora_r: {run.lora_rank}"]
    accelerate = [
        MARK,
        "compute_environment: LOCAL_MACHINE",
        "distributed_type: DEEPSPEED",
        "deepspeed_config:",
        "  zero_stage: 3",
        "  zero3_init_flag: true",
        "mixed_precision: bf16",
        f"num_machines: {run.nodes}",
        f"num_processes: {gpus}",
    ]
    if run.nodes > 1:
        accelerate += [
            "main_process_ip: FIRST_NODE  # the address of the first node, the same in every node's file",
            "main_process_port: 29500",
            f"machine_rank: 0  # of this node, 0 to {run.nodes - 1}",
            "rdzv_backend: static",
            "same_network: true",
        ]
    return {"grpo.yaml": "\n".join(lines) + "\n", "accelerate.yaml": "\n".join(accelerate) + "\n"}
