"""What a run reads is known by its content: other data or weights of the same name are told, and refused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint import manifest as manifests
from parallel_core.checkpoint.config import CheckpointConfig
from parallel_core.checkpoint.manifest import CheckpointError
from parallel_core.data import token_file
from parallel_core.data.content import BLOCK, BLOCKS, fingerprint
from parallel_core.data.corpus import CorpusError
from parallel_core.data.dataset import open_dataset
from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.inputs import require_expected
from parallel_core.engine.run import run_rank
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink, last_of
from parallel_core.spec import RunSpec, TrainSpec
from tests.parallel_core import ranks

LARGE = np.arange(3 * BLOCK * BLOCKS, dtype=np.uint8)


def packed(folder: Path, ids: np.ndarray) -> Path:
    folder.mkdir(exist_ok=True)
    source = folder / "raw"
    source.write_bytes(ids.astype("<u2").tobytes())
    token_file.pack(source, 2, 64, "web", folder)
    source.unlink()
    return folder


def spec_of(dp: int = 1, **more: Any) -> RunSpec:
    sizes = {"layers": 1, "hidden": 16, "heads": 2, "seq": 8, "vocab": 64}
    train = {"steps": 2, "warmup_steps": 1, "global_batch": 2, "corpus": "tokens:web"} | more
    return RunSpec.model_validate({"model": sizes, "parallel": {"dp": dp}, "train": train})


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(LARGE[:-1], id="length"),
        pytest.param(LARGE.view(np.uint16), id="type"),
        pytest.param(LARGE.reshape(3, -1), id="shape"),
        pytest.param(LARGE + np.uint8(1), id="content"),
        pytest.param(np.concatenate([LARGE[:-1], LARGE[:1]]), id="the last byte"),
    ],
)
def test_other_arrays_have_another_fingerprint(other: np.ndarray) -> None:
    assert fingerprint(other) != fingerprint(LARGE) == fingerprint(LARGE.copy())
    assert fingerprint(LARGE, other) != fingerprint(other, LARGE)


def test_of_small_arrays_every_byte_counts() -> None:
    small = np.zeros(BLOCK * BLOCKS, np.uint8)
    one = small.copy()
    one[BLOCK * 7 + 13] = 1
    assert fingerprint(one) != fingerprint(small)


@pytest.mark.parametrize(
    ("kind", "corpus"), [("gpt", "stdlib"), ("mlp", "digits"), ("gnmt", "django")], ids=["text", "digits", "pairs"]
)
def test_built_in_data_have_one_content(kind: str, corpus: str) -> None:
    spec = RunSpec.model_validate({"model": {"kind": kind}, "train": {"corpus": corpus}})
    assert open_dataset(spec).content() == open_dataset(spec).content()


def test_what_a_run_expects_is_compared_where_both_are_known() -> None:
    train = TrainSpec(corpus="tokens:web", weights="tiny")
    require_expected(train, {"corpus": "a"}, {"corpus": "a", "weights": "b"})  # goes on from a checkpoint
    require_expected(train, {"corpus": "a", "weights": "b"}, {})
    with pytest.raises(CheckpointError, match=r"train\.weights: tiny on this host .* its content is c, and was b"):
        require_expected(train, {"corpus": "a", "weights": "c"}, {"corpus": "a", "weights": "b"})
    with pytest.raises(CorpusError, match=r"train\.corpus: tokens:web .* submit a new run that reads this one"):
        require_expected(train, {"corpus": "b"}, {"corpus": "a"})


def _expecting(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path, data: Path, digits: str) -> tuple[str, str]:
    """What the rank says that it read, and why it ended if it did not train."""
    sink, why = FileSink(folder, rank), ""
    try:
        run_rank(spec, rank, sink, meeting, Progress(folder, rank), data, expects={"corpus": digits} if digits else {})
    except CorpusError as error:
        why = str(error)
    return (last_of(folder, rank, "hello") or {})["reads"]["corpus"], why


def test_a_later_attempt_trains_on_no_other_data(tmp_path: Path) -> None:
    data = packed(tmp_path / "data", np.arange(500) % 64)
    (first,) = ranks.run(spec_of(), partial(_expecting, data=data, digits=""), ranks.scratch())
    assert first[0] == token_file.listing(data, {}).files[0]["values"] and not first[1]
    (again,) = ranks.run(spec_of(), partial(_expecting, data=data, digits=first[0]), ranks.scratch())
    assert again == first
    packed(data, np.arange(500) % 63)
    (other,) = ranks.run(spec_of(), partial(_expecting, data=data, digits=first[0]), ranks.scratch())
    assert f"is {other[0]}, and was {first[0]}" in other[1]


def _trained(
    spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path, data: Path, saved: Path, resume: Path | None
) -> str:
    """Why the rank did not train on the `data`; '' if it did, and saved into `saved`."""
    saves, folder = CheckpointConfig(saved, resume), ranks.scratch()
    try:
        run_rank(spec, rank, FileSink(folder, rank), meeting, Progress(folder, rank), data, saves)
    except CorpusError as error:
        assert last_of(folder, rank, "hello") is None, "it read nothing that a later attempt has to read, too"
        return str(error)
    return ""


def test_a_run_that_goes_on_from_a_checkpoint_reads_no_other_data_of_that_name(tmp_path: Path) -> None:
    """Unless it is said to be on purpose, by another name or by the field."""
    first, other = (packed(tmp_path / str(vocab), np.arange(500) % vocab) for vocab in (64, 63))
    (other / "news.tokens").write_bytes((other / "web.tokens").read_bytes())
    path = folders.path_of(tmp_path / "run", 2)
    begins = partial(_trained, data=first, saved=tmp_path / "run", resume=None)
    goes_on = partial(_trained, saved=tmp_path / "again", resume=path)
    turns = [
        (spec_of(checkpoint_every=2), begins),
        (spec_of(steps=3), partial(goes_on, data=first)),
        (spec_of(steps=3), partial(goes_on, data=other)),
        (spec_of(steps=3, corpus="tokens:news"), partial(goes_on, data=other)),
        (spec_of(steps=3, other_data=True), partial(goes_on, data=other)),
    ]
    found = [each[0] for each in ranks.run_each(turns)]
    was, now = (token_file.listing(folder, {}).files[0]["values"] for folder in (first, other))
    assert manifests.read(path).reads == {"corpus": was}
    assert found == ["", "", found[2], "", ""]
    assert f"train.corpus: tokens:web is not what the checkpoint {path} was trained on" in found[2]
    assert f"is {now}, and was {was}" in found[2] and "train.other_data" in found[2]


def _of_own_host(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path, hosts: Path) -> str:
    """What the rank says of the data folder of its own host."""
    between = replace(meeting, node=rank)
    try:
        run_rank(spec, rank, FileSink(folder, rank), between, Progress(folder, rank), hosts / str(rank))
    except Exception as error:  # also of rank 0, which the other one has left
        return str(error)
    return ""


@pytest.mark.parametrize("same", [True, False], ids=["the same", "others"])
def test_hosts_with_other_data_of_one_name_do_not_train_together(same: bool, tmp_path: Path) -> None:
    for host in range(2):
        packed(tmp_path / str(host), np.arange(500) % (64 if same else 64 - host))
    first, second = ranks.run(spec_of(dp=2), partial(_of_own_host, hosts=tmp_path), ranks.scratch())
    if same:
        assert (first, second) == ("", "")
    else:
        assert second.startswith("train.corpus: tokens:web of rank 1 is another than that of rank 0: the hosts"), second
