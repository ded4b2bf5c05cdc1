"""Jobs of torchtitan and transformers on one fake rank, and what torch's tracker counts of a step."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import stage as stage_module
from torch.distributed.tensor.parallel import loss_parallel

from validation.judge.pytorch.fake import FusedLoss, Tracker, balanced, fake_rank, torchtitan

RANK = 8
CHUNKS = 8
TOP_K = 2
RECOMPUTE = {"none": "none", "full": "full:uniform:1", "selective": "selective:op"}


@dataclass(frozen=True, kw_only=True)
class TorchPlan:
    """One job; tokens are of one rank and micro-batch."""

    framework: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    vocabulary: int
    sequence: int
    micro_batch: int
    ranks: int
    accumulation: int = 1
    recompute: str = "none"
    reduce: str = "fp32"
    reshard: bool = True
    tied: bool = False
    adapters: bool = False
    """peft's LoRA of rank 8 on every linear layer of the blocks; all else is frozen, in 16 bits."""
    tp: int = 1
    loss: str = "plain"
    """plain: the trainer's; eager: the same loss in a loop that holds its logits while backward runs; chunked: a loop
    over eight chunks of the logits; fused: with the output layer, as Liger (`FusedLoss`)."""
    pp: int = 1
    """torchtitan's 1F1B; its stages with an end have a layer less."""
    experts: int = 0
    """torchtitan's Qwen3 mixture, TOP_K of its experts a token, each half as wide as the hidden size."""
    ep: int = 1

    @property
    def ffn(self) -> int:
        """Width of the MLP, as torchtitan's Llama rounds it."""
        return 256 * -(-int(8 * self.hidden / 3) // 256)

    @property
    def text(self) -> str:
        """Plan in our words; torchtitan does not reshard in pipelines."""
        if self.ranks == 1:
            return f"dist_opt=0,mbs={self.micro_batch},recompute={RECOMPUTE[self.recompute]}"
        sharding = f"tp={self.tp},ep={self.ep},sp={int(self.tp > 1)},fsdp={3 if self.reshard and self.pp == 1 else 2}"
        if self.pp > 1:
            end = (self.layers + 2) // self.pp - 1
            sharding += f",pp={self.pp},first={end},last={end}"
        return f"{sharding},mbs={self.micro_batch},recompute={RECOMPUTE[self.recompute]}"

    def __str__(self) -> str:
        name = f"{self.framework} {self.layers} x {self.hidden}, vocabulary {self.vocabulary}, {self.ranks} ranks"
        more = f", {self.micro_batch} x {self.sequence}, {self.accumulation} micro-batches, {self.recompute}, {self.reduce}"
        degrees = "".join(
            f", {name} {size}"
            for name, size in (("tp", self.tp), ("pp", self.pp), ("experts", self.experts), ("ep", self.ep))
            if size > 1
        )
        return (
            name
            + more
            + degrees
            + ", gathered" * (not self.reshard)
            + ", tied" * self.tied
            + ", LoRA" * self.adapters
            + f", loss {self.loss}" * (self.loss != "plain")
        )


def tracked(plan: TorchPlan, stage: int = 0) -> int:
    """The tracker's peak on the first rank of a stage in one step of the real modules, once the optimizer has its state."""
    with fake_rank(stage * plan.ranks // plan.pp, plan.ranks) as mode:
        model, schedule = _torchtitan_job(plan, stage) if plan.framework == "torchtitan" else (_transformers_model(plan), None)
        with mode, balanced(plan.micro_batch * plan.sequence * TOP_K) if plan.experts else contextlib.nullcontext():
            optimizer = _settled(plan, model)
            shape = (plan.micro_batch * (plan.accumulation if schedule else 1), plan.sequence)
            tokens, labels = (torch.randint(0, plan.vocabulary, shape) for _ in range(2))
            tracker = Tracker()
            tracker.track_external(model, optimizer, tokens, labels)
            # as torchtitan's train.py: with tensor parallelism the loss runs on each rank's part of the vocabulary
            with loss_parallel() if plan.tp > 1 else contextlib.nullcontext(), tracker:
                if schedule:
                    forward = schedule._stage.forward_one_chunk
                    schedule._stage.forward_one_chunk = lambda *a, **k: (tracker.reset_mod_stats(), forward(*a, **k))[1]
                    ends = {"target": labels, "losses": []} if stage == plan.pp - 1 else {}
                    schedule.step(*((tokens,) if stage == 0 else ()), **ends, return_outputs=False)
                for _ in range(0 if schedule else plan.accumulation):
                    tracker.reset_mod_stats()
                    loss, logits = _loss(plan, model, tokens, labels)
                    if plan.loss != "eager":
                        del logits
                    loss.backward()
                    logits = None
                optimizer.step()
            return tracker.peak()


def _settled(plan: TorchPlan, model: Any) -> torch.optim.AdamW:
    """The optimizer after a step, of a model whose tensors are there."""
    model.to_empty(device="cpu")
    if plan.adapters:
        model.base_model.model.tie_weights()
    if plan.experts:
        model.rope_cache = model._precompute_rope_cache()
    elif plan.framework == "torchtitan":
        model.freqs_cis = model._precompute_freqs_cis()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=plan.framework == "torchtitan" or None)
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def _loss(plan: TorchPlan, model: Any, tokens: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss, logits); neither trainer holds the logits when backward begins."""
    if plan.framework == "torchtitan":
        logits = model(tokens)
        return torchtitan("components.loss").cross_entropy_loss(logits, labels), logits
    output = model(input_ids=tokens, labels=labels, use_cache=False)
    return output.loss, output.logits


def _torchtitan_job(plan: TorchPlan, stage: int) -> tuple[Any, Any]:
    """(the rank's part of the model, its schedule or None)."""
    family = "qwen3" if plan.experts else "llama3"
    parallelize = torchtitan(f"models.{family}.infra.parallelize")
    # the CPU's flash attention has a name of its own in the list of operators whose outputs are kept
    parallelize._op_sac_save_list.add(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default)
    modules = torchtitan(f"models.{family}.model.model")
    common = {
        "dim": plan.hidden, "n_layers": plan.layers, "n_heads": plan.heads, "n_kv_heads": plan.kv_heads,
        "vocab_size": plan.vocabulary, "max_seq_len": plan.sequence,
    }  # fmt: skip
    if plan.experts:
        routing = torchtitan("models.moe").MoEArgs(
            num_experts=plan.experts, num_shared_experts=0, top_k=TOP_K, score_func="softmax", score_before_experts=False
        )
        arguments = torchtitan("models.qwen3.model.args").Qwen3ModelArgs(
            **common, head_dim=plan.hidden // plan.heads, moe_enabled=True, moe_inter_dim=plan.hidden // 2, moe_args=routing
        )
    else:
        arguments = torchtitan("models.llama3.model.args").TransformerModelArgs(**common, multiple_of=256)
    job = torchtitan("config.job_config").JobConfig()
    job.training.seq_len, job.training.local_batch_size = plan.sequence, plan.micro_batch * plan.accumulation
    job.training.mixed_precision_reduce = {"fp32": "float32", "bf16": "bfloat16"}[plan.reduce]
    job.activation_checkpoint.mode, job.activation_checkpoint.selective_ac_option = plan.recompute, "op"
    job.parallelism.fsdp_reshard_after_forward = "default" if plan.reshard else "never"
    dims = torchtitan("distributed").ParallelDims(
        dp_shard=plan.ranks // plan.tp // plan.pp,
        dp_replicate=1,
        cp=1,
        tp=plan.tp,
        pp=plan.pp,
        ep=plan.ep,
        etp=1,
        world_size=plan.ranks,
    )
    with torch.device("meta"):
        model = (modules.Qwen3Model if plan.experts else modules.Transformer)(arguments)
    if plan.experts:
        return parallelize.parallelize_qwen3(model, dims, job), None
    if plan.pp == 1:
        return parallelize.parallelize_llama(model, dims, job), None
    parallel = job.parallelism
    parallel.pipeline_parallel_degree, parallel.pipeline_parallel_schedule = plan.pp, "1F1B"
    parallel.pipeline_parallel_microbatch_size = plan.micro_batch
    loss = torchtitan("components.loss").cross_entropy_loss
    schedule, (part,), *_ = torchtitan("distributed.pipeline_parallel").pipeline_llm(
        model, dims, job, torch.device("cpu"), arguments, parallelize.parallelize_llama, loss
    )
    tokens = torch.empty(plan.micro_batch, plan.sequence, dtype=torch.int64, device="meta")
    sizes = (plan.micro_batch, plan.sequence // plan.tp, plan.hidden)
    hidden = torch.empty(sizes, dtype=torch.bfloat16, device="meta", requires_grad=True)
    logits = torch.empty((plan.micro_batch, plan.sequence, plan.vocabulary), dtype=torch.bfloat16, device="meta")
    _say_shapes(schedule, tokens if stage == 0 else hidden, logits if stage == plan.pp - 1 else hidden)
    return part, schedule


def _say_shapes(schedule: Any, received: torch.Tensor, sent: torch.Tensor) -> None:
    """What stages else ask each other in the first step."""
    stage = schedule._stage
    metas = [stage_module.extract_tensor_metas((tensor,)) for tensor in (received, sent)]
    stage._user_meta = replace(stage._user_meta, inputs=metas[0], outputs=metas[1], input_grads=metas[0], output_grads=metas[1])

    def settled(stages: Any, *_: Any) -> None:
        for one in stages:
            one._inference_mode = stage_module.InferenceMode.STATIC

    schedule._warmup_p2p = settled


def _other_loss(plan: TorchPlan, model: Any) -> None:
    """Let the model's output layer and loss be those of `plan.loss`, within its forward."""
    head = model.lm_head
    if plan.loss == "chunked":  # torchtune's CEWithChunkedOutputLoss, in axolotl's monkeypatch/loss/chunked.py

        def chunked(logits: torch.Tensor, labels: torch.Tensor, **_: Any) -> Any:
            each = zip(logits.chunk(CHUNKS, dim=1), labels.chunk(CHUNKS, dim=1), strict=True)
            return sum(functional.cross_entropy(one.flatten(0, 1).float(), own.flatten(), reduction="sum") for one, own in each)

        model.loss_function = chunked
    if plan.loss == "fused":
        head.forward = lambda hidden: hidden
        model.loss_function = lambda logits, labels, **_: FusedLoss.apply(logits.flatten(0, 1), head.weight)


@functools.cache
def peft() -> Any:
    """The module, of the environment in which tests/judge/test_rl_exports.py finds its parsers."""
    root = Path(__file__).resolve().parents[3]
    python = Path(os.environ.get("AUTOCONFIG_RL_JUDGE", root / ".venv-judge-rl" / "bin" / "python"))
    packages = str(next((python.parents[1] / "lib").glob("python*")) / "site-packages")
    sys.path.append(packages)
    try:
        return importlib.import_module("peft")
    finally:
        sys.path.remove(packages)


def _transformers_model(plan: TorchPlan) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM  # type: ignore[import-not-found]
    from transformers.models.llama import modeling_llama  # type: ignore[import-not-found]

    # what it finds for sequences without padding by looking at values
    modeling_llama.create_causal_mask = lambda *_, **__: None
    config = LlamaConfig(
        hidden_size=plan.hidden, num_hidden_layers=plan.layers, num_attention_heads=plan.heads,
        num_key_value_heads=plan.kv_heads, vocab_size=plan.vocabulary, intermediate_size=plan.ffn,
        max_position_embeddings=plan.sequence, tie_word_embeddings=plan.tied, attn_implementation="sdpa",
    )  # fmt: skip
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
        blocks = model.model
        model.train()
        if plan.recompute == "full":
            model.gradient_checkpointing_enable({"use_reentrant": False})
        if plan.adapters:
            model.enable_input_require_grads()
            chosen = peft().LoraConfig(r=RANK, lora_dropout=0.0, target_modules="all-linear")
            model = peft().get_peft_model(model.to(torch.bfloat16), chosen, autocast_adapter_dtype=False)
            model.to(torch.bfloat16)
            for parameter in (one for one in model.parameters() if one.requires_grad and plan.ranks > 1):
                parameter.data = parameter.data.to(torch.float32)
    if plan.ranks == 1:
        return model
    _other_loss(plan, model)
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[plan.reduce]
    )
    for layer in blocks.layers:
        fully_shard(layer, mp_policy=policy, reshard_after_forward=plan.reshard)
    fully_shard(model, mp_policy=policy, reshard_after_forward=plan.reshard)
    return model
