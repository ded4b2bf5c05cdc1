"""The lower bounds that `make bounds` installs."""

import re

import pytest

from tools.lower_bounds import EXTRAS, LEFT_OUT, constraints, lower_bounds, project, requirements


def test_every_extra_is_tried_or_said_to_be_left_out():
    of_developers = {"dev", "judge", "docs", "release", "all"}
    assert {*EXTRAS, *LEFT_OUT, *of_developers} == set(project()["optional-dependencies"])


def test_every_requirement_has_one_lower_bound():
    found = lower_bounds(project())
    assert set(found) == {name for name, _, _ in requirements(project())} and "megatron-autoconfig" not in found
    assert found["click"] == "8.4"  # 8.3: every command ends at its import
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in constraints(project()))


@pytest.mark.parametrize(("lines", "said"), [(["a"], "no lower bound"), (["a<2"], "no lower"), (["a>=1", "a>=2"], "1 and 2")])
def test_a_requirement_without_one_is_refused(lines, said):
    with pytest.raises(ValueError, match=said):
        lower_bounds({"name": "x", "dependencies": lines, "optional-dependencies": {}}, ())
    assert lower_bounds({"name": "x", "dependencies": ["a[b]>=1.5,<3; python_version<'4'"]}, ()) == {"a": "1.5"}
