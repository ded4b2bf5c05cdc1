"""What a plan file breaks of its schema, beside the library jsonschema; and where a function is zero, beside scipy."""

import copy
import json
import random

import jsonschema
import numpy as np
import pytest
from scipy.optimize import brentq

from autoconfig.megatron.export import plan_text
from autoconfig.planning.schemas import schema, violations
from autoconfig.runs.roots import root
from autoconfig.training.answer import explain

WRONG = (
    None,
    True,
    False,
    0,
    1,
    -1,
    1.5,
    "none",
    [],
    {},
    [0],
    ["core_attn", "core_attn"],
    ["x"],
    1e30,
    {"type": "yarn", "factor": 2},
)


def places(value, path=()):
    """Every path to a value in it."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(item, (*path, key))


@pytest.mark.long
def test_a_plan_file_is_refused_where_jsonschema_refuses_it(request_of):
    answer = explain(request_of("moe", gpus=8), "tp=1,ep=8,mbs=1,recompute=full:uniform:2")
    body, rule = json.loads(plan_text(answer.question.scenario, answer.included.plan, answer.included.report)), schema("plan")
    whole = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    judge = jsonschema.validators.extend(jsonschema.Draft202012Validator, type_checker=whole)(rule)
    assert judge.is_valid(body) and not list(violations(body, rule, rule))
    draw, refused = random.Random(1), 0
    for path in places(body):
        for change in ("leave out", "add", *draw.sample(WRONG, 5)):
            changed = copy.deepcopy(body)
            inner = changed
            for key in path[:-1]:
                inner = inner[key]
            if change == "leave out":
                del inner[path[-1]]
            elif change == "add" and isinstance(inner, dict):
                inner["another"] = 1
            else:
                inner[path[-1]] = change
            wrong = list(violations(changed, rule, rule))
            assert bool(wrong) != judge.is_valid(changed), (path, change, wrong)
            refused += bool(wrong)
    assert refused > 500


@pytest.mark.parametrize(("field", "value", "says"), [
    ("short", 1, ("short", "1 is not of type string")),
    ("schema_version", "x", ("schema_version", '"x" is not one of 2')),
    ("model", {}, ("model", "name is missing")),
    ("more", 1, ("more", "there is no such field")),
])  # fmt: skip
def test_the_field_is_named(field, value, says):
    rule = schema("plan")
    assert says in list(violations({**{name: None for name in rule["required"]}, field: value}, rule, rule))


def test_a_root_is_that_of_scipy():
    draw, tried = np.random.default_rng(0), 0
    for a, b, c in draw.normal(size=(300, 3)):
        low, high = sorted(draw.uniform(-3, 3, 2))

        def function(x, a=a, b=b, c=c):
            return np.tanh(a * x + b) + c * x**3 - 0.3 * np.sin(5 * x)

        if function(low) * function(high) < 0:
            tried += 1
            for precision in (5e-3, 1e-6):
                assert root(function, low, high, precision) == pytest.approx(
                    brentq(function, low, high, xtol=precision), abs=1e-12
                )
    assert tried > 50
