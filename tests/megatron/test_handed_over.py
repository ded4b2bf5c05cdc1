"""Words handed over to a script or a function: what bash makes of them, or not known, never a guess."""

import re
import subprocess

import pytest
from autoconfig.specs.errors import InputError

from autoconfig.megatron.check_input import CheckRequest, read_check

BASE = "--num-layers 4 --hidden-size 64 --num-attention-heads 8 --seq-length 128 --max-position-embeddings 128 --bf16"
TP = "--tensor-model-parallel-size"
LAUNCH = f"torchrun --nproc_per_node 8 pretrain_gpt.py {BASE} --vocab-size 1000 --micro-batch-size 1"
GIVEN = [
    (f'{LAUNCH} "$@"', (TP, "4")),
    (f'{LAUNCH} "${{@}}"', (TP, "4")),
    (f"{LAUNCH} $*", (TP, "4")),
    (f'ARGS=("$@")\n{LAUNCH} "${{ARGS[@]}}"', (TP, "4")),
    (f'f() {{ {LAUNCH} "$@"; }}\nf "$@"', (TP, "4")),
    (f'TP=$1\nshift\n{LAUNCH} {TP} $TP "$@"', ("4", "--sequence-parallel")),
    (f'{LAUNCH} "${{@:2}}" {TP} $1', ("4", "--sequence-parallel")),
    (f'set -- "$@" {TP} 4\nshift\n{LAUNCH} "$@"', ("x",)),
    (f"TP=2\nwhile [ $# -gt 0 ]; do case $1 in --tp) TP=$2; shift 2;; *) shift;; esac; done\n{LAUNCH} {TP} $TP", ("--tp", "4")),
    (f"N=$#\n{LAUNCH} {TP} $((N * 2))", ("a", "b")),
    (f'main() {{ {LAUNCH} {TP} $2; }}\nmain "$@"', ("a", "4")),
]
"""Scripts and their arguments, with which the tensor parallelism is 4."""


def read(text, *given, **named):
    settings = {**{str(at): word for at, word in enumerate(given, 1)}, **named}
    return read_check(text, CheckRequest(gpu="h100-sxm-80gb", settings=settings))


@pytest.mark.parametrize(("text", "given"), GIVEN)
def test_arguments_of_the_script_are_what_the_caller_says(text, given):
    assert read(text, *given).plan.tp == 4
    shown = subprocess.run(
        ["bash", "-c", f"torchrun() {{ printf '%s\\n' \"$@\"; }}\n{text}", "run.sh", *given],
        capture_output=True, text=True, timeout=20, check=True,
    ).stdout.split()  # fmt: skip
    assert shown[shown.index(TP) + 1] == "4", "bash hands over the same"


def test_an_argument_in_between_is_asked_for():
    with pytest.raises(InputError, match="say --set 1=VALUE"):
        read(f'{LAUNCH} "$@"', **{"2": "4"})
    assert read(f"shift\n{LAUNCH} {TP} $1", **{"2": "4"}).plan.tp == 4


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ("set -- $EXTRA 8 2\nshift", "left by shift is not known: $EXTRA"),
        ("f() { shift; X=$1; }\nf $EXTRA 8 2\nset -- $X", "$EXTRA"),
        ("set -- a $(nproc) 4\nshift 2", r"$(nproc)"), ('set -- "$@" 4 2\nshift', "$@"),
        ("f() { set -- $2; X=$1; }\nf $EXTRA 8\nset -- $X", "stands behind $EXTRA, which may be no word or several"),
        ("f() { X=${2:-8}; }\nf $EXTRA\nset -- $X", "stands behind $EXTRA"), ("set -- $(cat opts) 4\nset -- $#", "$#"),
    ],
)  # fmt: skip
def test_positions_behind_what_may_be_several_words_are_not_known(before, why):
    """Bash with EXTRA="" and with EXTRA="a b" has another word there."""
    with pytest.raises(InputError, match=re.escape(why)):
        read(f"{before}\n{LAUNCH} {TP} $1")


@pytest.mark.parametrize("words", ['"$EXTRA" 4', "$((EXTRA)) 4", "$SLURM_NODEID 4", "x 4 $EXTRA"])
def test_what_is_one_word_moves_nothing(words):
    assert read(f"set -- {words}\nshift\n{LAUNCH} {TP} $1").plan.tp == 4


@pytest.mark.parametrize("end", ["'EOF'", '"EOF"'])
def test_a_quoted_here_document_keeps_its_variables_as_text(end):
    text = f"TP=4\nread -r -d '' ARGS <<{end}\n{BASE} --vocab-size 1000 --micro-batch-size 1 {TP} $TP\nEOF\n"
    start = "torchrun --nproc_per_node 8 pretrain_gpt.py $ARGS\n"
    with pytest.raises(InputError, match=r"'\$TP' is not a whole number"):
        read(text + start)
    assert read(text.replace(end, "EOF") + start).plan.tp == 4
