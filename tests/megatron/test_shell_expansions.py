"""getopts, ${NAME/...} of texts and arrays, here-documents as text: what our reader makes of them, and bash itself."""

import subprocess

import pytest
from autoconfig.specs.errors import InputError

from autoconfig.megatron.argument_list import megatron_program
from autoconfig.megatron.check_input import CheckRequest, read_check
from autoconfig.megatron.shell.script import read_script
from autoconfig.megatron.shell.values import text_of

LAUNCH = (
    "\npython pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --bf16 "
    "--micro-batch-size 1 --max-position-embeddings 128 --vocab-size 1000 "
)
OPTIONS = """TP=1; PP=3; X=
while getopts ":t:p:xh" opt; do
  case $opt in
    t) TP=$OPTARG ;;
    p) PP="$OPTARG" ;;
    x) X=--sequence-parallel ;;
    h) echo usage; exit 1 ;;
    \\?|:) echo wrong; exit 2 ;;
  esac
done
shift $((OPTIND - 1))
"""
CASES = [
    (OPTIONS, "--tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP $X $1", words)
    for words in ([], ["-t", "4", "-x"], ["-xt4", "-p", "2", "--", "--swiglu"], ["-p2", "swiglu", "-t4"])
] + [
    ("A=(--swiglu --sequence-parallel --lr 1)", '${A[@]/--sequence-parallel} --tag "${A[@]%l}"', []),
    ("A=(--swiglu a.b.c --lr 1e-5); B=(${A[@]/#--l/--min-l})", "${B[@]/%5/6} ${A[1]/b/x}", []),
    ("V=a.b.c.d", "--tag ${V//./-} ${V/b*d/e} ${V/./} ${V/#a/z} ${V/%d/z} ${V^^} ${V^} ${V:2} ${V:0:3} ${V: -3} ${V:1:-2}", []),
    ("V=Llama; W=$V-7b", "--tag ${W,,} ${W/[lL]*-/x} ${W/q/x} ${V//a}", []),
    ("TP=4\nARGS=$(cat <<EOT\n --tensor-model-parallel-size $TP\n --swiglu\nEOT\n)", "$ARGS", []),
    ("TP=4\nARGS=$(cat <<'EOT'\n--tag \"a\" 5\nEOT\n)", "$ARGS", []),
    ("ARGS=$(cat <<-EOT | tr '\\n' ' '\n\t--swiglu\n\t--lr 1\n\tEOT\n)", "$ARGS", []),
    ("N=2\nread -r -d '' ARGS <<EOM\n--swiglu\n--num-experts $N\nEOM", "$ARGS", []),
    ("read A B <<EOT\n--swiglu --lr 1\nsecond\nEOT", "$A $B", []),
]


@pytest.mark.parametrize(("before", "behind", "words"), CASES)
def test_words_are_those_of_bash(before, behind, words, tmp_path):
    settings = {str(at): word for at, word in enumerate(words, 1)}
    script = read_script(before + LAUNCH + behind + "\n", megatron_program(), settings)
    ours = [text_of(value) for value in script.argv]
    (tmp_path / "python").write_text('#!/bin/bash\nshift\nprintf "%s\\n" "$@"\n')
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "run.sh").write_text(before + LAUNCH + behind + "\n")
    command = ["/bin/bash", str(tmp_path / "run.sh"), *words]
    told = subprocess.run(
        command, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, timeout=30, check=True
    )
    assert [word for word in ours if not word.startswith("$1")] == told.stdout.splitlines()


def test_a_script_with_getopts_is_read_as_started_without_options():
    text = OPTIONS.replace("python", "torchrun") + LAUNCH.replace("python ", "torchrun --nproc_per_node 8 ")
    text += "--tensor-model-parallel-size $TP --pipeline-model-parallel-size ${PP/3/2} --num-layers 8"
    plain = read_check(text, CheckRequest(gpu="h100"))
    assert (plain.plan.tp, plain.plan.pp, plain.plan.dp) == (1, 2, 4)
    given = read_check(text, CheckRequest(gpu="h100", settings={"1": "-t", "2": "4"}))
    assert (given.plan.tp, given.plan.pp, given.plan.dp) == (4, 2, 1)
    with pytest.raises(InputError):
        read_check(text, CheckRequest(gpu="h100", settings={"1": "-h"}))


def test_what_a_here_document_does_not_know_stays_unknown():
    text = "TP=$(nproc)\nARGS=$(cat <<EOT\n--tensor-model-parallel-size $TP\nEOT\n)" + LAUNCH.replace("python", "torchrun")
    with pytest.raises(InputError, match="nproc"):
        read_check(text + "$ARGS", CheckRequest(gpu="h100", gpus=8))
