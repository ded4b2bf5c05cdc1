"""Keys of files that stand for Megatron-LM's arguments: their names, or those of the attributes that argparse makes of them."""

from __future__ import annotations

MEGATRON_ARGUMENTS = ("MODEL_ARGS", "ARGS")
"""Keys that hold Megatron-LM's arguments: those of its functional tests and of its recipes of mixtures."""

SWITCHED_OFF = {
    "--add-bias-linear": "--disable-bias-linear",
    "--add-position-embedding": "--no-position-embedding",
    "--share-embeddings-and-output-weights": "--untie-embeddings-and-output-weights",
    "--apply-rope-fusion": "--no-rope-fusion",
    "--masked-softmax-fusion": "--no-masked-softmax-fusion",
    "--gradient-accumulation-fusion": "--no-gradient-accumulation-fusion",
    "--bias-gelu-fusion": "--no-bias-gelu-fusion",
    "--bias-swiglu-fusion": "--no-bias-swiglu-fusion",
    "--bias-dropout-fusion": "--no-bias-dropout-fusion",
    "--persist-layer-norm": "--no-persist-layer-norm",
    "--overlap-p2p-comm": "--no-overlap-p2p-communication",
    "--check-for-nan-in-loss-and-grad": "--no-check-for-nan-in-loss-and-grad",
    "--torch-fsdp2-reshard-after-forward": "--torch-fsdp2-no-reshard-after-forward",
}
"""Attributes that an argument switches off (megatron/training/arguments.py, `store_false`): said where they are false."""
RENAMED = {
    "--fp8": "--fp8-format",
    "--fp4": "--fp4-format",
    "--num-moe-experts": "--num-experts",
    "--virtual-pipeline-model-parallel-size": "--num-virtual-stages-per-pipeline-rank",
    "--num-layers-in-first-pipeline-stage": "--decoder-first-pipeline-num-layers",
    "--num-layers-in-last-pipeline-stage": "--decoder-last-pipeline-num-layers",
    "--account-for-embedding-in-pipeline-split": "--account-for-embedding-in-pipeline-split",
    "--layernorm-epsilon": "--norm-epsilon",
    "--layernorm-zero-centered-gamma": "--apply-layernorm-1p",
}


def argument_name(key: str) -> str:
    """The argument that a key stands for."""
    name = "--" + str(key).lstrip("-").replace("_", "-")
    return RENAMED.get(name, name)


def key_of(flag: str) -> tuple[str, bool]:
    """(attribute, value that a given switch sets): `--disable-bias-linear` is (add_bias_linear, False)."""
    off = {switch: name for name, switch in SWITCHED_OFF.items()}
    return off.get(flag, flag).removeprefix("--").replace("-", "_"), flag not in off
