"""Token files: memory-mapped, sampled under any layout, and refused if incomplete."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from parallel_core.cli import main
from parallel_core.data import token_file
from parallel_core.data.content import fingerprint
from parallel_core.data.corpus import CorpusError
from parallel_core.data.dataset import open_dataset
from parallel_core.data.sampler import Sampler
from parallel_core.data.token_file import FileTokens, pack
from parallel_core.spec import RunSpec

IDS = np.arange(5000) * 7 % 1000


def raw(folder: Path, item: int = 2, ids: np.ndarray = IDS) -> Path:
    path = folder / "raw.bin"
    path.write_bytes(ids.astype(token_file.TYPES[item]).tobytes())
    return path


def spec_of(vocab: int = 1024, corpus: str = "tokens:web") -> RunSpec:
    return RunSpec.model_validate({"model": {"seq": 16, "vocab": vocab}, "train": {"corpus": corpus}})


@pytest.mark.parametrize("item", [2, 4])
def test_samples_are_stretches_of_the_file(item: int, tmp_path: Path) -> None:
    assert pack(raw(tmp_path, item), item, 1000, "web", tmp_path / "data") == 5000
    dataset = open_dataset(spec_of(), tmp_path / "data")
    drawn = Sampler(spec_of(), dataset).micro_batches(3, (0,))
    assert drawn.inputs.shape == (1, 16, 16)
    assert ((drawn.inputs * 1 + 7) % 1000 == drawn.targets).all()
    assert isinstance(dataset, FileTokens)
    assert isinstance(dataset._tokens, np.memmap)


def test_the_command_packs_and_the_next_one_trains_on_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(tmp_path / "data")
    assert main(["pack-tokens", str(raw(tmp_path)), "--vocab", "1000", "--name", "web", "--out", data]) == 0
    assert "tokens:web" in capsys.readouterr().out
    assert open_dataset(spec_of(), tmp_path / "data").length == 5000 - 16
    assert main(["pack-tokens", str(raw(tmp_path)), "--vocab", "9", "--name", "web", "--out", data]) == 2
    assert "the vocabulary is 9" in capsys.readouterr().err
    assert main(["pack-tokens", str(raw(tmp_path)), "--vocab", "1000", "--name", "../web", "--out", data]) == 2
    assert "letters, digits" in capsys.readouterr().err


SPOILT: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut": (lambda data: data[:-3], "cut short or damaged: 10029 bytes instead of 10032"),
    "longer": (lambda data: data + b"xx", "cut short or damaged"),
    "another": (lambda data: b"PK" + data[2:], "does not begin with TYTOKENS"),
    "short": (lambda data: data[:12], "does not begin with TYTOKENS"),
    "version": (lambda data: data[:8] + b"\x09" + data[9:], "version 9"),
    "item": (lambda data: data[:12] + b"\x03" + data[13:], "3 bytes a token"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_file_is_refused(name: str, tmp_path: Path) -> None:
    spoil, told = SPOILT[name]
    pack(raw(tmp_path), 2, 1000, "web", tmp_path)
    path = tmp_path / "web.tokens"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(CorpusError, match=told):
        open_dataset(spec_of(), tmp_path)


def test_a_damaged_token_is_found_when_it_is_read(tmp_path: Path) -> None:
    pack(raw(tmp_path), 2, 1000, "web", tmp_path)
    path = tmp_path / "web.tokens"
    data = bytearray(path.read_bytes())
    data[32:34] = b"\xff\xff"
    path.write_bytes(data)
    with pytest.raises(CorpusError, match="token 65535, its vocabulary is 1000"):
        open_dataset(spec_of(), tmp_path).take(np.array([0]))


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    pack(raw(tmp_path), 2, 1000, "web", tmp_path)
    with pytest.raises(CorpusError, match=r"model\.vocab=1000 or more"):
        open_dataset(spec_of(vocab=256), tmp_path)
    with pytest.raises(CorpusError, match=r"missing\.tokens is not in this worker's data folder"):
        open_dataset(spec_of(corpus="tokens:missing"), tmp_path)
    with pytest.raises(CorpusError, match="no whole number of tokens"):
        pack(raw(tmp_path, ids=IDS[:1]), 4, 1000, "odd", tmp_path)


@pytest.mark.parametrize("corpus", ["tokens:", "tokens:../etc/passwd", "tokens:a/b", "tokens:.hidden", "tokens:a\n"])
def test_a_name_is_never_a_path(corpus: str) -> None:
    with pytest.raises(ValidationError):
        spec_of(corpus=corpus)


def test_an_image_model_has_no_tokens() -> None:
    with pytest.raises(ValidationError, match="trains on 'digits'"):
        RunSpec.model_validate({"model": {"kind": "mlp"}, "train": {"corpus": "tokens:web"}})


def test_a_data_folder_lists_its_whole_files(tmp_path: Path) -> None:
    pack(raw(tmp_path), 2, 1000, "web", tmp_path)
    (tmp_path / "torn.tokens").write_bytes((tmp_path / "web.tokens").read_bytes()[:-3])
    (tmp_path / "of two words.tokens").write_bytes((tmp_path / "web.tokens").read_bytes())  # no spec can name it
    content = fingerprint(IDS.astype("<u2"))
    assert token_file.listing(tmp_path, {}) == ([{"name": "web", "tokens": 5000, "vocab": 1000, "values": content}], 0)
    assert token_file.listing(tmp_path / "nowhere", {}) == ([], 0)


def test_a_listing_counts_whole_files_only_and_says_how_many_it_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(raw(tmp_path), 2, 1000, "web", tmp_path)
    for i in range(60):
        (tmp_path / f"a{i:02}.tokens").write_bytes(b"")
        (tmp_path / f"b{i:02}.tokens").write_bytes((tmp_path / "web.tokens").read_bytes())
    files, more = token_file.listing(tmp_path, {})
    assert [file["name"] for file in files] == [*(f"b{i:02}" for i in range(60)), "web"] and not more
    monkeypatch.setattr(token_file, "MOST_LISTED", 50)
    files, more = token_file.listing(tmp_path, {})
    assert (len(files), more) == (50, 11)


def test_a_listing_reads_again_only_what_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known: token_file.Known = {}
    for name in ("tale", "web"):
        pack(raw(tmp_path), 2, 1000, name, tmp_path)
    first, plain = token_file.listing(tmp_path, known), token_file.open
    read: list[str] = []

    def noted(name: str, folder: Path | None) -> tuple[np.ndarray, int]:
        read.append(name)
        return plain(name, folder)

    monkeypatch.setattr(token_file, "open", noted)
    assert token_file.listing(tmp_path, known) == first and not read
    with (tmp_path / "web.tokens").open("ab") as file:
        file.write(b"more")
    (tmp_path / "tale.tokens").unlink()
    assert token_file.listing(tmp_path, known) == ([], 0) and read == ["web"]
    assert known.keys() == {"web"}
