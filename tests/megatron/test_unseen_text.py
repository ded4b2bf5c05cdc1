"""What a script does not show: text that it evaluates, files that it sources, variables of the machine, its own arguments. No
plan is guessed."""

import subprocess

import pytest
from autoconfig.specs.errors import InputError
from tables import tabled

from autoconfig.megatron.check_input import CheckRequest, read_check

BASE = "--num-layers 4 --hidden-size 64 --num-attention-heads 8 --seq-length 128 --max-position-embeddings 128 --bf16"


def read(before, arguments="--tensor-model-parallel-size $TP", **settings):
    start = f"torchrun --nproc_per_node 8 pretrain_gpt.py {BASE} --vocab-size 1000 --micro-batch-size 1 {arguments}"
    return read_check(f"{before}\n{start}\n", CheckRequest(gpu="h100-80gb", settings=settings))


UNSEEN = (
    'eval "$(cat conf)"',
    "eval `cat conf`",
    "eval $(python settings.py)",
    'eval "$1=4"',
    ". <(cat conf)",
    "source /dev/stdin <<EOF\nTP=4\nEOF",
    "export $(grep -v '^#' .env | xargs)",
    'declare "$(cat conf)"',
    'while read k v; do eval "$k=$v"; done < conf',
    'while IFS== read -r k v; do export "$k=$v"; done < conf',
    'while read k v; do printf -v "$k" %s "$v"; done < conf',
    'read "$(cat name)" < conf',
    'if [ -f conf ]; then eval "$(cat conf)"; fi',
    'setup() { eval "$(cat conf)"; }\nsetup',
    'f() { local -n r=$1; r=8; }\nf "$(cat name)"',
)


@pytest.mark.parametrize("line", UNSEEN)
def test_text_that_is_not_seen_may_set_any_variable_in_front_of_it(line):
    with pytest.raises(InputError, match=r"\$TP (may be set by line \d, which runs text that is not known|depends on)"):
        read(f"TP=2\n{line}")
    with pytest.raises(InputError, match=r"\$TP in line \d+ may be set by line|depends on a condition"):
        read(f"{line}", "--tensor-model-parallel-size ${TP:-2}")
    assert read(f"{line}\nTP=2").plan.tp == 2, "what is assigned behind it holds"
    assert read(f"TP=2\n{line}", TP="4").plan.tp == 4, "what the caller says holds"


@tabled
def test_what_sets_up_the_shell_or_runs_beside_the_script_sets_nothing(line):
    assert read(f"TP=2\n{line}").plan.tp == 2


def test_a_launch_in_evaluated_text_is_a_launch():
    start = f"torchrun --nproc_per_node 8 pretrain_gpt.py {BASE} --vocab-size 1000 --micro-batch-size 1"
    text = f'eval "$(which numactl) {start} --tensor-model-parallel-size 2"\n'
    assert read_check(text, CheckRequest(gpu="h100-80gb")).plan.tp == 2


def said(found):
    return [note for note in found.notes if "may be set by" in note]


def test_a_sourced_file_may_set_what_the_script_does_not_assign_behind_it():
    assert said(read("source ./env.sh\nTP=2\nLR=1e-4")) == []
    assert "line 3: $TP may be set by ./env.sh" in said(read("LR=1\nTP=2\nsource ./env.sh"))[0]
    assert "LR" not in said(read("LR=1\nTP=2\nsource ./env.sh"))[0], "nothing behind it reads it"
    more = said(read("TP=2\n. $ROOT/env.sh", "--tensor-model-parallel-size $TP $EXTRA_ARGS"))
    assert "$TP" in more[0] and "$EXTRA_ARGS" in more[0]
    assert "$TP" in said(read("source .env", "--tensor-model-parallel-size ${TP:-2}"))[0]
    assert "$TP" in said(read("run() { export A=$TP; }\nTP=2\nARGS=$TP\nsource .env\nrun", "--tensor-model-parallel-size 2"))[0]
    with pytest.raises(InputError, match="say --set TP=VALUE"):
        read("source ./env.sh")
    assert said(read("TP=2\nsource ./env.sh", TP="2")) == []


@tabled
def test_whether_a_scheduler_runs_the_script_is_not_known(line):
    with pytest.raises(InputError, match=r"--set (SLURM|PBS|HOST|USER)"):
        read(f"TP=2\n{line}")
    assert read(f"TP=2\n{line.replace('TP=8', ':')}" if "TP=8" in line else "TP=2").plan.tp == 2, "where both ways are alike"
    if "SLURM_JOB_ID" in line:
        assert read(f"TP=2\n{line}", SLURM_JOB_ID="7").plan.tp == 8
        assert read(f"#SBATCH --nodes=1\nTP=2\n{line}").plan.tp == 8


def test_a_test_of_a_variable_that_the_file_does_not_set_says_both_ways_where_they_differ():
    found = read('TP=2\nif [ "$BIG" = 1 ]; then TP=8; fi')
    assert found.plan.tp == 2
    assert "line 2: $BIG counts as empty" in found.notes[0] and "the plan would be tp=8" in found.notes[0]
    assert read('TP=2\nif [ "$BIG" = 1 ]; then TP=8; fi', BIG="1").plan.tp == 8
    assert read('TP=2\nif [ "$BIG" = 1 ]; then TP=8; fi', BIG="").notes == ()
    assert read('TP=2\nif [ -n "$WANDB" ]; then LOG=1; fi').notes == (), "nothing of the answer depends on it"
    more = read('TP=2\n[[ -n "$DP_FILE" ]] && TP=$(cat $DP_FILE)')
    assert more.plan.tp == 2 and "$DP_FILE counts as empty" in more.notes[0] and "not known" in more.notes[0]


@pytest.mark.parametrize("gone", ["A[2]", "A[-1]", "A[0]"])
def test_an_element_that_is_unset_leaves_the_array_open(gone):
    text = "A=(--tensor-model-parallel-size 2 --sequence-parallel)\n"
    assert not read(f"{text}unset A", '"${A[@]}"').plan.sp
    with pytest.raises(InputError, match=r"\$A has an element unset .line 2.: say --set A=VALUE"):
        read(f"{text}unset '{gone}'", '"${A[@]}"')


TP = "--tensor-model-parallel-size"
LAUNCH = f"torchrun --nproc_per_node 8 pretrain_gpt.py {BASE} --vocab-size 1000 --micro-batch-size 1"
GIVEN = [
    (f'{LAUNCH} "$@"', (TP, "4")),
    (f'{LAUNCH} "${{@}}"', (TP, "4")),
    (f"{LAUNCH} $*", (TP, "4")),
    (f'ARGS=("$@")\n{LAUNCH} "${{ARGS[@]}}"', (TP, "4")),
    (f'f() {{ {LAUNCH} "$@"; }}\nf "$@"', (TP, "4")),
    (f'TP=$1\nshift\n{LAUNCH} {TP} $TP "$@"', ("4", "--sequence-parallel")),
    (f'set -- "$@" {TP} 4\nshift\n{LAUNCH} "$@"', ("x",)),
    (f"TP=2\nwhile [ $# -gt 0 ]; do case $1 in --tp) TP=$2; shift 2;; *) shift;; esac; done\n{LAUNCH} {TP} $TP", ("--tp", "4")),
    (f"N=$#\n{LAUNCH} {TP} $((N * 2))", ("a", "b")),
    (f'main() {{ {LAUNCH} {TP} $2; }}\nmain "$@"', ("a", "4")),
]
"""Scripts and their arguments, with which the tensor parallelism is 4."""


def handed(text, *given, **named):
    settings = {**{str(at): word for at, word in enumerate(given, 1)}, **named}
    return read_check(text, CheckRequest(gpu="h100-sxm-80gb", settings=settings))


@pytest.mark.parametrize(("text", "given"), GIVEN)
def test_arguments_of_the_script_are_what_the_caller_says(text, given):
    assert handed(text, *given).plan.tp == 4
    shown = subprocess.run(
        ["bash", "-c", f"torchrun() {{ printf '%s\\n' \"$@\"; }}\n{text}", "run.sh", *given],
        capture_output=True, text=True, timeout=20, check=True,
    ).stdout.split()  # fmt: skip
    assert shown[shown.index(TP) + 1] == "4", "bash hands over the same"


def test_an_argument_in_between_is_asked_for():
    with pytest.raises(InputError, match="say --set 1=VALUE"):
        handed(f'{LAUNCH} "$@"', **{"2": "4"})
    assert handed(f"shift\n{LAUNCH} {TP} $1", **{"2": "4"}).plan.tp == 4


@pytest.mark.parametrize("end", ["'EOF'", '"EOF"'])
def test_a_quoted_here_document_keeps_its_variables_as_text(end):
    text = f"TP=4\nread -r -d '' ARGS <<{end}\n{BASE} --vocab-size 1000 --micro-batch-size 1 {TP} $TP\nEOF\n"
    start = "torchrun --nproc_per_node 8 pretrain_gpt.py $ARGS\n"
    with pytest.raises(InputError, match=r"'\$TP' is not a whole number"):
        handed(text + start)
    assert handed(text.replace(end, "EOF") + start).plan.tp == 4
