"""Deployments of many kinds, for the tables of memory and time of serving."""

from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.serve_plan import parse_serve_plan
from autoconfig.specs.software.engine import load_engine
from autoconfig.time_model.serving.rows import ServingJob
from autoconfig.time_model.serving.tables import shipped_calibration

JOBS = """
llama3-8b h100 vllm tp=1,batch=64
llama3-70b h100 trtllm-1.2 tp=4,weights=fp8,kv=fp8
llama3-70b a100-80gb trtllm-0.12 tp=2,pp=2
llama3.1-405b b200 trtllm-1.2 tp=8,weights=nvfp4,kv=fp8,batch=1024
mixtral-8x7b h100 trtllm-0.20 tp=2,ep=2,weights=fp8
mixtral-8x22b h200 sglang tp=8,ep=1
deepseek-v3 b200 trtllm-1.2 tp=1,adp=8,ep=8,weights=nvfp4,kv=fp8
deepseek-v3 h200 sglang tp=8,ep=8,weights=fp8_block
deepseek-v3.2 gb200 vllm tp=2,adp=4,ep=8,weights=fp8_block,kv=fp8
kimi-k2 gb300 trtllm-1.2 tp=8,ep=4,weights=fp8_block
gpt-oss-120b h100 vllm tp=2,weights=mxfp4
gpt-oss-20b b200 trtllm-1.2 tp=1,weights=mxfp4,kv=fp8
gemma3-27b h100 vllm tp=2,weights=int4
gemma2-9b l40s vllm tp=1,weights=int8
qwen3-30b-a3b h100-pcie vllm tp=1,ep=1
granite4-h-small h100 vllm tp=2,ep=2
nemotron-3-nano b200 trtllm-1.2 tp=1,weights=fp8
qwen3.5-35b-a3b h200 sglang tp=2,ep=2
glm-4.5-air gh200 trtllm-0.17 tp=4,pp=2
falcon-180b a100-40gb megatron tp=8,pp=2
llama3.2-1b a10g vllm tp=1,kv=fp8
llama4-scout b300 sglang tp=8,ep=8
qwen2.5-32b h20 trtllm-0.14 tp=2,weights=int4
minimax-m2 rtx-pro-6000 vllm tp=4,ep=4,weights=fp8_block
""".strip().splitlines()
"""Model, GPU, engine and layout."""


def job_of(text: str, **more: object) -> ServingJob:
    model, gpu, engine, plan = text.split()
    chip, spec = load_gpu(gpu), load_engine(engine)
    decode = parse_serve_plan(plan).decode
    constants = shipped_calibration().constants(spec, chip)
    return ServingJob(model=load_model(model), gpu=chip, plan=decode, engine=spec, constants=constants, gpus_per_node=8, **more)
