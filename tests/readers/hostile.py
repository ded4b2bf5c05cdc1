# ruff: noqa: E501
"""Texts that were made to hold a reader, up to the limits of their size: the classes of an attack, drawn by a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator

SCRIPT, OTHER = 99_000, 295_000
"""Characters of the largest texts: of a script, and of everything else."""
Maker = Callable[[random.Random, int], str]
LAUNCH = "python pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 "


def _rows(line: str, size: int) -> str:
    """Lines up to a size; # is the number of the line."""
    rows: list[str] = []
    left = size
    while left > 0:
        rows.append(line.replace("#", str(len(rows))))
        left -= len(rows[-1]) + 1
    return "\n".join(rows) + "\n"


def _runs(piece: str, size: int) -> str:
    return piece * (size // len(piece))


SCRIPTS: dict[str, Maker] = {
    "arrays that double": lambda r, n: "A=(x y)\n" + "A=(${A[@]} ${A[@]})\n" * min(n // 20, r.randint(18, 4000)),
    "arrays that double in quotes": lambda r, n: "A=(x y)\n" + 'A+=("${A[@]}" "${A[@]}")\n' * (n // 30),
    "words handed over that double": lambda r, n: "set -- a b\n" + "set -- $@ $@\n" * (n // 15),
    "texts that double": lambda r, n: "A=xy\n" + "A=$A$A\n" * (n // 8),
    "texts appended in a loop": lambda r, n: _runs("for i in {1..500}; do A+=$A$i; B=$A; done\n", n),
    "arrays appended in nested loops": lambda r, n: "for i in {1..400}; do for j in {1..400}; do A+=(x $i $j); done; done\n",
    "loops in loops": lambda r, n: "for a in {1..90}; do " * 8 + "A=$a; B=$A$a; " + "done; " * 8,
    "a name of arithmetic": lambda r, n: f"A=$(({r.choice('aZ_')}{'a' * n}))\n",
    "a name of ((": lambda r, n: f"(({'a1' * (n // 2)}))\n",
    "a name of let": lambda r, n: f"let {'b' * n}\n",
    "pluses": lambda r, n: f"A=$(({'++ ' * (n // 3)}))\n",
    "much arithmetic": lambda r, n: _rows("A#=$(( (1+2)*3 << 2 || A# && (4 ? 5 : 6) ))", n),
    "braces with commas": lambda r, n: f"for i in {{{',' * n}; do :; done\n",
    "braces in braces": lambda r, n: f"A=({'{a,' * (n // 3)})\n",
    "a list in braces": lambda r, n: f"for i in {{{'a,' * (n // 2)}b}}; do :; done\n",
    "ranges": lambda r, n: _runs("A+=({1..9999})\n", n),
    "newlines": lambda r, n: "\n" * n,
    "blanks and newlines": lambda r, n: "x" + " \n" * (n // 2),
    "train.py": lambda r, n: "\n " * (n // 3) + "train" * (n // 15),
    "a first line of blanks": lambda r, n: f"swift{' ' * n}x",
    "a first line of words": lambda r, n: f"a{'b ' * (n // 2)}",
    "recipes": lambda r, n: _runs("--recipe=", n),
    "assignments in a row": lambda r, n: _runs("A=b ", n) + "\nfi",
    "lists of arguments": lambda r, n: _runs("--a b ", n),
    "unknown arguments": lambda r, n: LAUNCH + "".join(f"--{r.choice('xyz')}{i}-no-such-thing {i} " for i in range(n // 24)),
    "unknown words of a loop": lambda r, n: f"for i in {{1..500}}; do A+=' --unknown-$i-thing 1'; done\n{LAUNCH} $A",
    "ends cut off": lambda r, n: f"X={'a' * 2_200}\n" + "Y=${X%%a*b}\n" * (n // 12),
    "beginnings cut off": lambda r, n: f"X={'ab' * 900}\n" + "Y=${X##*a*b?*c}\n" * (n // 18),
    "patterns replaced": lambda r, n: f"X={'a' * 2_200}\n" + "Y=${X//a*b/c}\n" * (n // 14),
    "patterns of every element": lambda r, n: "A=({1..4000})\n" + "B=(${A[@]//1*2/c})\n" * (n // 20),
    "eval in eval": lambda r, n: f"{'eval ' * (n // 5)}true\n",
    "evals": lambda r, n: _runs("eval 'A=$A; B=$(echo $A)'\n", n),
    "evals of what was printed": lambda r, n: "printf -v X '%s; ' " + "a=b " * (n // 8) + "\n" + 'eval "$X"\n' * 40,
    "undecided ifs": lambda r, n: "".join(f"if [ $Q{i} = 1 ]; then A{i}=b; fi\n" for i in range(n // 36)),
    "undecided loops": lambda r, n: "".join(f"for i in $(ls); do A{i}=b; done\n" for i in range(n // 36)),
    "undecided arrays": lambda r, n: "A=({1..9000})\n" + "if $(x); then A+=(a); else A+=(b); fi\n" * (n // 40),
    "nested undecided ifs": lambda r, n: "if $(x); then A=$A$A; else A=b$A; " * 25 + "fi; " * 25,
    "shifts": lambda r, n: f"set -- {'a ' * (n // 4)}\nwhile [ $# -gt 0 ]; do shift; done\n",
    "shifts of functions": lambda r, n: (
        f"f() {{ while [ $# -gt 0 ]; do shift; done; }}\nf {'a ' * 4000}\n" + "f $@ a\n" * (n // 20)
    ),
    "options taken": lambda r, n: f"set -- {'-a ' * (n // 4)}\nwhile getopts a X; do :; done\n",
    "names that stay": lambda r, n: _rows("readonly A#=1", n),
    "second names": lambda r, n: _rows("declare -n A#=B#", n),
    "whole numbers": lambda r, n: _rows("declare -i A#=1+1", n),
    "files that are not read": lambda r, n: "".join(f"A{i}=1\nsource f{i}\n" for i in range(n // 20)),
    "text that is not known": lambda r, n: "".join(f'A{i}=1\neval "$(x)"\n' for i in range(n // 20)),
    "cases that fall through": lambda r, n: "case a in\n" + "a) b;;&\n".replace(";;&", ";&") * (n // 10) + "esac\n",
    "patterns of a case": lambda r, n: f"case {'a' * 5000} in\n" + "*a*a*a*b) c;;\n" * (n // 16) + "esac\n",
    "patterns in brackets": lambda r, n: f"A={'a' * 5000}\n" + "[[ $A == *a*a*a*b ]]\n" * (n // 22),
    "long tests": lambda r, n: f"[ {'a -o ' * (n // 6)} b ]\n",
    "redirections": lambda r, n: f"a {'>b c ' * (n // 6)}\n",
    "appended files": lambda r, n: _runs("echo aaaa >> f\n", n),
    "files of a here-document": lambda r, n: f"cat > f << E\n{'a' * (n // 2)}\nE\n" + "cat f >> f\n" * (n // 30),
    "here-documents": lambda r, n: _runs("cat << E\n\ta $A\nE\n", n),
    "programs in a text": lambda r, n: f"x '{'a.py ' * (n // 5)}' \n",
    "programs in a text, often": lambda r, n: f"X='{'a.py ' * 4000}'\n" + 'y -c "$X"\n' * (n // 20),
    "time": lambda r, n: _runs("time ", n),
    "substitutions": lambda r, n: _runs("A=$(echo $A | tr a b)\n", n),
    "substitutions in substitutions": lambda r, n: f"A={'$(echo ' * 40}{')' * 40}\n" * (n // 400),
    "sequences": lambda r, n: _runs("A=($(seq 1000))\n", n),
    "functions": lambda r, n: "".join(f"f{i}() {{ f{i + 1}; f{i + 1}; }}\n" for i in range(12)) + "f0\n" * (n // 400),
    "many names": lambda r, n: _rows("A#=8", n) + LAUNCH,
    "many nodes": lambda r, n: (
        _rows("N#=8", n) + "torchrun --nnodes $N1 --nproc-per-node 8 " + LAUNCH.removeprefix("python ") + "--micro-batch-size 1"
    ),
    "lines of Slurm": lambda r, n: _runs("#SBATCH --nodes=2\n", n),
    "features of Slurm": lambda r, n: (
        f"#!/bin/bash\n#SBATCH -C {'a-1|b' * (n // 5)}\ntorchrun --nproc-per-node 8 {LAUNCH[7:]} --micro-batch-size 1 --max-position-embeddings 8 --seq-length 8 --global-batch-size 8\n"
    ),
    "names of Slurm": lambda r, n: (
        "#!/bin/bash\n"
        + "".join(f"#SBATCH --gres=gpu:a{i}:8\n" for i in range(n // 30))
        + f"torchrun --nproc-per-node 8 {LAUNCH[7:]} --micro-batch-size 1 --max-position-embeddings 8 --seq-length 8 --global-batch-size 8\n"
    ),
    "blanks of Slurm": lambda r, n: f"#SBATCH {' ' * n}--nodes",
    "gpus of Slurm": lambda r, n: f"#SBATCH --gres=gpu{':a' * (n // 2)}",
    "quotes": lambda r, n: _runs("'a' \"b\" ", n),
    "open quotes": lambda r, n: _runs('"a$(', n),
    "backslashes": lambda r, n: _runs("\\\\\n", n),
    "placeholders": lambda r, n: _runs("<a b", n),
    "dollars": lambda r, n: _runs("$A$", n),
    "sums": lambda r, n: _runs("${A:-$((1+", n),
    "zeros": lambda r, n: f"[ {'0' * n} -eq 1 ]\n",
    "comments": lambda r, n: _runs("# a.py --b\n", n),
    "marks": lambda r, n: "".join(r.choice("$(){}[]\"'`;&|<>\\# \nabA1=-*?!@") for _ in range(n)),
    "words": lambda r, n: "".join(
        r.choice(
            (
                "A=",
                "$A ",
                "if ",
                "; then ",
                "fi\n",
                "for ",
                "in ",
                "do ",
                "done\n",
                "case ",
                "esac ",
                "(( ",
                ")) ",
                "[[ ",
                "]] ",
                "eval ",
                "$(",
                ") ",
                "${A",
                "} ",
                "\n",
            )
        )
        for _ in range(n // 5)
    ),
}
"""Of the shell; the size is that of the whole text, about."""
_YAML_HEAD = "parallelism: {tp: 1, pp: 1, dp: 1}\ntokens: {micro_batch_size: 1, sequence_length: 8}\nmodel:\n"
OTHERS: dict[str, dict[str, Maker]] = {
    "yaml": {
        "aliases": lambda r, n: (
            "a: &a [x,x,x,x,x,x,x,x,x]\n"
            + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(8))
        ),
        "merges": lambda r, n: (
            "a: &a {" + ", ".join(f"k{i}: 1" for i in range(n // 12)) + "}\n" + "b: {<<: [" + "*a, " * 150 + "*a]}\n"
        ),
        "depth": lambda r, n: "a: " + "[" * n,
        "depth of mappings": lambda r, n: "a: " + "{b: " * (n // 4),
        "flow": lambda r, n: f"a: [{'1,' * (n // 2)}]",
        "rows": lambda r, n: _rows("k#: #", n),
        "dashes": lambda r, n: "a:\n" + "- \n" * (n // 3),
        "sixties": lambda r, n: f"a: 1{':1' * (n // 2)}",
        "sixties with a point": lambda r, n: f"a: 1{':1' * (n // 2)}.0",
        "digits": lambda r, n: f"{_YAML_HEAD}  model_config: {{hidden_size: {'9' * r.choice((400, 4400, n))}}}",
        "hexadecimal": lambda r, n: f"{_YAML_HEAD}  model_config: {{hidden_size: 0x{'f' * r.choice((300, 4400, n))}}}",
        "a long key of many": lambda r, n: f"{'k' * (n // 2)}: {{{', '.join(f'a{i}: 1' for i in range(n // 24))}}}",
        "long keys of aliases": lambda r, n: (
            f"a: &a {{{'k' * (n // 2)}: {{{', '.join(f'a{i}: 1' for i in range(n // 24))}}}}}\n"
            + "".join(f"b{i}: *a\n" for i in range(100))
        ),
        "references": lambda r, n: _rows("k#: ${k0}", n),
        "computed references": lambda r, n: _YAML_HEAD + "  a: ${multiply:${a},${a}}\n" * (n // 40),
        "open references": lambda r, n: f"trainer: {{devices: '{'${a' * (n // 4)}'}}\nmodel: {{micro_batch_size: 1}}",
        "quotes": lambda r, n: f"a: '{chr(39) * (n // 2 * 2)}'",
        "blanks": lambda r, n: f"a{' ' * n}:",
        "newlines": lambda r, n: "a:\n" + " \n" * (n // 2),
        "comments": lambda r, n: _rows("# a: b", n) + "a: 1",
        "anchors": lambda r, n: _rows("a#: &a# 1", n),
        "question marks": lambda r, n: "? " * (n // 2),
        "a text of many lines": lambda r, n: "a: |\n" + "  b: c\n" * (n // 8),
        "marks": lambda r, n: "a: 1\n" + "".join(r.choice("[]{}:,-&*!|>'\"%@` \nab1#?") for _ in range(n)),
    },
    "toml": {
        "dots": lambda r, n: f"[a]\na{'.a' * (n // 2)} = 1",
        "dots of a table": lambda r, n: f"[a{'.a' * (n // 4)}]\n" + "b = 1\n" * (n // 12),
        "dots of rows": lambda r, n: "[training]\n" + _rows(f"a#{'.a' * 300} = 1", n),
        "tables": lambda r, n: _rows("[a#]", n),
        "tables of tables": lambda r, n: _rows("[[a]]", n),
        "a list": lambda r, n: f"[a]\nb = [{'1,' * (n // 2)}]",
        "lists in lists": lambda r, n: f"[a]\nb = {'[' * n}",
        "tables in a line": lambda r, n: f"[a]\nb = {'{c=' * (n // 3)}",
        "rows": lambda r, n: "[training]\n" + _rows("k# = #", n),
        "digits": lambda r, n: f"[model]\n[training]\nlocal_batch_size = {'9' * r.choice((400, 4400, n))}",
        "hexadecimal": lambda r, n: f"[model]\n[training]\nlocal_batch_size = 0x{'f' * r.choice((300, 4400, n))}",
        "quotes": lambda r, n: f'[a]\nb = """{"a" * n}',
        "backslashes": lambda r, n: f'[a]\nb = "{chr(92) * (n // 2 * 2)}"',
        "comments": lambda r, n: "[a]\n" + "# b = c\n" * (n // 8),
        "marks": lambda r, n: "[a]\n" + "".join(r.choice("[]{}=,.\"' \nab1#") for _ in range(n)),
    },
    "json": {
        "newlines behind a brace": lambda r, n: "{a" + "\n" * n,
        "blanks behind a brace": lambda r, n: "{a" + " \n\t" * (n // 3) + '"',
        "depth": lambda r, n: '{"a": ' + "[" * n,
        "depth of objects": lambda r, n: '{"a": ' * (n // 6),
        "rows": lambda r, n: json.dumps({f"k{i}": i for i in range(n // 16)}),
        "a list": lambda r, n: json.dumps({"train_batch_size": [1] * (n // 3)}),
        "digits": lambda r, n: f'{{"train_batch_size": {"9" * r.choice((400, 4400, n))}}}',
        "one long key": lambda r, n: json.dumps({"train_batch_size": 1, "k" * (n // 2): {f"a{i}": 1 for i in range(n // 24)}}),
        "quotes": lambda r, n: '{"' + '\\"' * (n // 2),
        "a plan": lambda r, n: '{"kind": "plan", "plan": ' + "{" * n,
        "a plan of rows": lambda r, n: json.dumps({"kind": "plan", **{f"k{i}": i for i in range(n // 16)}}),
        "words": lambda r, n: json.dumps(["--num-layers", *["1"] * (n // 5)]),
        "unknown words": lambda r, n: json.dumps(["--num-layers", "2", *[f"--k{i}-x" for i in range(n // 16)]]),
        "open words": lambda r, n: "[" + '"a",' * (n // 4),
        "comments": lambda r, n: "{\n" + "# a\n" * (n // 4) + "'a': 1}",
        "marks": lambda r, n: '{"' + "".join(r.choice("[]{}:,\"' \nab1\\") for _ in range(n)),
    },
    "arguments": {
        "arguments": lambda r, n: _runs("--a b\n", n),
        "recipes": lambda r, n: _runs("--recipe=", n),
        "unknown names": lambda r, n: _rows("--no-such-thing-# 1", n),
        "one long name": lambda r, n: f"--{'a' * n}",
        "brackets": lambda r, n: f"--a {'(' * n}",
        "blanks": lambda r, n: f"--a{' ' * n}=",
        "references": lambda r, n: "--a " + _runs("${A} ", n),
        "braces": lambda r, n: f"--a {{{',' * n}",
        "numbers": lambda r, n: f"--num-layers {'9' * n}",
        "backslashes": lambda r, n: _runs("--a \\\n", n),
        "marks": lambda r, n: "--" + "".join(r.choice("$(){}\"'`=- \nabA1\\") for _ in range(n)),
    },
    "overrides": {
        "rows": lambda r, n: _rows("model.k#=1", n),
        "dots": lambda r, n: f"model{'.a' * (n // 2)}=1",
        "lists": lambda r, n: f"model.a=[{'1,' * (n // 2)}]",
        "depth": lambda r, n: f"model.a={'[' * n}",
        "equals": lambda r, n: f"model.a{'=' * n}",
        "digits": lambda r, n: f"model.seq_length={'9' * r.choice((400, 4400, n))}",
        "the same key": lambda r, n: _runs("model.seq_length=1\n", n),
        "texts": lambda r, n: _rows(f"model.k#={'a' * 500}", n),
        "a recipe": lambda r, n: "--recipe=llama3_70b_pretrain_config " + _runs("model.tensor_model_parallel_size=8 ", n),
        "swift": lambda r, n: "swift sft " + _rows("--k# v \\", n),
        "a factory": lambda r, n: "llamafactory-cli train " + _rows("--template # \\", n),
        "spaces": lambda r, n: f"swift {' ' * n}sft",
        "verl": lambda r, n: "python3 -m verl.trainer.main_ppo " + _rows("actor_rollout_ref.k#=1 \\", n),
        "openrlhf": lambda r, n: "python3 -m openrlhf.cli.train_ppo_ray " + _rows("--k# 1 \\", n),
        "a policy": lambda r, n: "policy:\n  model_name: a\n" + _rows("  k#: ${policy.k0}", n),
        "defaults": lambda r, n: "defaults:\n" + _rows("- a#.yaml", n),
    },
}
WHOLE = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 8 "
    "--max-position-embeddings 8 --micro-batch-size 1 --global-batch-size 64 --vocab-size 1000\n"
)


def _launching(make: Maker) -> Maker:
    """The same in front of a launch that can be read, so that all that comes behind the shell is reached, too."""
    return lambda r, n: f"#!/bin/bash\n{make(r, n - 400)}\n{WHOLE}"


READERS: dict[str, dict[str, Maker]] = {
    "script": SCRIPTS,
    "launch": {kind: _launching(make) for kind, make in SCRIPTS.items()},
    **OTHERS,
}


def text_of(reader: str, kind: str, seed: int, share: float = 1.0) -> str:
    """The text of a class, of a share of the largest size."""
    most = SCRIPT if reader in ("script", "launch", "arguments", "overrides") else OTHER
    return READERS[reader][kind](random.Random(f"{reader} {kind} {seed}"), int(most * share))[: most + 4_000]


def texts(reader: str, count: int, seed: int) -> Iterator[tuple[str, str]]:
    """(class, text): each class once at its largest, then again of sizes that are drawn."""
    kinds, chance = list(READERS[reader]), random.Random(seed)
    for number in range(count):
        kind = kinds[number % len(kinds)]
        share = 1.0 if number < len(kinds) else 10 ** chance.uniform(-2, 0)
        yield kind, text_of(reader, kind, seed + number, share)
