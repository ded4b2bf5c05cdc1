"""Readers on texts that were made to hold them: within a budget of work that is counted, or refused in a sentence."""

import multiprocessing
import random
import resource
import sys
import time

import hostile
import pytest
from autoconfig.specs.errors import InputError

from autoconfig.formats.check import read_any
from autoconfig.formats.post_training.check import check_text
from autoconfig.maps.tree import load_toml, load_yaml
from autoconfig.megatron.check_input import CheckRequest
from autoconfig.planning.work import MAX_CHARACTERS, MAX_WORK, WorkError, bounded, spend

LEAST = 60_000
"""Units of the budget of quick tests."""
CALLS_OF_A_UNIT, CALLS_AT_MOST = 12, 600_000
"""Calls of Python and C functions that a unit of work may be, and those of what is bounded by size alone."""
GPUS = CheckRequest(gpus=64, gpu="h100-sxm-80gb")
ARRAYS = "A=(x y)\n" + "A=(${A[@]} ${A[@]})\n" * 20
REVIEWED = {
    "arrays that double": ARRAYS,
    "words handed over that double": "set -- a b\n" + "set -- $@ $@\n" * 25,
    "arrays appended in nested loops": "for i in {1..99}; do for j in {1..99}; do A+=($i $j a b c d e); done; done\n",
    "shifts of 4,000 words": f"set -- {'a ' * 4000}\nwhile [ $# -gt 0 ]; do shift; done\n",
    "a long name of $((": f"A=$(({'a' * 40_000}))\n",
    "a long name of ((": f"(({'a' * 40_000}))\n",
    "a long name of let": f"let {'a' * 40_000}\n",
    "braces with commas": f"for i in {{{',' * 99_000}\n",
    "newlines": "\n" * 99_000,
    "a million newlines": "\n" * 990_000,
    "a brace and newlines": "{a" + "\n" * 50_000,
    "a first line of blanks": f"swift{' ' * 99_000}x",
    "a longer first line of blanks": f"swift{' ' * 200_000}x",
    "recipes": "--recipe=" * 10_000,
    "arguments without end": "--a b " * 100_000,
    "ends cut off": f"X={'a' * 2_200}\n" + "Y=${X%%a*b}\n" * 6_000,
    "patterns replaced": f"X={'a' * 2_200}\n" + "Y=${X//a*b/c}\n" * 6_000,
    "124,951 arguments": "--a 1\n" * 62_000,
    "eval in eval": "eval " * 10_000 + "true\n",
    "undecided ifs": "".join(f"if [ $Q{i} = 1 ]; then A{i}=b; fi\n" for i in range(1_500)),
    "unknown words of a loop": 'for i in {1..500}; do A+=" --unknown-$i 1"; done\n' + hostile.LAUNCH + "$A\n",
}
DRAWN = [
    (reader, kind)
    for reader, kinds in hostile.READERS.items()
    for kind in random.Random(33).sample([*kinds], min(14, len(kinds)))
]
"""The soak tier draws all of them."""


def _outcome(text, read):
    """What comes of reading: "read", or the sentence of the refusal."""
    try:
        read(text)
    except InputError as error:
        return str(error)
    return "read"


def _calls(text, read, most):
    """(outcome, units of work, calls of functions) with a budget of `most`."""
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    with bounded(most) as work:
        sys.setprofile(count)
        try:
            outcome = _outcome(text, read)
        finally:
            sys.setprofile(None)
    return outcome, most - work.left, calls


def _check(text):
    return read_any(text, GPUS)


def _rl(text):
    return check_text(text, {})


@pytest.mark.parametrize("text", REVIEWED.values(), ids=REVIEWED)
@pytest.mark.parametrize("read", [_check, _rl])
def test_reviewed_texts_take_counted_work(text, read):
    outcome, units, calls = _calls(text, read, LEAST)
    assert calls < CALLS_OF_A_UNIT * units + CALLS_AT_MOST
    assert len(outcome) < 1_000


@pytest.mark.parametrize(("reader", "kind"), DRAWN)
def test_drawn_texts_take_counted_work(reader, kind):
    text = hostile.text_of(reader, kind, seed=1, share=0.3)
    for read in (_check, _rl):
        outcome, units, calls = _calls(text, read, LEAST)
        assert calls < CALLS_OF_A_UNIT * units + CALLS_AT_MOST, read
        assert len(outcome) < 1_000


def test_arrays_that_double_are_refused_and_said():
    with pytest.raises(WorkError, match=r"1,000,000 steps of work.*lists that grow in loops"):
        read_any(ARRAYS, GPUS)


@pytest.mark.parametrize("head", ["", "--num-layers 2 ", "a: 1\n", "[a]\n", '{"a": 1,', "[", "import a\n"])
def test_what_is_too_long_is_not_looked_at(head):
    for read in (_check, _rl):
        with bounded() as work, pytest.raises(InputError, match=f"more than {MAX_CHARACTERS:,}"):
            read(head + " \n" * 200_000 + "x")
        assert work.left > MAX_WORK - 100


def test_a_list_of_arguments_is_as_long_as_a_script():
    with pytest.raises(InputError, match="more than 100,000"):
        read_any("--num-layers 2 " * 8_000, GPUS)


@pytest.mark.parametrize("digits", ["9" * 400, "0x" + "f" * 5_000, "9" * 5_000, "1" + ":1" * 600])
def test_a_number_without_end_is_a_sentence(digits):
    for read, text in ((load_yaml, f"a: {digits}"), (load_toml, f"a = {digits}")):
        if ":" in digits and read is load_toml:
            continue
        with pytest.raises(InputError, match=r"number|digits|read"):
            read(text)


def test_a_budget_is_one_for_all_that_is_read_inside():
    with bounded(10) as outer:
        with bounded() as inner:
            assert inner is outer
            spend(6)
        with pytest.raises(WorkError):
            spend(6)
    spend(10**9)  # without one, nothing is counted


def _measured(text, read, pipe):
    """In a process of its own: seconds of CPU, MiB at most, and the outcome."""
    start = time.process_time()
    outcome = _outcome(text, read)
    spent = time.process_time() - start
    pipe.send((spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, outcome))


@pytest.mark.soak
@pytest.mark.parametrize("reader", hostile.READERS)
def test_a_hundred_texts_a_reader(reader, capsys):
    """At most 2 s of CPU and 300 MiB each, on idle cores."""
    seed, worst, most, refused, count = 33, (0.0, ""), (0.0, ""), 0, 0
    fork = multiprocessing.get_context("fork")
    _outcome("--num-layers 2", _check)
    for kind, text in hostile.texts(reader, max(100, len(hostile.READERS[reader])), seed):
        for read in (_check, _rl):
            here, there = fork.Pipe(duplex=False)
            process = fork.Process(target=_measured, args=(text, read, there))
            process.start()
            there.close()
            spent, memory, outcome = here.recv()
            process.join()
            count += 1
            refused += outcome != "read"
            worst, most = max(worst, (spent, f"{kind}: {outcome[:80]}")), max(most, (memory, kind))
    with capsys.disabled():
        print(f"\n{reader}, seed {seed}: {count} readings, {refused} refused; at most {worst[0]:.2f} s ({worst[1]}), "
              f"{most[0]:.0f} MiB ({most[1]})")  # fmt: skip
    assert worst[0] <= 2.0 and most[0] <= 300
