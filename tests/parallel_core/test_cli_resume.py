"""Into which folders the command line lets a run save, so that its checkpoints are those that are found there."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallel_core.checkpoint import folder as folders
from parallel_core.cli import main
from parallel_core.cli.train import _as_json, _require_room
from parallel_core.outcome import Outcome
from tests.parallel_core.test_checkpoint import alone, save, spec_of


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The file of a spec that can go on from what `alone` saves."""
    path = tmp_path / "spec.json"
    path.write_text(spec_of().model_dump_json())
    return path


@pytest.mark.parametrize("inside", ["", folders.CHECKPOINTS])
def test_a_folder_with_checkpoints_takes_no_other_run(
    inside: str, written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Saving would drop those of later steps, even where the records were removed for their space."""
    out = tmp_path / "out"
    save(alone(), tmp_path / "saved", 50)
    (out / inside).parent.mkdir(exist_ok=True)
    (tmp_path / "saved").rename(out / inside)
    assert main(["train", str(written), "--out", str(out)]) == 2
    assert f"{out} holds checkpoints already; give another --out, or go on" in capsys.readouterr().err
    save(alone(), tmp_path / "other", 2)
    assert main(["train", str(written), "--out", str(out), "--resume", str(tmp_path / "other")]) == 2
    assert f"{out} holds checkpoints already" in capsys.readouterr().err
    assert folders.steps(out / inside) == [50]
    _require_room(out, folders.path_of(out / inside, 50))


def test_a_checkpoint_itself_takes_no_run(written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It would be taken for the newest, whatever is saved inside it."""
    save(alone(), tmp_path / "kept", 2)
    path = str(folders.path_of(tmp_path / "kept", 2))
    assert main(["train", str(written), "--out", path, "--resume", path]) == 2
    assert f"{path} is a checkpoint; give another --out" in capsys.readouterr().err


def test_a_resumed_run_that_fails_before_its_first_step_has_the_steps_of_its_checkpoint_done(tmp_path: Path) -> None:
    assert _as_json(spec_of(), Outcome(tmp_path, 0.0, 1), resumed=40)["steps_done"] == 40
