"""`check` names what a launch script leaves out that its job will miss."""

import json

import pytest

MODEL = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups 8 "
    "--ffn-hidden-size 14336 --max-position-embeddings 131072 --micro-batch-size 1 --global-batch-size 64 --bf16 --swiglu "
    "--normalization RMSNorm --disable-bias-linear --position-embedding-type rope --transformer-impl transformer_engine "
    "--use-distributed-optimizer --untie-embeddings-and-output-weights --vocab-size 32000 --tokenizer-type NullTokenizer "
    "--tensor-model-parallel-size 2 --sequence-parallel --context-parallel-size 4 --manual-gc --attention-backend flash"
)
EXPERTS = (
    "--num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 8 --moe-grouped-gemm --moe-token-dispatcher-type alltoall"
)
MASK, FUSION, ALLOCATOR = "--no-create-attention-mask-in-dataloader", "--moe-permute-fusion", "PYTORCH_CUDA_ALLOC_CONF"


@pytest.mark.parametrize(("more", "before", "named"), [
    ("--seq-length 4096", "", [ALLOCATOR]),
    ("--seq-length 32768", "", [MASK, ALLOCATOR]),
    (f"--seq-length 131072 {MASK}", f"export {ALLOCATOR}=expandable_segments:True\n", []),
    (f"--seq-length 4096 {EXPERTS}", "", [FUSION, ALLOCATOR]),
    (f"--seq-length 4096 {EXPERTS} {FUSION}", "", [ALLOCATOR]),
])  # fmt: skip
def test_omissions(autoconfig, tmp_path, more, before, named):
    file = tmp_path / "run.sh"
    file.write_text(f"{before}torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py {MODEL} {more}\n")
    answer = json.loads(autoconfig.run("check", str(file), "--json").stdout)
    assert [text.split(":")[0].split("=")[0] for text in answer["omitted"]] == named
    shown = " ".join(autoconfig.run("check", str(file)).stdout.split())
    assert all(f"Not given: {name}" in shown for name in named)
    if MASK in named:
        assert "a mask of 4 GiB a sample" in answer["omitted"][0]


@pytest.mark.parametrize("model", ["llama3-8b", "qwen3-30b-a3b"])
def test_our_own_scripts_leave_nothing_out(autoconfig, tmp_path, model):
    asked = ("--model", model, "--gpus", "64", "--seq-length", "32768", "--global-batch-size", "64", "--top", "1")
    assert autoconfig.run("search", *asked, "--export", str(tmp_path / "run")).exit_code == 0
    answer = json.loads(autoconfig.run("check", str(tmp_path / "run" / "train.sh"), "--json").stdout)
    assert answer["omitted"] == []


@pytest.mark.parametrize(("more", "named"), [("", 1), (" --moe_permute_fusion true", 0)])
def test_arguments_with_underscores_are_given(autoconfig, tmp_path, more, named):
    file = tmp_path / "run.sh"
    command = "megatron sft --model Qwen/Qwen3-30B-A3B --max_length 4096 --expert_model_parallel_size 8"
    file.write_text(f"NPROC_PER_NODE=8 {command}{more}\n")
    answer = json.loads(autoconfig.run("check", str(file), "--gpu", "h200", "--json").stdout)
    assert len([text for text in answer["omitted"] if text.startswith(FUSION)]) == named


@pytest.mark.parametrize(
    ("layers", "parallel", "named"),
    [
        ("local", "--sequence-parallel", True),
        ("local", "", False),
        ("transformer_engine", "--sequence-parallel", False),
    ],
)
def test_local_layers_need_apex_for_sequence_parallelism(autoconfig, tmp_path, layers, parallel, named):
    file = tmp_path / "run.sh"
    words = MODEL.replace(" --sequence-parallel", f" {parallel}").replace("transformer_engine", layers)
    words = words.replace("--context-parallel-size 4", "").replace("--attention-backend flash", "")
    file.write_text(f"torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py {words} --seq-length 4096\n")
    answer = json.loads(autoconfig.run("check", str(file), "--json").stdout)
    assert any(text.startswith("Apex: without its norms") for text in answer["omitted"]) == named
