"""Which of the project's modules an `autoconfig` command uses, and which a parameter enters on its way through the calls.

    python -m tools.modules_used [search --model 175b --gpus 1024]
    python -m tools.modules_used --walk autoconfig.training.answer search request

A module is used where at least one of its functions ran to answer the command, in a process of its own whose calls are watched
(sys.setprofile, all threads). What runs while a module is imported does not count: decorators, comprehensions and tables at
its top are a part of loading it.

A walk runs nothing: it reads the function and follows, in the order of the code, every call of a function that takes the
parameter, a part of it, or a name bound to something made with it; each function once for the same parameters. Vocabulary and
formulas (specs, memory_model, time_model), methods and classes are not followed. A climb is a step of the walk from a module
to one of a higher layer (import-linter's order in pyproject.toml); a return is a step into a module that the walk was in
before. Rooms and climbs are those of `farm-studio walk FILE:FUNCTION:PARAM`: 14 and 4 at 75a80efd by both.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOT_FOLLOWED = ("specs", "memory_model", "time_model")
COMMAND = ("search", "--model", "175b", "--gpus", "1024")
CHILD = """
import atexit, sys, threading

used, target, sys.argv = set(), sys.argv[1], ["autoconfig", *sys.argv[2:]]

def importing(frame):
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals["__name__"] != "__main__":
            return True
        frame = frame.f_back
    return False

def watch(frame, event, argument):
    name, code = frame.f_globals.get("__name__") or "", frame.f_code
    if event == "call" and name.startswith("autoconfig.") and name not in used and not code.co_filename.startswith("<"):
        if code.co_flags & 2 and not importing(frame):  # 2: a function, not the body of a module or a class
            used.add(name)

def write():
    sys.setprofile(None)
    with open(target, "w") as file:
        file.write("\\n".join(sorted(used)))

from autoconfig.__main__ import main
atexit.register(write)
threading.setprofile(watch)
sys.setprofile(watch)
main()
"""


def modules_used(command: tuple[str, ...] = COMMAND, python: str = sys.executable) -> list[str]:
    """Names of the modules, sorted. Raises CalledProcessError where the command fails."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "used"
        subprocess.run([python, "-P", "-c", CHILD, str(target), *command], check=True, stdout=subprocess.DEVNULL, timeout=300)
        return target.read_text(encoding="utf-8").split()


class Module:
    """A module's functions, and where the names that it imports are defined."""

    def __init__(self, path: Path) -> None:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        self.functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self.imported = {
            alias.asname or alias.name: (node.module, alias.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }


class Walk:
    """The way of a parameter: `steps` are the modules that it enters, in order, none twice in a row."""

    def __init__(self, module: str, function: str, parameter: str, root: Path = ROOT) -> None:
        self.root, self.steps = root, [module]
        self._modules: dict[str, Module | None] = {}
        self._passed: list[tuple[str, str, set[str]]] = []
        self._enter(module, function, {parameter})

    @property
    def modules(self) -> list[str]:
        """The modules, each once."""
        return sorted(set(self.steps))

    @property
    def returns(self) -> int:
        """Steps to a module that the walk was in before."""
        return len(self.steps) - len(set(self.steps))

    @property
    def climbs(self) -> list[tuple[str, str]]:
        """Steps to a module of a higher layer."""
        contracts = tomllib.loads((self.root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
            "contracts"
        ]
        layers = next(contract["layers"] for contract in contracts if contract["name"] == "imports point one way")
        depth = {name.strip(): row for row, names in enumerate(layers) for name in names.replace("|", ":").split(":")}
        return [(one, two) for one, two in pairwise(self.steps) if depth[two.split(".")[1]] < depth[one.split(".")[1]]]

    def _module(self, name: str) -> Module | None:
        """The module; None where it is not followed."""
        if name not in self._modules:
            _, *parts = name.split(".")
            path = self.root.joinpath("autoconfig", *parts).with_suffix(".py")
            followed = name.startswith("autoconfig.") and parts[0] not in NOT_FOLLOWED and path.exists()
            self._modules[name] = Module(path) if followed else None
        return self._modules[name]

    def _enter(self, name: str, function: str, parameters: set[str]) -> None:
        module = self._module(name)
        if module is None or function not in module.functions:
            return
        if any(passed[:2] == (name, function) and passed[2] >= parameters for passed in self._passed):
            return
        self._passed.append((name, function, parameters))
        if self.steps[-1] != name:
            self.steps.append(name)
        mine = set(parameters)
        for node in _in_order(module.functions[function]):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                target = (name, node.func.id) if node.func.id in module.functions else module.imported.get(node.func.id)
                if target is not None:
                    self._follow(node, *target, mine)
            else:
                mine |= _made_of(node, mine)

    def _follow(self, call: ast.Call, name: str, function: str, mine: set[str]) -> None:
        module = self._module(name)
        if module is None or function not in module.functions:
            return
        arguments = module.functions[function].args
        places = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
        names = {*places, *(one.arg for one in arguments.kwonlyargs)}
        taken: set[str] = set()
        for place, value in enumerate(call.args):
            if _names(value) & mine:
                taken |= set(places[place:] if isinstance(value, ast.Starred) else places[place : place + 1])
        for keyword in call.keywords:
            if _names(keyword.value) & mine:
                taken |= names if keyword.arg is None else {keyword.arg} & names
        if taken:
            self._enter(name, function, taken)


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below, as Python evaluates them: what a node needs before it, the body of a loop behind it."""
    body = [*node.body, *node.orelse] if isinstance(node, ast.For) else []
    children = [child for child in ast.iter_child_nodes(node) if child not in body]
    for child in sorted(children, key=lambda child: not isinstance(child, ast.comprehension)):
        yield from _in_order(child)
    yield node
    for child in body:
        yield from _in_order(child)


def _made_of(node: ast.AST, names: set[str]) -> set[str]:
    """Return the names that an assignment or a loop gives to what is made of these names."""
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and _names(node.value) & names:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {text for target in targets if not isinstance(target, ast.Attribute) for text in _names(target)}
    if isinstance(node, ast.comprehension | ast.For) and _names(node.iter) & names:
        return _names(node.target)
    return set()


def _names(node: ast.AST | None) -> set[str]:
    return set() if node is None else {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def main() -> None:
    """Print the modules and their number."""
    if sys.argv[1:2] == ["--walk"]:
        module, function, parameter = sys.argv[2:]
        walk = Walk(module, function, parameter)
        print("\n".join(walk.steps))
        print(f"{len(walk.modules)} modules, {len(walk.climbs)} climbs, {walk.returns} returns")
        return
    command = tuple(sys.argv[1:]) or COMMAND
    modules = modules_used(command)
    print("\n".join(modules))
    print(f"{len(modules)} modules in autoconfig {' '.join(command)}")


if __name__ == "__main__":
    main()
