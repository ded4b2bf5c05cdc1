"""Uploaded configs, broken in any way: every one gets an answer or a refusal that says why, soon; few in `make test`, 20,000 in
`make soak`. What is called is what the endpoints call, without HTTP: the body's reader, and the answer."""

import copy
import json
import random
import signal
from collections import Counter
from contextlib import contextmanager

import pytest
from autoconfig.api.answers import answer
from autoconfig.api.problems import RefusedError
from autoconfig.api.routes.answers import CHECK_EXAMPLE, MEASUREMENT_EXAMPLE
from autoconfig.api.wire import bodies
from autoconfig.api.wire.bodies import read_body
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tables import table

from tests.api.conftest import ROOT

pytestmark = pytest.mark.service

FEW, PIECES, EACH = 25, 8, 2_500
"""Inputs in `make test`; pieces of the soak run, and inputs of each."""
HANG_SECONDS = 30
"""As long as the service lets an answer take."""
PLAN = "tp=1,pp=1,mbs=1"
WORK = {"seq_length": 1024, "global_batch_size": 64}
SCRIPTS = [path.read_text() for path in sorted((ROOT / "tests/megatron/scripts").glob("*.sh"))]
CLUSTER = json.loads((ROOT / "docs/examples/cluster.json").read_text())
CONFIGS = [one["config"] for one in json.loads((ROOT / "tests/specs/huggingface_configs.json").read_text()).values()]
SMALL = {"gpu": "h100-sxm-80gb", "gpus": 8}
CONFIG = {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 1000,
          "intermediate_size": 1024}  # fmt: skip
ODD = table(__file__, "odd_texts")
FIXED = [None, True, False, 0, -1, 1, 3, 2**31, 2**63, 10**30, -0.0, 0.5, 1e-300, 1e308, *ODD, [], {}, [[]], {"a": {}}]
VALUES = st.one_of(
    st.sampled_from(FIXED), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=20)
)


@pytest.fixture(scope="module")
def plan_json() -> str:
    body = {**SMALL, "model": "gpt3-1.7b", "plan": "tp=2,pp=2,mbs=1", "format": "plan", "memory_margin": 0.0}
    status, text = answer("export", body)
    assert status == 200
    return json.loads(text)["files"]["plan.json"]


def broken_text(chance: random.Random, text: str, others: list[str]) -> str:
    """A few cuts, doublings, odd words, other numbers, pieces of other files."""
    for _ in range(chance.randint(0, 5)):
        at, to = sorted(chance.randrange(len(text) + 1) for _ in range(2))
        to = min(to, at + chance.choice([1, 5, 40, 400]))
        kind = chance.randrange(6)
        if kind == 0:
            text = text[:at] + text[to:]
        elif kind == 1:
            text = text[:to] + text[at:to] * chance.choice([1, 2, 50]) + text[to:]
        elif kind == 2:
            text = text[:at] + chance.choice(ODD) + text[at:]
        elif kind == 3:
            words = text.split(" ")
            words[chance.randrange(len(words))] = chance.choice([*ODD, "7", "1024", "0.5"])
            text = " ".join(words)
        elif kind == 4:
            other = chance.choice(others)
            start = chance.randrange(len(other) + 1)
            text = text[:at] + other[start : start + 200] + text[at:]
        else:
            text = text[:at]
    return text


def broken_object(chance: random.Random, found: dict, values: list) -> dict:
    """Values replaced, keys left out, doubled under other names, put deeper."""
    found = json.loads(json.dumps(found))
    for _ in range(chance.randint(0, 3)):
        place = found
        while (inner := [value for value in place.values() if isinstance(value, dict) and value]) and chance.random() < 0.5:
            place = chance.choice(inner)
        keys = [*place] or ["model_type"]
        key = chance.choice(keys)
        if chance.random() < 0.2:
            place.pop(key, None)
        elif chance.random() < 0.1:
            place[chance.choice(ODD)] = copy.deepcopy(chance.choice(values))
        else:
            place[key] = copy.deepcopy(chance.choice(values))  # its own: values must not come to hold themselves
    return found


@contextmanager
def no_hang(what: object):
    def late(*_: object) -> None:
        raise AssertionError(f"no answer after {HANG_SECONDS} s of the processor: {what!r:.2000}")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, HANG_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def upload(kind: int, seed: int, values: list, plan_json: str) -> tuple[str, type, dict]:
    """(endpoint, body's type, body)."""
    chance = random.Random(seed)
    if kind == 0:
        text = broken_text(chance, chance.choice(SCRIPTS), SCRIPTS)
    elif kind == 1:
        text = broken_text(chance, str(CHECK_EXAMPLE["text"]), SCRIPTS)
    elif kind == 2:
        whole = json.dumps(broken_object(chance, json.loads(plan_json), values))
        text = whole if chance.random() < 0.8 else broken_text(chance, plan_json, SCRIPTS)
    if kind < 3:
        return "check", bodies.CheckBody, {"text": text, **({} if kind == 2 and chance.random() < 0.9 else SMALL)}
    if kind == 3:
        config = broken_object(chance, chance.choice([CONFIG, *CONFIGS]), values)
        return "explain", bodies.ExplainBody, {**SMALL, "model": config, "plan": PLAN, **WORK}
    if kind == 4:
        cluster = broken_object(chance, CLUSTER, values)
        return "explain", bodies.ExplainBody, {"cluster": cluster, "model": "gpt3-1.7b", "plan": PLAN}
    row = broken_object(chance, MEASUREMENT_EXAMPLE["rows"][0], values)
    if kind == 5:
        return "predict", bodies.PredictBody, {"rows": [row]}
    return "sort_out", bodies.MeasurementsBody, {"rows": [row]}


def ask(name: str, kind: type, body: dict) -> int:
    """The status that the endpoint answers with. Anything but a clear answer fails."""
    try:
        checked = read_body(json.dumps(body).encode(), kind)
    except RefusedError as error:
        assert error.status == 400 and error.detail
        return 400
    with no_hang(body):
        status, text = answer(name, checked)
    found = json.loads(text, parse_constant=pytest.fail)
    assert status in (200, 422), (status, text[:500])
    assert status == 200 or (found["detail"] and "Traceback" not in found["detail"])
    return status


def run(examples: int, plan_json: str, piece: int = 0) -> Counter:
    seen: Counter = Counter()

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=[*HealthCheck])
    @given(st.integers(0, 6), st.integers(0, 2**32), st.lists(VALUES, min_size=1, max_size=4))
    def each(kind: int, seed: int, values: list) -> None:
        name, body_kind, body = upload(kind, seed + (piece << 40), values, plan_json)
        seen[name, ask(name, body_kind, body)] += 1

    each()
    print(sorted(seen.items()))
    return seen


def test_broken_uploads_are_answered_or_refused(plan_json):
    seen = run(FEW, plan_json)
    assert sum(seen.values()) >= FEW and {status for _, status in seen} >= {200, 422}


@pytest.mark.soak
@pytest.mark.parametrize("piece", range(PIECES))
def test_thousands_of_broken_uploads(piece, plan_json):
    assert sum(run(EACH, plan_json, piece).values()) >= EACH


def test_a_hang_is_seen():
    with pytest.raises(AssertionError, match="no answer"), no_hang("x"):
        signal.raise_signal(signal.SIGPROF)
