"""A launch script of a small model, and how `check` reads one."""

from autoconfig.megatron.check_input import CheckRequest, read_check


def read(text, **request):
    return read_check(text, CheckRequest(**request))


def launch(before="", arguments=""):
    """A small script around some lines."""
    base = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 --bf16"
    return f"{before}\ntorchrun --nproc_per_node 8 pretrain_gpt.py {base} --vocab-size 1000 --micro-batch-size 1 {arguments}\n"
