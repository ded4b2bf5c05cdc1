"""The walk of a parameter through a small tree of its own."""

from tools.modules_used import Walk

PROJECT = """
[[tool.importlinter.contracts]]
name = "imports point one way"
layers = ["cli", "training | serving", "planning"]
"""
FILES = {
    "training/answer.py": """
from autoconfig.planning.names import read
from autoconfig.serving.rank import rank
from autoconfig.training.rank import order
def search(request, other):
    order(other)
    found = read(*[request])
    unseen(1)
    return [rank(1, plan=one) for one in found]
def unseen(request):
    return order(request)
def again(request):
    order(request)
    return later(request)
def later(request):
    return request
""",
    "training/rank.py": "def order(plans): return plans",
    "serving/rank.py": """
from autoconfig.planning.names import read
def rank(plan_number, *, plan):
    return read(plan)
""",
    "planning/names.py": "def read(name): return name.strip()",
}


def test_what_is_made_of_a_parameter_is_followed_and_nothing_else(tmp_path):
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    for name, text in FILES.items():
        (tmp_path / "autoconfig" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "autoconfig" / name).write_text(text)
    walk = Walk("autoconfig.training.answer", "search", "request", tmp_path)
    assert walk.steps == ["autoconfig.training.answer", "autoconfig.planning.names", "autoconfig.serving.rank"]
    assert walk.climbs == [("autoconfig.planning.names", "autoconfig.serving.rank")] and walk.returns == 0
    assert Walk("autoconfig.training.answer", "search", "other", tmp_path).steps[1:] == ["autoconfig.training.rank"]
    assert Walk("autoconfig.training.answer", "again", "request", tmp_path).returns == 1
