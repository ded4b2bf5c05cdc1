"""What other programs and people call the fields of a request: looked up before the spelling is compared, so that `seq` is
answered with `seq_length` and not with `seed`."""

from __future__ import annotations

from collections.abc import Collection

from autoconfig.specs.errors import FROZEN_IN_4_BITS

_FINE_TUNING = (
    "fine-tuning with adapters is --peft lora, packed short sequences are --packed-length N, all weights are trained without "
    "either; sft, dpo and reinforcement learning in a post-training framework are autoconfig rl --algorithm sft"
)
_PLAN = "the parallelism of a plan stands in the plan itself, like tp=8,pp=2,mbs=1"
_NODES = "--gpus counts the GPUs of all nodes; those of one node are --gpus-per-node, where it is not the usual server"
_MEMORY = "the memory of a GPU is that of its type: --gpu NAME, listed by autoconfig gpus"
_LEARNING_RATE = "a learning rate changes neither time nor memory; a script that is written has one by the model's size"
_STEPS = "the length of a run is --tokens of autoconfig search, like --tokens 300B"
_DAYS = (
    "days are printed with --tokens, like --tokens 300B; the fewest GPUs for a deadline are those of autoconfig scaling "
    "--tokens 300B --days 20"
)
SAID = {
    **dict.fromkeys(("days", "deadline"), _DAYS),
    **dict.fromkeys(("task", "sft", "lora", "finetune", "fine_tune", "algorithm"), _FINE_TUNING),
    **dict.fromkeys(("qlora", "load_in_4bit", "quantization_bit"), FROZEN_IN_4_BITS),
    "request_rate": "requests a second are --rate of autoconfig deployments",
    "gpu_memory_utilization": "the share of memory that an engine takes is --kv-memory-ratio of autoconfig deployments",
    **dict.fromkeys(("nodes", "num_nodes", "nnodes"), _NODES),
    **dict.fromkeys(("mem", "memory", "gpu_mem", "gpu_memory", "hbm", "vram"), _MEMORY),
    **dict.fromkeys(("lr", "learning_rate"), _LEARNING_RATE),
    **dict.fromkeys(("steps", "max_steps", "train_iters", "iterations", "epochs"), _STEPS),
}
"""Word -> what to say where no one field is meant."""

_FIELDS = {
    "seq_length isl": "seq seq_len seqlen sequence sequence_length context context_length context_window ctx max_seq_len "
                      "max_seq_length max_length max_model_len block_size",
    "global_batch_size": "gbs batch batch_size global_batch train_batch_size",
    "precision": "dtype data_type datatype torch_dtype bf16 fp8 mixed_precision",
    "gpus_per_node": "node_size gpus_node gpu_per_node num_gpus_per_node nproc_per_node",
    "gpus": "num_gpus ngpus n_gpus gpu_count world_size num_gpu",
    "gpu": "gpu_type gpu_name gpu_model accelerator hardware",
    "mbs": "micro_batch micro_bs microbatch per_device_batch_size per_device_train_batch_size train_micro_batch_size_per_gpu",
    "tp": "tensor_parallel tensor_parallel_size", "pp": "pipeline_parallel pipeline_parallel_size",
    "dp": "data_parallel data_parallel_size", "cp": "context_parallel context_parallel_size",
    "ep": "expert_parallel expert_parallel_size", "sp": "sequence_parallel",
    "recompute": "activation_checkpointing gradient_checkpointing recompute_granularity checkpoint_activations",
    "hidden_size": "hidden d_model dim n_embd embedding_size", "num_layers": "layers n_layers n_layer depth",
    "num_attention_heads": "heads n_heads n_head num_heads", "num_query_groups": "kv_heads num_kv_heads n_kv_heads",
    "ffn_hidden_size": "ffn intermediate_size ffn_size", "vocab_size": "vocab n_vocab",
    "num_moe_experts": "experts num_experts n_experts", "moe_router_topk": "topk num_experts_per_tok",
    "osl": "max_tokens output_len output_length output_tokens", "isl": "input_len input_length input_tokens prompt_len",
    "rate": "qps rps requests_per_second", "export": "output_dir out_dir save", "memory_margin": "margin memory_reserve",
}  # fmt: skip
_MEANT = {word: tuple(fields.split()) for fields, words in _FIELDS.items() for word in words.split()}
_KEYS_OF_PLANS = ("mbs", "tp", "pp", "dp", "cp", "ep", "sp", "recompute")


_LATENCY = "limits of latency are --ttft 2s to the first token and --tpot 50ms for each further one"
_ADAPTERS_SERVED = "adapters are served with their base model's plan: their weights and products are not priced"
_OF_DEPLOYMENTS = {
    **dict.fromkeys(("latency", "e2e", "e2e_latency", "itl", "slo"), _LATENCY),
    **dict.fromkeys(("lora", "peft", "adapters"), _ADAPTERS_SERVED),
    "global_batch_size": "the sequences at once of an instance are --fix batch=N; without it every batch is tried",
    "precision": "the formats of weights and cache are --fix weights=fp8 and --fix kv=fp8; without them every one is tried",
}


def usual(word: str, known: Collection[str]) -> tuple[str | None, str]:
    """Of a word that no field has: the field of `known` that it means, and what to say where that is none of them."""
    name = word.lower().replace("-", "_").strip("_")
    if "isl" in known and name in _OF_DEPLOYMENTS and name not in known:
        return None, _OF_DEPLOYMENTS[name]
    if name in SAID:
        return None, SAID[name]
    fields = _MEANT.get(name, (name,) if name in _KEYS_OF_PLANS else ())
    for field in fields:
        if field in known:
            return field, ""
        if field in _KEYS_OF_PLANS:
            return None, f"a plan is held to it by --fix {field}=N" if "fix" in known else _PLAN
        if "isl" in known and field in _OF_DEPLOYMENTS:
            return None, _OF_DEPLOYMENTS[field]
    return None, ""
