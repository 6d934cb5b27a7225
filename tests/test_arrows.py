"""Dependency rules between the packages: which imports each package must not make, and which modules must not load
torch.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FORBIDDEN = {
    "parallel_core": {"django", "celery", "redis", "dashboard", "workers", "kombu", "ninja"},
    "workers": {"django", "dashboard", "torch"},
    "dashboard": {"torch"},
}
OF_WORKERS = {"workers.contract", "workers.settings", "workers.wire"}
"""What the dashboard may import of the workers: the message contract, and how both connect to the broker."""
GIVES_OUT = {"parallel_core.spec", "dashboard.runs.models", "dashboard.runs.selectors"}
"""Files that give out names of other files as well: a spec with its parts, all tables of runs, all that is read of
runs. Packages may, too."""
WITH_TORCH = (
    "parallel_core.bench",
    "parallel_core.engine",
    "parallel_core.models",
    "parallel_core.observe.memory",
    "parallel_core.observe.reference",
    "parallel_core.observe.scope",
    "parallel_core.profile.cpu_steal",
    "parallel_core.profile.fixed",
    "parallel_core.profile.fully_shard",
    "parallel_core.profile.host_link_bench",
    "parallel_core.profile.layer_pair",
    "parallel_core.profile.layers",
    "parallel_core.profile.links",
    "parallel_core.profile.oversubscription",
    "parallel_core.profile.own_shards",
    "parallel_core.profile.pace_probe",
    "parallel_core.profile.ranks",
    "parallel_core.profile.server",
    "parallel_core.tensor",
)
"""Packages and modules that may load torch, as only ranks and the fork server import them; all others must not."""
WITH_DJANGO = (
    "dashboard.asgi",
    "dashboard.urls",
    "dashboard.control.management.commands.controller",
    "dashboard.analyst.management.commands.analyst",
)
"""What the web and the other processes of the dashboard load at their start, and every page."""


def modules(package: str) -> list[str]:
    """The names of all modules in the folder `package`."""
    files = sorted(path.relative_to(ROOT).with_suffix("") for path in (ROOT / package).rglob("*.py"))
    return [".".join(file.parts).removesuffix(".__init__") for file in files]


def in_any(module: str, names: Iterable[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def torch_free() -> dict[str, list[str]]:
    """The modules that must not load torch, by the package that they lie in, such as parallel_core.plan."""
    found: dict[str, list[str]] = {}
    for module in (*modules("parallel_core"), *modules("workers")):
        package, *inner = module.split(".")
        if not in_any(module, WITH_TORCH):
            own = inner and (ROOT / package / inner[0]).is_dir()
            found.setdefault(f"{package}.{inner[0]}" if own else package, []).append(module)
    return found


TORCH_FREE = torch_free()


def imported(source: str) -> Iterator[str]:
    """The modules that a file imports, with the package before them; names that are imported from one are left out."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if "." in node.module:
                yield node.module
            else:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def wrong(package: str, source: str) -> list[str]:
    """Which imports a file of the package must not make."""
    return [
        name
        for name in imported(source)
        if name.split(".")[0] in FORBIDDEN[package]
        or (package == "dashboard" and in_any(name, ["workers"]) and not in_any(name, OF_WORKERS))
    ]


@pytest.mark.parametrize("package", FORBIDDEN)
def test_imports_follow_the_arrows(package: str) -> None:
    files = (ROOT / package).rglob("*.py")
    assert not [f"{path.relative_to(ROOT)}: {name}" for path in files for name in wrong(package, path.read_text())]


@pytest.mark.parametrize(
    ("package", "line", "is_wrong"),
    [
        ("dashboard", "from workers.contract import LIVE", False),
        ("dashboard", "from workers import contract, wire", False),
        ("dashboard", "from workers.supervisor import Supervisor", True),
        ("dashboard", "from workers import celery", True),
        ("dashboard", "import workers", True),
        ("dashboard", "def later():\n    import workers.contract_of_another", True),
        ("dashboard", "import torch.nn", True),
        ("workers", "from dashboard import settings", True),
        ("workers", "import parallel_core.spec", False),
        ("parallel_core", "from workers.contract import LIVE", True),
    ],
)
def test_an_import_against_the_arrows_is_found(package: str, line: str, is_wrong: bool) -> None:
    assert bool(wrong(package, line)) == is_wrong


def second_hand(files: Mapping[str, str]) -> list[str]:
    """The names that are imported from a file which has imported them itself; `files`: module -> source."""
    given: dict[str, set[str]] = {}
    taken: list[tuple[str, str, str]] = []
    for module, source in files.items():
        tree = ast.parse(source)
        imports = [(node.module, a) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for a in node.names]
        taken += [(module, origin, alias.name) for origin, alias in imports if origin and origin in files]
        made = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        given[module] = {alias.asname or alias.name for _, alias in imports} - made
    return [
        f"{module}: {name} of {origin}"
        for module, origin, name in taken
        if name in given[origin] and origin not in GIVES_OUT
    ]


def test_a_name_is_imported_from_the_file_that_makes_it() -> None:
    """Else a reader looks for it where it is not. Only packages, which are not among `files` here, give out others'."""
    paths = [path.relative_to(ROOT) for top in FORBIDDEN for path in sorted((ROOT / top).rglob("*.py"))]
    assert second_hand({".".join(path.with_suffix("").parts): (ROOT / path).read_text() for path in paths}) == []


def test_a_name_at_second_hand_is_found() -> None:
    files = {"a.made": "def f(): ...", "a.by": "from a.made import f\ndef g(): ...", "b": "from a.by import f, g"}
    assert second_hand(files) == ["b: f of a.by"]


SET_UP = "import django; django.setup()\n"
LOADED = "import json, sys; print(json.dumps([*sys.modules]))"
EACH_GROUP = """
import importlib, json, os, sys
import numpy, scipy.optimize, parallel_core.spec  # most of them import these; of torch all would be found guilty
for group in sys.argv[1:]:
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        for module in group.split():
            importlib.import_module(module)
            if "torch" in sys.modules:
                os.write(writer, module.encode())
                break
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    os.close(writer)
    print(json.dumps([group, "no import" if status else os.read(reader, 1000).decode()]), flush=True)
"""
"""For each group of modules, a child process imports one after another, and tells the first that loaded torch."""


def first_with_torch(groups: Iterable[str], before: str = "") -> dict[str, str]:
    """For each group, the first module of it that loaded torch; "" where none did, "no import" where one failed."""
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    command = [sys.executable, "-c", before + EACH_GROUP, *groups]
    told = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, env=env)
    return dict(json.loads(line) for line in told.stdout.splitlines())


@pytest.fixture(scope="module")
def loaded() -> dict[str, str]:
    return first_with_torch(map(" ".join, TORCH_FREE.values())) | first_with_torch(WITH_DJANGO, SET_UP)


@pytest.mark.parametrize("group", (*map(" ".join, TORCH_FREE.values()), *WITH_DJANGO), ids=(*TORCH_FREE, *WITH_DJANGO))
def test_no_module_loads_torch(group: str, loaded: dict[str, str]) -> None:
    assert loaded[group] == "", "if only ranks import it, name it in WITH_TORCH"


def test_a_module_that_loads_torch_would_be_found() -> None:
    groups = {"parallel_core.layout parallel_core.engine.peak": "parallel_core.engine.peak", "no.such": "no import"}
    assert first_with_torch(groups) == groups


def test_every_module_is_judged() -> None:
    """Also those of a package that is new, and none that may load torch is misspelt."""
    every = {*modules("parallel_core"), *modules("workers")}
    free = {module for own in TORCH_FREE.values() for module in own}
    assert free >= {"parallel_core.plan.cluster.fit", "parallel_core.spec", "workers.celery", "workers"}
    assert every - free == {module for module in every if in_any(module, WITH_TORCH)} and every >= {*WITH_TORCH}


def test_setting_django_up_loads_no_page() -> None:
    """Each process of the dashboard waits for it: what the pages and the admin need is for the web alone."""
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    told = subprocess.check_output([sys.executable, "-c", SET_UP + LOADED], cwd=ROOT, env=env)
    names = set(json.loads(told))
    assert "dashboard.runs.models" in names and not names & {"celery", "ninja", "numpy", "redis"}
    assert not [name for name in names if in_any(name, ["dashboard"]) and name.endswith((".admin", "views", ".urls"))]


def test_the_pages_load_nothing_that_sends_tasks() -> None:
    """Only the controller does: the others would load Celery for a function of it."""
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    pages = SET_UP + "import dashboard.asgi, dashboard.urls\n"
    names = set(json.loads(subprocess.check_output([sys.executable, "-c", pages + LOADED], cwd=ROOT, env=env)))
    assert "dashboard.runs.views" in names and not names & {"celery", "kombu"}


def test_the_rules_of_placement_load_no_django() -> None:
    """Pages ask by them what the controller would do: they read nothing themselves."""
    rules = "".join(f"import {module}\n" for module in modules("dashboard/placement"))
    names = set(json.loads(subprocess.check_output([sys.executable, "-c", rules + LOADED], cwd=ROOT)))
    assert "dashboard.placement.assignments" in names and not names & {"django", "redis"}
