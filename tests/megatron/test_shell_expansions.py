"""getopts, ${NAME/...} of texts and arrays, here-documents as text: what our reader makes of them, and bash itself."""

import subprocess

import pytest
from autoconfig.specs.errors import InputError, UnsupportedError
from tables import tabled

from autoconfig.megatron.argument_list import megatron_program
from autoconfig.megatron.check_input import CheckRequest, read_check
from autoconfig.megatron.shell.commands import text_of
from autoconfig.megatron.shell.script import read_script

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
    (OPTIONS, "--tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP $X $1", []),
    ("A=(--swiglu --sequence-parallel --lr 1)", '${A[@]/--sequence-parallel} --tag "${A[@]%l}"', []),
    ("A=(--swiglu a.b.c --lr 1e-5); B=(${A[@]/--l/--min-l})", "${B[@]} ${A[1]/b/x}", []),
    ("V=a.b.c.d", "--tag ${V//./-} ${V/./} ${V^^}", []),
    ("V=Llama; W=$V-7b", "--tag ${W,,} ${W/q/x} ${V//a}", []),
    ("TP=4\nARGS=$(cat <<EOT\n --tensor-model-parallel-size $TP\n --swiglu\nEOT\n)", "$ARGS", []),
    ("TP=4\nARGS=$(cat <<'EOT'\n--tag \"a\" 5\nEOT\n)", "$ARGS", []),
    ("ARGS=$(cat <<-EOT | cat\n\t--swiglu\n\t--lr 1\n\tEOT\n)", "$ARGS", []),
    ("N=2\nread -r -d '' ARGS <<EOM\n--swiglu\n--num-experts $N\nEOM", "$ARGS", []),
    ("read A B <<EOT\n--swiglu --lr 1\nsecond\nEOT", "$A $B", []),
]

PATTERNS = [
    ("V='a b/c d'", '${V//\\//-} ${V//"/"/-} ${V/" "/-} "${V/\' \'/-}" "${V/\\ /-}"'),
    ("V='[a]*b?'", '"${V#\\[a\\]}" ${V/\\*/x} "${V/\'*\'/x}" "${V/\\?/x}"'),
    ("V=a/b; P=/; R=q/r; S=b", '${V/$P/-} ${V/$S/$R} ${V//"$P"/-} ${V%$S} ${V%${S}}'),
    ("A=(tp-8 pp-4)", '${A[@]/p/q} "${A[*]/-/p}" ${A[@]%-*} ${A[0]##*-}'),
    ("V=a#b%c", '${V/\\#/x} ${V/"#"/x}'),
    ("V=abab", "${V%b*} ${V%%b*} ${V/b/\\&} \"${V/b/'&'}\""),
    ("V='a$b'; W=$'x y'", '${V/\\$/x} "$W"'),
    ("set -- --tp 8 'a b'", '$* "$*" $@ "$@" $#'),
    ("set -- tp a/b", "${@#*/} ${*^^} ${@%/b} ${@%%/*}"),
    ('set -- a b; A="$@"; B=$*; C=("$@"); IFS=,; D="$*"; E="${C[*]}"; unset IFS', "$A $B ${C[1]} $D $E"),
    ('set -- a b; shift; f() { G="$*"; H=$2; }; f x y z', "$* $G $H"),
    ("IFS=,; set -- a,b; unset IFS", "$# $*"),
]
TEXTS = [
    ("if read -r -d '' A <<E\n1\nE\nthen T=1; else T=2; fi", "$A $T"),
    ("T=; U=\nread -r -d '' A <<E && T=1\n1\nE\nread -r -d '' B <<E || U=1\n2\nE", "$A $B t$T u$U"),
    ("set -e\nread -r -d '' A <<E || true\n1\nE\nread B <<< 2\n! read -d '' C <<< 3", "$A $B $C"),
    ("T=; U=\nread A <<E || T=1\nE\nread B <<< '' || U=1", "t$T u$U"),
    ("read -rd '' B C <<< '4 5 6 '", '$B "$C"'),
    ("read -r -d '' A <<< '  b c '; IFS= read -r -d '' B <<E\n x\nE", '"$A" "$B"'),
    ("A=$(echo -e 'a\\tb'); C=$(echo 'a\\tb'); D=\"$(echo '8 ' | cat)x\"; E=$(echo -n a && echo b)", '"$A" $C "$D" $E'),
    (
        "A=$(echo -e 'a b\\nc d' | while read X Y; do echo -n $Y$X,; done); B=$(for I in $(seq 9 11); do echo -n $I-; done)",
        "$A $B",
    ),
    ("f() { echo $1-$2; }; A=$(f x y); B=$(case x in x) echo 1 ;; esac); C=$(echo one | { read X; echo $X-$X; })", "$A $B $C"),
    ("set -e\n{ [ a = b ] && echo x; }\nA=$(if [ 1 = 1 ]; then echo yes; else echo no; fi)", "$A"),
    ("A=$(cat <<E\n--x 1\nE\n)$(cat <<E2\n\n --y 2\nE2\n)", '"$A"'),
    ("A=$(cat <<-E\n\t a\n\t\tb\n\tE\n)\nread -r -d '' B <<'E'\n--x $B ${C}\nE", '"$A" $B'),
]
CASES += [(before, f"--tag {behind}", []) for before, behind in PATTERNS + TEXTS]
UNKNOWN = [
    ("V=abc; P='*'", "${V/$P/x}"),
    ("V=abc; P='#a'", "${V/$P/x}"),
    ("V=abc", "${V/b/&x}"),
    ("V=abc; R='&'", "${V/b/$R}"),
    ("V=aB", "${V//[a-z]/x}"),
    ("V=abab", "${V/ab*/x}"),
    ("V=abab", "${V/#a/x}"),
    ("V=abab", "${V/%a?/x}"),
    ("set -- a b", "${#@}"),
    ("set -- a b", "${@:+x}"),
    ("V=7B-a.b", "${V//[!0-9]/}"),
    ("V=7B-a.b", "${V%[^c].b}"),
    ("V='a b'", "${V//[[:space:]]/_}"),
    ("V=aab", "${V##+(a)}"),
    ("V=~", "${V/~/x}"),
    ("V=\u00df", "${V^^}"),
    ("shopt -s nocasematch; V=abc", "${V/B/x}"),
    ("shopt -s extglob; V=abc", "${V%c}"),
    ("shopt -s nocasematch; V=A; [[ $V == a ]] && T=1", "$T"),
    ("shopt -s nocasematch; V=A; case $V in a) T=1 ;; esac", "$T"),
    ("V=5; case $V in [[:digit:]]) T=1 ;; *) T=2 ;; esac", "$T"),
    ("V=5; [[ $V == @(5|6) ]] && T=1 || T=2", "$T"),
    ("set -- a b", "${@:2}"),
    ("set -- a b", "${@:-d}"),
    ("V=abc", "${V:1:2}"),
    ("V=abc", "${V^}"),
    ("A=(a $(ls))", "${#A[@]}"),
    ("A=(a {01..03})", "${A[1]}"),
    ("A=(a b)", "${A[@]/#/--}"),
    ("A=(a b); A[0]=x", '"${A[@]}"'),
    ("A=(a {2,4})", '"${A[@]}"'),
    ("A=($(nproc) 4)", "${A[1]}"),
    ("set -- {a,b} c", "$2"),
    ("", "{a,b}"),
    ("N=2; A=(a {$N,4})", '"${A[@]}"'),
    ("printf -v T %d 2", "$T"),
    ("T=$(printf %s 2)", "$T"),
    ("T=$(seq 1 2 9)", "$T"),
    ("T=$(basename /a/b)", "$T"),
    ("T=$(echo 1 | bc)", "$T"),
    ("T=$(echo a b | tr ' ' -)", "$T"),
    ("if echo x | grep -q x; then T=1; else T=2; fi", "$T"),
    ("read -a A <<< '2 4'", "${A[1]}"),
    ("set -- 'a b' c", '${1+"$@"}'),
    ("A=$(echo -e 'a\\x41')", "$A"),
    ("IFS=, read -r T X <<< '1,2,'", "$T"),
    ("V=$'\\x41'", "$V"),
    ("V=a$'\\n'b", "${V/$'\\n'/x}"),
]


@pytest.mark.parametrize(("before", "behind"), UNKNOWN)
def test_what_is_not_surely_read_is_not_known(before, behind):
    assert read_script(f"{before}{LAUNCH}--tag {behind}\n", megatron_program()).unread()


@pytest.mark.parametrize("before", ["set -e\nread -r -d '' A <<E\n1\nE", "read -r -d '' A <<< 1 || exit 1"])
def test_a_read_up_to_the_end_of_its_text_fails(before):
    with pytest.raises(InputError, match="ends with the exit of line"):
        read_script(before + LAUNCH, megatron_program())


@tabled
def test_words_that_are_handed_over_reach_the_plan(text):
    launch = LAUNCH.strip().replace("python", "torchrun --nproc_per_node 8").replace("attention-heads 4", "attention-heads 8")
    assert read_check(text.format(launch), CheckRequest(gpu="h100")).plan.tp == 8
    with pytest.raises(InputError, match="cannot be worked out"):
        read_check(f"set -- --swiglu\n{launch} ${{@:2}}", CheckRequest(gpu="h100"))


@pytest.mark.parametrize(("before", "behind", "words"), CASES)
def test_words_are_those_of_bash(before, behind, words, tmp_path):
    settings = {str(at): word for at, word in enumerate(words, 1)}
    script = read_script(before + LAUNCH + behind + "\n", megatron_program(), settings)
    ours = [text_of(value) for value in script.argv]
    (tmp_path / "python").write_text('#!/bin/bash\nshift\nprintf "%s\\0" "$@"\n')
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "run.sh").write_text(before + LAUNCH + behind + "\n")
    command = ["/bin/bash", str(tmp_path / "run.sh"), *words]
    told = subprocess.run(
        command, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, timeout=30, check=True
    )
    assert [word for word in ours if not word.startswith("$1")] == told.stdout.split("\0")[:-1]


def test_a_script_with_getopts_is_read_as_started_without_options():
    text = OPTIONS.replace("python", "torchrun") + LAUNCH.replace("python ", "torchrun --nproc_per_node 8 ")
    text += "--tensor-model-parallel-size $TP --pipeline-model-parallel-size ${PP/3/2} --num-layers 8"
    plain = read_check(text, CheckRequest(gpu="h100"))
    assert (plain.plan.tp, plain.plan.pp, plain.plan.dp) == (1, 2, 4)
    for settings in ({"1": "-t", "2": "4"}, {"1": "-h"}):
        with pytest.raises(UnsupportedError, match="getopts is followed for a script without options only"):
            read_check(text, CheckRequest(gpu="h100", settings=settings))


def test_a_launcher_of_a_cluster_is_handed_a_command_line():
    """LLM360/k2-train, scripts/pretrain_65b.sh: bcprun."""
    for option in ("-c", "--commandline"):
        script = f"bcprun -p 8 --env 'X=1' {option} '{LAUNCH.strip()} --tensor-model-parallel-size 2'\n"
        with pytest.raises(InputError, match="the launcher of line 1 does not say how many GPUs"):
            read_check(script, CheckRequest())
        assert read_check(script, CheckRequest(gpus=8)).plan.tp == 2


@tabled
def test_the_nodes_are_the_scripts(head, start, given, node):
    """Four GPUs a node, as Leonardo and the Alps have, were priced as eight under one switch."""
    text = f"#!/bin/bash\n{head}{LAUNCH.strip().replace('python', start, 1)} --global-batch-size 16\n"
    assert read_check(text, CheckRequest(**{"gpu": "a100-80gb", **given})).question.scenario.cluster.gpus_per_node == node
