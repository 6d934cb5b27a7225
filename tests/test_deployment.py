"""The deployment files: valid by the compose specification, secrets from the environment, Redis unreachable from
outside.
"""

from __future__ import annotations

import os
import queue
import re
import runpy
import subprocess
import sys
import threading
import zipfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import compose_spec
import pytest
import yaml

from dashboard import gunicorn, health
from parallel_core.file_lock import FileLock
from parallel_core.observe.record_files import events_path
from tests.compose_process import DOCKERFILE, VARIABLE, image_command, interpolate
from workers.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
COMPOSE = (ROOT / "docker-compose.yml").read_text()
FLEET = (ROOT / "docker-compose.fleet.yml").read_text()
GUIDE = (ROOT / "docs" / "deploy.md").read_text()
SECRETS = {"SECRET_KEY", "POSTGRES_PASSWORD", "REDIS_PASSWORD", "ADMIN_PASSWORD", "WORKER_TOKEN"}


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    data = yaml.safe_load(interpolate(COMPOSE, dict.fromkeys(SECRETS, "secret")))
    return dict(data["services"])


def parse(text: str) -> Any:
    options = compose_spec.PyOptions()
    options.apply_merge = True
    return options.from_yaml(text)


def test_compose_file_follows_the_specification() -> None:
    parse(interpolate(COMPOSE, dict.fromkeys(SECRETS, "secret"))).validate()


def test_an_unknown_key_would_be_refused() -> None:
    with pytest.raises(ValueError, match="portz"):
        parse(interpolate(COMPOSE, dict.fromkeys(SECRETS, "secret")).replace("ports:", "portz:"))


@pytest.mark.parametrize("missing", sorted(SECRETS))
def test_every_secret_is_asked_for(missing: str) -> None:
    with pytest.raises(KeyError, match=missing):
        interpolate(COMPOSE, dict.fromkeys(SECRETS - {missing}, "secret"))


def test_redis_and_postgres_publish_no_port(services: dict[str, Any]) -> None:
    assert "ports" not in services["redis"]
    assert "ports" not in services["postgres"]
    assert "--requirepass" in " ".join(services["redis"]["command"])


def test_the_web_is_open_to_this_host_alone_unless_that_is_said() -> None:
    told: tuple[dict[str, str], ...] = ({}, {"PORT": "0.0.0.0:80"})
    texts = [interpolate(COMPOSE, dict.fromkeys(SECRETS, "secret") | values) for values in told]
    assert [yaml.safe_load(text)["services"]["web"]["ports"] for text in texts] == [
        ["127.0.0.1:8000:8000"],
        ["0.0.0.0:80:8000"],
    ]


def test_the_web_has_two_processes_unless_another_number_is_said() -> None:
    told: tuple[dict[str, str], ...] = ({}, {"WEB_WORKERS": "6"})
    for values, wanted in zip(told, (2, 6), strict=True):
        text = interpolate(COMPOSE, dict.fromkeys(SECRETS, "secret") | values)
        web = yaml.safe_load(text)["services"]["web"]
        assert gunicorn.processes({name: str(value) for name, value in web["environment"].items()}) == wanted
    assert "--workers" not in image_command(), "which would count before the setting"


class Tagged(yaml.SafeLoader):
    """Reads `!reset` and `!override` of compose as the values behind them."""


def replaced(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    return loader.construct_mapping(node, deep=True)


Tagged.add_constructor("!reset", lambda loader, node: None)
Tagged.add_constructor("!override", replaced)


def test_with_the_file_of_the_guide_nothing_uses_the_databases_of_compose(services: dict[str, Any]) -> None:
    (written,) = re.findall(r"```yaml\n(services:\n.*?)```", GUIDE, re.DOTALL)
    told = {"OWN_DATABASE_URL": "postgres://own", "OWN_REDIS_URL": "redis://own"}
    own = yaml.load(interpolate(written, told), Tagged)
    off = {name for name, said in own["services"].items() if said.get("profiles") == ["unused"]}
    assert off == {"postgres", "redis"} and own["services"].keys() <= services.keys()
    for name in services.keys() - off:
        said = own["services"].get(name, {})
        needs = (said["depends_on"] or {}) if "depends_on" in said else services[name].get("depends_on", {})
        assert not off & set(needs), name
        env = services[name]["environment"] | said.get("environment", {})
        assert not [value for value in env.values() if re.search("@(postgres|redis):", str(value))], name


def test_no_service_logs_without_end(services: dict[str, Any]) -> None:
    """The driver is named: with an engine's own default, such as journald, these options would be refused."""
    wanted = {"driver": "json-file", "options": {"max-size": "20m", "max-file": "5"}}
    assert {name: service.get("logging") for name, service in services.items()} == dict.fromkeys(services, wanted)


def test_every_lasting_service_reaps_and_restarts(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["init"] is True, name
        assert service["restart"] == ("no" if name == "prepare" else "unless-stopped"), name


def test_the_health_of_the_controller_is_that_it_works_and_not_that_it_is_there(services: dict[str, Any]) -> None:
    controller = services["controller"]
    assert controller["healthcheck"]["test"] == ["CMD", *controller["command"], "--check"]
    assert controller["healthcheck"]["interval"] == "60s", "a check takes about a second of a core"


def test_the_health_of_the_web_is_asked_where_that_takes_no_page_and_no_name(services: dict[str, Any]) -> None:
    """It was the sign-in page, which is no answer of the database."""
    (_, *_, code) = services["web"]["healthcheck"]["test"]
    assert f"'http://127.0.0.1:8000{health.PATH}'" in code


def test_workers_hold_neither_database_nor_signing_key(services: dict[str, Any]) -> None:
    for name in ("worker", "worker-gpu"):
        assert not {"DATABASE_URL", "SECRET_KEY", "ADMIN_PASSWORD"} & set(services[name]["environment"])
    assert services["worker-gpu"]["profiles"] == ["gpu"]


def test_runs_over_several_hosts_have_no_part_on_a_network_that_ends_at_its_host(services: dict[str, Any]) -> None:
    for name in ("worker", "worker-gpu"):
        env = {key: "" if value is None else str(value) for key, value in services[name]["environment"].items()}
        assert not Settings.from_env(env).across_hosts


def test_where_the_network_reaches_other_hosts_they_have_a_part() -> None:
    data = yaml.safe_load(interpolate(COMPOSE, dict.fromkeys(SECRETS, "secret") | {"TRAINYARD_ACROSS_HOSTS": "1"}))
    for name in ("worker", "worker-gpu"):
        env = {key: "" if value is None else str(value) for key, value in data["services"][name]["environment"].items()}
        assert Settings.from_env(env).across_hosts
    assert "| `TRAINYARD_ACROSS_HOSTS` |" in GUIDE.partition("### Settings in .env")[2]


@pytest.mark.parametrize("secret", [None, "", " ", "insecure-for-development-only"])
def test_settings_refuse_a_default_secret_without_debug(secret: str | None) -> None:
    env = {k: v for k, v in os.environ.items() if k not in {"SECRET_KEY", "TRAINYARD_TESTING", "DEBUG"}}
    env |= {} if secret is None else {"SECRET_KEY": secret}
    command = [sys.executable, "-c", "import dashboard.settings"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "SECRET_KEY is not set" in done.stderr


def hosts_and_origins(**told: str) -> subprocess.CompletedProcess[str]:
    code = "import dashboard.settings as s; print(s.ALLOWED_HOSTS, s.CSRF_TRUSTED_ORIGINS)"
    env = {**os.environ, "SECRET_KEY": "secret", **told}
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def test_spaces_between_names_and_origins_are_no_part_of_them() -> None:
    told = {
        "ALLOWED_HOSTS": "a.example, .b.example",
        "CSRF_TRUSTED_ORIGINS": "https://a.example, https://*.b.example:8443",
    }
    wanted = "['a.example', '.b.example'] ['https://a.example', 'https://*.b.example:8443']\n"
    assert hosts_and_origins(**told).stdout == wanted


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("ALLOWED_HOSTS", "https://yard.example.org", "names alone, such as yard.example.org"),
        ("CSRF_TRUSTED_ORIGINS", "yard.example.org", "origins such as https://yard.example.org"),
        ("CSRF_TRUSTED_ORIGINS", "https://yard.example.org/", "origins such as https://yard.example.org"),
    ],
)
def test_what_would_be_matched_by_no_request_is_refused_at_the_start(name: str, value: str, right: str) -> None:
    done = hosts_and_origins(**{name: value})
    assert done.returncode != 0
    assert f"{name} takes {right}, not '{value}'" in done.stderr


@pytest.mark.parametrize(
    ("command", "name", "value"),
    [
        (["-m", "dashboard.yard.prepare"], "LOG_LEVEL", "loud"),
        (["-m", "dashboard.yard.prepare"], "ALLOWED_HOSTS", "https://yard.example.org"),
        (["-m", "dashboard.yard.prepare"], "DATABASE_URL", "postgres://yard:p4ssword@host:port/yard"),
        (["manage.py", "controller"], "TRAINYARD_THIN_AFTER_DAYS", "never"),
        (["manage.py", "analyst"], "DATABASE_URL", "host/p4ssword"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named_without_a_stack_trace(
    command: list[str], name: str, value: str, tmp_path: Path
) -> None:
    own = {"DJANGO_SETTINGS_MODULE": "dashboard.settings", "TRAINYARD_HOME": str(tmp_path)}
    env = {**os.environ, "SECRET_KEY": "secret", **own, name: value}
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=env, input="", capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and name in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and "p4ssword" not in done.stderr


@pytest.mark.parametrize("names", ["", "yard.example.org"])
def test_the_workers_and_this_host_are_let_in_whatever_people_type(names: str) -> None:
    text = interpolate(COMPOSE, dict.fromkeys(SECRETS, "secret") | {"ALLOWED_HOSTS": names})
    env = yaml.safe_load(text)["services"]["web"]["environment"]
    hosts = env["ALLOWED_HOSTS"].split(",")
    assert {"127.0.0.1", "web", names or "localhost"} == set(hosts)


def test_the_fleet_file_opens_redis_by_tls_alone() -> None:
    parse(interpolate(FLEET, {})).validate()
    redis = yaml.safe_load(interpolate(FLEET, {}))["services"]["redis"]
    assert redis["ports"] == ["6380:6380"]
    plain, fleet = (yaml.safe_load(interpolate(text, dict.fromkeys(SECRETS, "secret"))) for text in (COMPOSE, FLEET))
    before, after = (" ".join(file["services"]["redis"]["command"]) for file in (plain, fleet))
    assert after.startswith(before), "the same server with one more port"
    assert "--tls-port 6380" in after


def test_every_variable_of_the_guide_is_read_and_every_one_that_is_read_is_in_it() -> None:
    read = VARIABLE.findall(COMPOSE + FLEET)
    told = set(re.findall(r"`([A-Z][A-Z_]+)`", GUIDE)) | set(re.findall(r"\b(?:[A-Z]+_)+[A-Z]+\b", GUIDE))
    assert {name for name, *_ in read} <= told


def test_every_variable_that_a_worker_reads_is_in_the_guide() -> None:
    read = set(re.findall(r"TRAINYARD_[A-Z_]+[A-Z]", (ROOT / "workers" / "settings.py").read_text()))
    assert "TRAINYARD_URL" in read
    assert read <= set(re.findall(r"TRAINYARD_[A-Z_]+[A-Z]", GUIDE + (ROOT / "README.md").read_text()))


def test_the_guide_finds_records_of_runs_that_have_not_settled(tmp_path: Path) -> None:
    """Nothing may be found only where nothing is left: what is not published yet is lost with an older version."""
    (pattern,) = re.findall(r"`ls TRAINYARD_HOME/(\S+)` finds nothing", GUIDE)
    worker = Settings.from_env({"TRAINYARD_HOME": str(tmp_path), "TRAINYARD_WORKER_NAME": "gpu1"})
    attempt = worker.attempts / "12"
    attempt.mkdir(parents=True)
    assert list(tmp_path.glob(pattern)) == []
    events_path(attempt, 0).touch()
    assert list(tmp_path.glob(pattern)) == [events_path(attempt, 0)]


def test_no_secret_of_the_operator_enters_the_image() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {".env", "fleet", ".git"} <= set(ignored)
    assert {"*.sql", "*.tar", "*.tar.gz"} <= set(ignored), "the backups of the guide"


@pytest.mark.parametrize(
    ("gpu", "named", "taken"),
    [
        (False, "https://download.pytorch.org/whl/cpu", True),
        (True, "https://download.pytorch.org/whl/cpu/", False),
        (True, "https://download.pytorch.org/whl/cu126", True),
        (True, "", False),
    ],
)
def test_pytorch_comes_from_where_it_was_said(
    gpu: bool, named: str, taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU-only build would leave the GPU unused, and an older driver needs a build for an older CUDA version: the
    named index is used exactly where it has to be.
    """
    monkeypatch.setenv("TRAINYARD_TORCH_INDEX", named)
    monkeypatch.setenv("TRAINYARD_VENV", str(tmp_path))
    run = runpy.run_path(str(ROOT / "run"))
    asked: list[tuple[str, ...]] = []

    def pip(*arguments: str, vital: bool = True) -> bool:
        asked.append(arguments)
        return True

    scope = run["install"].__globals__
    scope |= {"has_gpu": lambda: gpu, "say": lambda text: None, "importing": lambda code: nullcontext()}
    scope["pip"] = pip
    run["install"]("requirements.txt")
    assert (asked[0][-2:] == ("--extra-index-url", named)) == taken
    exact, build = run["pinned"]("torch"), named.rpartition("/")[2]
    assert asked[0][1] == (f"{exact}+{build}" if taken and sys.platform == "linux" else exact)


@pytest.mark.parametrize("index", ["", "https://mirror.example/simple"])
def test_an_index_of_no_build_is_asked_for_the_version_alone(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_VENV", str(tmp_path))
    run = runpy.run_path(str(ROOT / "run"))
    assert run["torch_from"](index)[0] == run["pinned"]("torch")


PYTORCH = "https://download.pytorch.org/whl"


def set_up_before(venv: Path, build: str) -> Path:
    """Makes `venv` look as after a set-up with this build of PyTorch; returns the record of the latter."""
    run = runpy.run_path(str(ROOT / "run"))
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    exact = run["pinned"]("torch").replace("==", "-")
    record = venv / "lib" / "python3.12" / "site-packages" / f"{exact}{build}.dist-info" / "RECORD"
    record.parent.mkdir(parents=True)
    record.touch()
    for requirements in ("requirements.txt", "requirements-test.txt"):
        (venv / f".{requirements}.stamp").write_text(run["fingerprint"](requirements))
    return record


@pytest.mark.skipif(sys.platform != "linux", reason="the builds for other systems have no names")
@pytest.mark.parametrize(
    ("installed", "named", "gpu", "is_wanted"),
    [
        ("", "", False, True),
        ("+cpu", "", False, True),
        ("+cpu", f"{PYTORCH}/cpu", False, True),
        ("", f"{PYTORCH}/cpu", False, False),
        ("+cpu", "", True, False),
        ("+cpu", f"{PYTORCH}/cpu", True, False),
        ("+cu126", f"{PYTORCH}/cpu", True, True),
        ("+cu126", f"{PYTORCH}/cu128/", True, False),
        ("+cpu", "https://mirror.example/simple", False, True),
    ],
)
def test_a_set_up_environment_is_kept_unless_another_build_of_pytorch_is_wanted(
    installed: str, named: str, gpu: bool, is_wanted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index is named for the first start: a later one without it, also offline, needs no pip."""
    set_up_before(tmp_path / "venv", installed)
    monkeypatch.setenv("TRAINYARD_VENV", str(tmp_path / "venv"))
    monkeypatch.setenv("TRAINYARD_TORCH_INDEX", named)
    run = runpy.run_path(str(ROOT / "run"))
    run["is_up_to_date"].__globals__["has_gpu"] = lambda: gpu
    assert run["is_up_to_date"]("requirements.txt") == is_wanted


def test_a_build_of_pytorch_that_cannot_be_replaced_is_used_and_one_that_is_half_replaced_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline, pip leaves what is installed. Interrupted, it may leave no PyTorch at all: no stamp may hide that."""
    record = set_up_before(tmp_path / "venv", "+cpu")
    monkeypatch.setenv("TRAINYARD_VENV", str(tmp_path / "venv"))
    run = runpy.run_path(str(ROOT / "run"))
    said: list[str] = []
    stamps: list[bool] = []

    def offline(*arguments: str, vital: bool = True) -> bool:
        stamps.append(any(run["VENV"].glob(".*.stamp")))
        assert not vital or "torch" not in str(arguments), "the set-up would end here"
        return "torch" not in str(arguments)

    scope = run["install"].__globals__
    scope |= {"has_gpu": lambda: True, "say": said.append, "pip": offline, "importing": lambda code: nullcontext()}
    run["install"]("requirements.txt")
    assert any("was not replaced" in line for line in said) and stamps == [False, False]
    record.unlink()
    assert not run["is_up_to_date"]("requirements.txt")


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs `./run` with the given arguments where a GPU is beside a CPU build that pip cannot replace; returns what pip
    is asked to replace."""
    set_up_before(tmp_path / "venv", "+cpu")
    monkeypatch.setenv("TRAINYARD_VENV", str(tmp_path / "venv"))
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path / "yard"))
    (tmp_path / "yard").mkdir()
    (tmp_path / "yard" / "admin-password").touch()
    monkeypatch.setenv("TRAINYARD_TORCH_INDEX", "")

    def called(*arguments: str, index: str = "") -> list[str]:
        asked: list[str] = []

        def pip(*wanted: str, vital: bool = True) -> bool:
            asked.extend(one for one in wanted if one.startswith("torch="))
            return "-r" in wanted

        run = runpy.run_path(str(ROOT / "run"))
        scope = run["main"].__globals__
        scope |= {"has_gpu": lambda: True, "importing": lambda code: nullcontext(), "has_pip": lambda: True}
        scope |= {"pip": pip, "become": lambda *_, **__: None, "TORCH_INDEX": index}
        monkeypatch.setattr(sys, "argv", ["run", *arguments])
        run["main"]()
        return asked

    return called


@pytest.mark.skipif(sys.platform != "linux", reason="the builds for other systems have no names")
def test_a_pytorch_that_could_not_be_replaced_is_tried_again_only_by_a_set_up_or_for_another_one(
    offline: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each start would else wait for pip's retries."""
    assert offline("password") == [], "it needs no PyTorch"
    assert len(offline()) == 1 and "./run setup tries that again." in capsys.readouterr().out
    assert [offline(), offline("test"), offline("password"), offline("migrate")] == [[]] * 4
    assert len(offline("setup")) == 1 and offline() == []
    assert len(offline(index=f"{PYTORCH}/cu126")) == 1 and offline(index=f"{PYTORCH}/cu126") == []


@pytest.mark.skipif(sys.platform != "linux", reason="the builds for other systems have no names")
def test_pytorch_is_not_replaced_under_a_running_yard(
    offline: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    yard = FileLock(tmp_path / "yard" / "yard.lock")
    assert yard.hold()
    assert [offline("setup"), offline("migrate")] == [[], []]
    assert capsys.readouterr().out.count("while a yard is running") == 1
    yard.release()
    assert len(offline("setup")) == 1
    assert yard.hold(), "it was only looked at"


def wheel(folder: Path, name: str, version: str, code: str = "") -> None:
    """Writes the smallest wheel that pip installs."""
    about = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as out:
        out.writestr(f"{name}.py", code)
        out.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        out.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        out.writestr(f"{about}/RECORD", f"{name}.py,,\n{about}/METADATA,,\n{about}/WHEEL,,\n{about}/RECORD,,\n")


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="the builds for other systems have no names")
def test_pip_replaces_a_build_by_the_one_that_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real pip, with small wheels of PyTorch's name: to PyPI's build where there is a GPU, and back."""
    venv, wheels = tmp_path / "venv", tmp_path / "wheels"
    monkeypatch.setenv("TRAINYARD_VENV", str(venv))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    run = runpy.run_path(str(ROOT / "run"))
    exact, numpy = (run["pinned"](name).partition("==")[2] for name in ("torch", "numpy"))
    wheels.mkdir()
    for name, version in (("torch", exact), ("torch", f"{exact}+cpu"), ("numpy", numpy)):
        wheel(wheels, name, version, f"build = {version!r}")
    run["make_venv"]()
    scope = run["install_torch"].__globals__
    for index, gpu, build in (("", False, "+cpu"), ("", True, ""), ("", False, ""), (f"{PYTORCH}/cpu", False, "+cpu")):
        scope |= {"TORCH_INDEX": index, "has_gpu": lambda gpu=gpu: gpu}
        run["install_torch"]()
        assert run["has_wanted_torch"]()
        told = subprocess.run([run["PYTHON"], "-c", "import torch; print(torch.build)"], capture_output=True, text=True)
        assert told.stdout.strip() == exact + build


@pytest.mark.parametrize(
    ("index", "build"),
    [
        ("", ""),
        ("https://download.pytorch.org/whl/cpu", "+cpu"),
        ("https://download.pytorch.org/whl/cu126/", "+cu126"),
        ("https://mirror.example/simple", ""),
    ],
)
def test_the_image_takes_the_build_of_pytorch_that_was_said(index: str, build: str, tmp_path: Path) -> None:
    """Runs the Dockerfile's own line with a fake pip that prints its arguments: no other build of PyTorch may be
    installed silently.
    """
    line = next(line for line in DOCKERFILE.splitlines() if line.startswith("RUN ") and "pip install" in line)
    pinned = (ROOT / "constraints.txt").read_text()
    (tmp_path / "constraints.txt").write_text(pinned)
    (tmp_path / "pip").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "pip").chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "TORCH_INDEX": index}
    command = ["sh", "-c", line.removeprefix("RUN ")]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert ("--extra-index-url" in done.stdout, index in done.stdout) == (bool(index), True)
    exact = runpy.run_path(str(ROOT / "run"))["pinned"]("torch")
    wanted = [f"{exact}{build}" if line == exact else line for line in pinned.splitlines()]
    assert (tmp_path / "constraints.txt").read_text().splitlines() == wanted


def test_a_set_up_that_was_interrupted_is_made_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m venv` makes bin/python first and pip last; an environment that works is never made again."""
    monkeypatch.setenv("TRAINYARD_VENV", str(tmp_path))
    run = runpy.run_path(str(ROOT / "run"))
    made: list[str] = []
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    record = tmp_path / "lib" / version / "site-packages" / "pip-24.0.dist-info" / "RECORD"
    run["set_up"].__globals__.update(
        install=lambda requirements, keep: made.append(requirements), make_venv=lambda: made.append("venv"), say=str
    )
    run["PYTHON"].parent.mkdir()
    run["PYTHON"].symlink_to(sys.executable)
    record.parent.mkdir(parents=True)
    run["set_up"]()
    assert made == ["venv", "requirements.txt"]
    record.touch()
    run["set_up"]("requirements-test.txt")
    assert made[2:] == ["requirements-test.txt"]


def test_a_second_set_up_waits_for_the_first_and_finds_it_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one's half-made environment must not be taken for an interrupted one, which is deleted."""
    monkeypatch.setenv("TRAINYARD_VENV", str(tmp_path / "venv"))
    run = runpy.run_path(str(ROOT / "run"))
    first, said, made = FileLock(tmp_path / "venv.lock"), queue.SimpleQueue[str](), list[str]()
    run["set_up"].__globals__.update(
        install=lambda requirements, keep: made.append(requirements),
        make_venv=lambda: made.append("venv"),
        say=said.put,
    )
    assert first.hold()
    second = threading.Thread(target=run["set_up"])
    second.start()
    assert "Another set-up is under way" in said.get(timeout=30)
    run["PYTHON"].parent.mkdir(parents=True)
    run["PYTHON"].symlink_to(sys.executable)
    (tmp_path / "venv" / ".requirements.txt.stamp").write_text(run["fingerprint"]("requirements.txt"))
    first.release()
    second.join(30)
    assert not second.is_alive() and not made
    assert first.hold(), "the second one gave it back"


@pytest.mark.full
def test_an_environment_of_a_python_that_was_upgraded_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bin/python is the new Python by now, and what it had installed is of the old one."""
    monkeypatch.setenv("TRAINYARD_VENV", str(tmp_path))
    run = runpy.run_path(str(ROOT / "run"))
    record = tmp_path / "lib" / "python3.10" / "site-packages" / "pip-24.0.dist-info" / "RECORD"
    record.parent.mkdir(parents=True)
    record.touch()
    run["PYTHON"].parent.mkdir()
    run["PYTHON"].symlink_to(tmp_path / "gone")
    assert not run["has_pip"]()
    run["PYTHON"].unlink()
    run["PYTHON"].symlink_to(sys.executable)
    assert not run["has_pip"]()
    (tmp_path / "pyvenv.cfg").touch()
    run["make_venv"]()
    assert run["has_pip"]() and not record.exists()


def test_ctrl_c_during_the_set_up_shows_no_stack_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(requirements: str, keep: bool) -> None:
        raise KeyboardInterrupt

    run = runpy.run_path(str(ROOT / "run"))
    run["main"].__globals__["set_up"] = interrupted
    monkeypatch.setattr(sys, "argv", ["run"])
    with pytest.raises(SystemExit, match="goes on with it"):
        run["main"]()
