"""Whose question is next: expected orders are written by hand."""

import random

from autoconfig.api.turns import Turns


def begun(turns: Turns[str]) -> list[str]:
    found = []
    while (one := turns.begin()) is not None:
        found.append(one[1])
    return found


def test_keys_take_turns():
    turns: Turns[str] = Turns(1, spare=False)
    for name in ("a1", "a2", "a3", "b1", "b2", "c1"):
        turns.add(name[0], name)
    order = []
    while turns.waiting:
        owner, item = turns.begin()
        assert turns.begin() is None  # the only process is held
        order.append(item)
        turns.end(owner)
    assert order == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_one_key_never_holds_the_last_process():
    turns: Turns[str] = Turns(3, spare=True)
    for number in range(5):
        turns.add("a", f"a{number}")
    assert begun(turns) == ["a0", "a1"]  # nobody else waits, and the third is kept all the same
    turns.add("b", "b0")
    turns.add("b", "b1")
    assert begun(turns) == ["b0"]
    turns.end("a")
    assert begun(turns) == []  # one is free, both hold one: it is for a third
    turns.add("c", "c0")
    assert begun(turns) == ["c0"]
    turns.end("a")
    turns.end("b")
    assert begun(turns) == ["a2", "b1"]  # neither holds one


def test_without_a_spare_one_key_may_hold_all():
    turns: Turns[str] = Turns(2, spare=False)
    for number in range(3):
        turns.add("", str(number))
    assert begun(turns) == ["0", "1"] and turns.waiting == 1


def test_a_question_of_two_keys_comes_with_the_earlier_turn_and_runs_once():
    turns: Turns[str] = Turns(1, spare=False)
    for name in ("a1", "a2", "same"):
        turns.add("a", name)
    turns.add("b", "same")
    assert turns.waiting == 3 and turns.waiting_of("a") == 3 and turns.waiting_of("b") == 1
    assert turns.begin() == ("a", "a1")
    turns.end("a")
    assert turns.begin() == ("b", "same") and turns.owners == ["a"]
    turns.end("b")
    assert turns.begin() == ("a", "a2") and turns.waiting == 0


def test_what_leaves_is_gone_and_nothing_is_lost():
    turns: Turns[int] = Turns(2, spare=False)
    chance, waiting, running = random.Random(5), set(), []
    for number in range(500):
        match chance.randrange(4):
            case 0 | 1:
                turns.add(chance.choice("abc"), number)
                waiting.add(number)
            case 2 if waiting:
                gone = chance.choice(sorted(waiting))
                turns.remove(gone)
                waiting.discard(gone)
            case 3 if running:
                turns.end(running.pop())
        while (one := turns.begin()) is not None:
            running.append(one[0])
            waiting.remove(one[1])
        assert len(running) <= 2 and turns.waiting == len(waiting)
        assert not waiting or len(running) == 2
    assert sorted(turns.clear()) == sorted(waiting) and turns.waiting == 0
