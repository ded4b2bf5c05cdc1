"""The start command of one engine instance, in the engine's own arguments, and where to set what a plan cannot say.

Argument names and their meaning: trtllm-serve and the options of TensorRT-LLM 1.3; vllm serve of vLLM 0.33;
sglang.launch_server of SGLang 0.5.23; Megatron-LM's text generation server of megatron-core 0.19.2. Who judged them:
docs/inference.md, start scripts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from autoconfig.planning.export_files import MARK
from autoconfig.serving.question import ServeQuestion
from autoconfig.specs.errors import UnsupportedError, option
from autoconfig.specs.serve_plan import EnginePlan
from autoconfig.specs.software.engine import module_formats

FIRST_PORT = 8000
SGLANG_BOOTSTRAP_PORT = 8998
"""--disaggregation-bootstrap-port, where decode instances find a prefill instance: SGLang's default plus its number."""
SGLANG_DIST_PORT = 20000
"""Of --dist-init-addr, on the first node of an instance of several."""
HEAD_NODE = (
    "NODE_RANK=${NODE_RANK:-${SLURM_NODEID:-0}}",
    ': "${HEAD_NODE:?set HEAD_NODE to the first node, NODE_RANK to this node (0 is the first)}"',
)
"""Of an instance on several nodes, whose script runs once on each."""
NIXL_PORT, NIXL_PORTS = 5600, 100
"""VLLM_NIXL_SIDE_CHANNEL_PORT: vLLM's default, and from one instance to the next (each data-parallel rank adds 1)."""
WRITTEN_FOR = {
    "tensorrt-llm": "TensorRT-LLM 1.3",
    "vllm": "vLLM 0.33",
    "sglang": "SGLang 0.5.23",
    "megatron": "megatron-core 0.19.2",
}
"""Release whose arguments a script has."""


def written_for(framework: str, what: str = "") -> str:
    """First line of every file: who wrote it and for which release, or for `what`."""
    return f"{MARK} for {what or WRITTEN_FOR[framework]}"


KV_DTYPES = {"bf16": "auto", "fp8": "fp8", "nvfp4": "nvfp4"}
SGLANG_KV = {"bf16": "auto", "fp8": "fp8_e4m3", "nvfp4": "nvfp4"}
"""--kv-cache-dtype by our format, of vLLM and TensorRT-LLM, and of SGLang; auto is the model's own 16 bits."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """How one instance starts: lines of shell, of which the last is the server's command; PORT and INSTANCE are set."""

    words: tuple[str, ...]
    options: Mapping[str, object]
    before: tuple[str, ...] = ()
    each: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """One option a line; flags are True, options that are None or False are left out."""
        lines = [" ".join(self.words)]
        for name, value in self.options.items():
            if value is True:
                lines.append(f"  {name}")
            elif value is not None and value is not False:
                lines.append(f"  {name} {value}".rstrip())
        return "\n".join([*self.each, " \\\n".join(lines)])


LENGTH_SLACK = 128
"""Tokens that the server takes beyond the longest request, for a chat template and special tokens."""


def length(question: ServeQuestion, plan: EnginePlan) -> int:
    """Longest sequence that the server takes: what --max-model-len says, else the model's own length where the cache holds one
    such sequence, else twice the 99th percentile, else the longest request with slack, else that request alone.

    An engine that sizes its buffers by it (reserved slots, megatron-core) or computes any prompt of that length at once (whole
    prompts, but of TensorRT-LLM, which refuses those beyond --max_num_tokens) is told the longest request.
    """
    if question.options.max_model_len:
        return question.options.max_model_len
    longest, own = int(question.workload.longest_tokens), question.model.max_position_embeddings
    framework = question.engine.framework
    pool = float(question.memory(question.job(plan), float(plan.batch), float(plan.tokens)).kv_pool_bytes)
    wanted = [max(longest, min(longest + LENGTH_SLACK, own))]
    whole = not question.chunked and framework != "tensorrt-llm"
    if not whole and not question.engine.reserves_slots and framework != "megatron":
        wanted[:0] = [max(longest, own), twice_p99(question)]
    return next((one for one in wanted if question.sequence_bytes(plan, one) <= pool), longest)


def twice_p99(question: ServeQuestion) -> int:
    """Twice the 99th percentile of requests, prompt and answer together, as far as the model has positions; at least the
    longest."""
    longest, own = int(question.workload.longest_tokens), question.model.max_position_embeddings
    return max(longest, min(2 * round(question.workload.p99_tokens), own))


def whole_prompt_tokens(question: ServeQuestion, plan: EnginePlan) -> int:
    """Tokens of an iteration of an engine that refuses a prompt beyond them: those of the plan, and where prompts are not cut
    room for the longest one, cached or not, with slack.

    TensorRT-LLM 1.3, llmapi/llm.py, _check_arguments (not on decode instances); megatron-core 0.19.2, dynamic_engine.py.
    """
    if question.chunked:
        return plan.tokens
    return max(plan.tokens, min(int(question.workload.longest_input) + LENGTH_SLACK, length(question, plan)))


def nodes_of(question: ServeQuestion, plan: EnginePlan) -> int:
    """Nodes of one instance."""
    return -(-plan.size // question.gpus_per_node)


def sequences(kind: str, plan: EnginePlan) -> int:
    """Sequences of a whole instance: of a prefill instance at least one for each rank and stage."""
    return max(plan.batch, plan.adp * plan.pp) if kind == "prefill" else plan.batch


def _seats(kind: str, plan: EnginePlan, parts: int) -> int:
    """Sequences of one of so many parts of an instance, rounded up: together they seat all of the plan's."""
    return -(-sequences(kind, plan) // parts)


def _share(question: ServeQuestion, plan: EnginePlan) -> str:
    return f"{question.served(question.job(plan)).share(plan.tokens):.4g}"


def _cache(plan: EnginePlan, question: ServeQuestion, names: Mapping[str, str]) -> str:
    if plan.kv not in names:
        raise UnsupportedError(
            f"{plan}: no {question.engine.framework} option for a cache in {plan.kv}; "
            f"{option('fix')} kv= one of {', '.join(names)}"
        )
    return names[plan.kv]


def _quantised_at_load(question: ServeQuestion, plan: EnginePlan) -> bool:
    if question.checkpoint is not None:
        return False  # the files say their format; another one on the command line is refused
    formats = module_formats(question.model, plan.weights, question.gpu)
    return {formats.attention, formats.mlp, formats.experts} == {"fp8"}


QUANTIZATION = (
    "# fp8: a checkpoint in 16 bits is quantised at load; for one that names its own format: QUANTIZATION= (empty)",
    "QUANTIZATION=${QUANTIZATION-fp8}",
)
QUANTIZATION_OPTION = '${QUANTIZATION:+--quantization "$QUANTIZATION"}'


def trtllm(question: ServeQuestion, kind: str, plan: EnginePlan) -> Start:
    """trtllm-serve with its options as YAML; batch limits are those of one attention rank and pipeline stage."""
    most = _seats(kind, plan, plan.adp * plan.pp)
    longest = length(question, plan)
    if kind != "serve":  # the buffer that caches cross through holds one such sequence
        longest = min(longest, twice_p99(question))
    yaml = [
        written_for("tensorrt-llm"),
        f"enable_attention_dp: {'true' if plan.adp > 1 else 'false'}",
        f"enable_chunked_prefill: {'true' if question.chunked else 'false'}",
        "kv_cache_config:",
        f"  dtype: {_cache(plan, question, KV_DTYPES)}",
        f"  free_gpu_memory_fraction: {_share(question, plan)}",
        "cuda_graph_config:",
        "  enable_padding: true",
        f"  max_batch_size: {most}",
    ]
    if kind != "serve":
        yaml += ["cache_transceiver_config:", "  backend: DEFAULT", f"  max_tokens_in_buffer: {longest}"]
    if kind == "prefill":
        yaml.append("disable_overlap_scheduler: true")
    options = {
        "--backend": "pytorch",
        "--host": "0.0.0.0",
        "--port": '"$PORT"',
        "--tp_size": plan.tp * plan.adp,
        "--pp_size": plan.pp,
        "--ep_size": plan.ep if question.model.is_moe else None,
        "--max_batch_size": most,
        "--max_num_tokens": plan.tokens if kind == "decode" else whole_prompt_tokens(question, plan),
        "--max_seq_len": longest,
        "--extra_llm_api_options": f'"$(dirname "$0")/{kind}.yaml"',
    }
    words: tuple[str, ...] = ("trtllm-serve", '"$MODEL"')
    if nodes_of(question, plan) > 1:
        words = ("trtllm-llmapi-launch", *words)
        options["--gpus_per_node"] = question.gpus_per_node
    return Start(words=words, options=options, files={f"{kind}.yaml": "\n".join(yaml) + "\n"})


def vllm(question: ServeQuestion, kind: str, plan: EnginePlan) -> Start:
    """vllm serve; --max-num-seqs and --max-num-batched-tokens are of one data-parallel rank, all its stages together."""
    most = _seats(kind, plan, plan.adp)
    # vLLM refuses fewer tokens an iteration than sequences (a decode instance may have planned fewer) and, with whole prompts,
    # than the longest sequence.
    tokens = max(plan.tokens, most, 0 if question.chunked else length(question, plan))
    options: dict[str, object] = {
        "--host": "0.0.0.0",
        "--port": '"$PORT"',
        "--tensor-parallel-size": plan.tp,
        "--pipeline-parallel-size": plan.pp,
        "--data-parallel-size": plan.adp if plan.adp > 1 else None,
        "--enable-expert-parallel": plan.ep > 1,
        "--max-num-seqs": most,
        "--max-num-batched-tokens": tokens,
        "--max-model-len": length(question, plan),
        "--kv-cache-dtype": _cache(plan, question, KV_DTYPES),
        "--gpu-memory-utilization": _share(question, plan),
        "--enable-chunked-prefill": question.chunked,
        "--no-enable-chunked-prefill": not question.chunked,
    }
    before: list[str] = []
    each: list[str] = []
    if _quantised_at_load(question, plan):
        before += QUANTIZATION
        options[QUANTIZATION_OPTION] = ""
    if kind != "serve":
        role = "kv_producer" if kind == "prefill" else "kv_consumer"
        options["--kv-transfer-config"] = f"'{json.dumps({'kv_connector': 'NixlConnector', 'kv_role': role})}'"
        port = NIXL_PORT if kind == "prefill" else 2 * NIXL_PORT
        each.append(f"export VLLM_NIXL_SIDE_CHANNEL_PORT=$(({port} + {NIXL_PORTS} * ${{INSTANCE:-0}}))")
    nodes = nodes_of(question, plan)
    if nodes > 1:
        before += HEAD_NODE
        options |= {
            "--nnodes": nodes,
            "--node-rank": '"$NODE_RANK"',
            "--master-addr": '"$HEAD_NODE"',
            '"${follower[@]}"': "",
        }
        each += ["follower=()", 'if [ "$NODE_RANK" != 0 ]; then follower=(--headless); fi']
    return Start(words=("vllm serve", '"$MODEL"'), options=options, before=tuple(before), each=tuple(each))


def sglang(question: ServeQuestion, kind: str, plan: EnginePlan) -> Start:
    """sglang.launch_server: requests and chunk of the whole instance, which the server divides by the attention ranks,
    requests by the stages, too, rounding down.

    Prompts of an iteration are also limited by --max-prefill-tokens, of one rank, whose default is 16,384.
    """
    options: dict[str, object] = {
        "--model-path": '"$MODEL"',
        "--host": "0.0.0.0",
        "--port": '"$PORT"',
        "--tp-size": plan.tp * plan.adp,
        "--pp-size": plan.pp,
        '"${ATTENTION_DP[@]}"': "" if plan.adp > 1 else None,
        "--ep-size": plan.ep if plan.ep > 1 else None,
        "--max-running-requests": _seats(kind, plan, plan.adp * plan.pp) * plan.adp * plan.pp,
        "--chunked-prefill-size": plan.tokens * plan.adp if question.chunked else -1,
        "--max-prefill-tokens": plan.tokens,
        "--enable-mixed-chunk": question.chunked and kind == "serve",
        "--context-length": length(question, plan),
        "--kv-cache-dtype": _cache(plan, question, SGLANG_KV),
        "--mem-fraction-static": _share(question, plan),
    }
    before: tuple[str, ...] = ()
    if plan.adp > 1:
        before += (
            f'# SGLang that has no --attn-dp-size spells it ATTENTION_DP="--dp-size {plan.adp} --enable-dp-attention"',
            f'read -ra ATTENTION_DP <<< "${{ATTENTION_DP:---attn-dp-size {plan.adp}}}"',
        )
    if _quantised_at_load(question, plan):
        before += QUANTIZATION
        options[QUANTIZATION_OPTION] = ""
    if kind != "serve":
        options |= {"--disaggregation-mode": kind, "--disaggregation-transfer-backend": "nixl"}
    if kind == "prefill":
        options["--disaggregation-bootstrap-port"] = f"$(({SGLANG_BOOTSTRAP_PORT} + ${{INSTANCE:-0}}))"
    nodes = nodes_of(question, plan)
    if nodes > 1:
        before += HEAD_NODE
        address = f'"$HEAD_NODE:{SGLANG_DIST_PORT}"'
        options |= {"--nnodes": nodes, "--node-rank": '"$NODE_RANK"', "--dist-init-addr": address}
    return Start(words=("python3 -m sglang.launch_server",), options=options, before=before)


def megatron(question: ServeQuestion, kind: str, plan: EnginePlan) -> Start:
    """Megatron-LM's text generation server with the dynamic engine; the model's own arguments come with the checkpoint."""
    gpus, nodes = plan.tp * plan.pp, nodes_of(question, plan)
    options = {
        "--load": '"$MODEL"',
        "--use-checkpoint-args": True,
        "--tensor-model-parallel-size": plan.tp,
        "--pipeline-model-parallel-size": plan.pp,
        "--expert-model-parallel-size": plan.ep if plan.ep > 1 else None,
        "--bf16": True,
        "--micro-batch-size": 1,
        "--fp8-format": "hybrid" if plan.weights == "fp8" else None,
        "--inference-dynamic-batching-max-requests": _seats(kind, plan, plan.pp),
        "--inference-max-seq-length": length(question, plan),
        "--inference-dynamic-batching": True,
        "--inference-dynamic-batching-max-tokens": whole_prompt_tokens(question, plan),
        "--enable-chunked-prefill": question.chunked,
        "--port": '"$PORT"',
    }
    launcher = f"torchrun --nproc-per-node {min(gpus, question.gpus_per_node)}"
    if nodes > 1:
        launcher += f' --nnodes {nodes} --node-rank "$NODE_RANK" --master-addr "$HEAD_NODE"'
    words = (launcher, '"$MEGATRON"/tools/run_text_generation_server.py')
    before = (': "${MEGATRON:?set MEGATRON to the folder of Megatron-LM}"', *(HEAD_NODE if nodes > 1 else ()))
    return Start(words=words, options=options, before=before)


STARTS: dict[str, Callable[[ServeQuestion, str, EnginePlan], Start]] = {
    "tensorrt-llm": trtllm,
    "vllm": vllm,
    "sglang": sglang,
    "megatron": megatron,
}


def benchmark(port: int, options: Mapping[str, object]) -> str:
    """vLLM's serving benchmark against the server or router at `port` of this machine (all speak OpenAI's protocol)."""
    head: Sequence[tuple[str, object]] = (("--backend", "openai"), ("--model", '"$MODEL"'), ("--port", f'"${{PORT:-{port}}}"'))
    needs = (
        f"# The client is vLLM's, whatever engine serves (written for {WRITTEN_FOR['vllm']}): pip install vllm",
        "command -v vllm >/dev/null || { echo 'this needs vllm bench serve: pip install vllm' >&2; exit 127; }",
    )
    return "\n".join((*needs, Start(words=("vllm bench serve",), options={**dict(head), **options}).command))
