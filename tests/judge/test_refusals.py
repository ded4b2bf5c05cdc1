"""Pairs of arguments that `check` calls refused (tests/megatron/test_releases.py), put to megatron-core's own parser."""

from pathlib import Path

import pytest
from tables import table

MODEL = "--num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 --bf16"
PLAIN = f"{MODEL} --vocab-size 1000 --micro-batch-size 1 --global-batch-size 64 --use-distributed-optimizer"
RUN = f"{PLAIN} --lr 1e-4 --train-iters 10 --mock-data --tokenizer-type NullTokenizer"
CASES = str(Path(__file__).parents[1] / "megatron" / "test_releases.py")


@pytest.mark.parametrize(
    "row", table(CASES, "test_what_megatron_refuses_is_not_legal_from_a_release_on")[1:], ids=lambda row: row[0]
)
def test_the_parser_refuses_what_check_calls_refused(judge, row):
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    for text, accepted in ((row[0], False), (row[4], True)):
        answer = judge.arguments(f"{RUN} {text}".split(), 8, environment, 9.0)
        assert answer["accepted"] == accepted, answer
