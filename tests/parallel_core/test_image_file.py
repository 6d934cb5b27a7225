"""Image files: packed from NumPy's arrays, memory-mapped, normalised, and refused if incomplete or unsuitable."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from parallel_core.cli import main
from parallel_core.data import image_file
from parallel_core.data.corpus import CorpusError
from parallel_core.data.dataset import open_dataset, stand_in
from parallel_core.data.image_file import FileImages, pack
from parallel_core.data.moments import Moments
from parallel_core.data.sampler import Sampler
from parallel_core.outline import outline_of
from parallel_core.profile.layers import spec_of as profiled
from parallel_core.spec import RunSpec, field_errors

COUNT, SIDE, CLASSES = 60, 8, 5
RANDOM = np.random.default_rng(3)
IMAGES = RANDOM.integers(0, 256, (COUNT, 3, SIDE, SIDE)).astype(np.uint8)
LABELS = np.arange(COUNT) % CLASSES


def saved(folder: Path, **arrays: np.ndarray) -> Path:
    """An .npz with these arrays, or IMAGES and LABELS."""
    path = folder / "raw.npz"
    np.savez(path, images=arrays.get("images", IMAGES), labels=arrays.get("labels", LABELS))
    return path


def packed(folder: Path, name: str = "pets") -> Path:
    pack([IMAGES[:7], IMAGES[7:]], LABELS, folder / f"{name}.images")
    return folder / f"{name}.images"


def spec_of(corpus: str = "images:pets", train: dict[str, Any] | None = None, **model: Any) -> RunSpec:
    return RunSpec.model_validate(
        {
            "model": {"kind": "mlp", "image": SIDE, "channels": 3, "classes": CLASSES, **model},
            "train": {"corpus": corpus, **(train or {})},
        }
    )


def test_channels_are_normalised_over_the_file_and_labels_are_those_of_their_images(tmp_path: Path) -> None:
    packed(tmp_path)
    dataset = open_dataset(spec_of(), tmp_path)
    images, labels = dataset.take(np.arange(COUNT))
    exact = IMAGES.astype(np.float64)
    wanted = (exact - exact.mean((0, 2, 3), keepdims=True)) / exact.std((0, 2, 3), keepdims=True)
    assert images.dtype == np.float32 and labels.dtype == np.int64
    np.testing.assert_allclose(images, wanted, atol=1e-5)
    assert (labels == LABELS).all()
    assert isinstance(dataset, FileImages) and isinstance(dataset._file.pixels, np.memmap)


def test_the_last_images_are_held_out_and_never_drawn(tmp_path: Path) -> None:
    packed(tmp_path)
    spec = spec_of(train={"eval_every": 5, "eval_samples": 58})
    dataset = open_dataset(spec, tmp_path)
    sampler = Sampler(spec, dataset)
    assert dataset.hold_out(58).numbers.tolist() == list(range(2, COUNT))
    assert {int(number) for step in range(20) for number in sampler.numbers(step)} == {0, 1}
    with pytest.raises(CorpusError, match=r"the corpus has 60 images; use at most train\.eval_samples=59"):
        dataset.hold_out(60)


def test_smaller_images_are_enlarged(tmp_path: Path) -> None:
    packed(tmp_path)
    plain, _ = open_dataset(spec_of(), tmp_path).take(np.array([4]))
    large, _ = open_dataset(spec_of(image=24), tmp_path).take(np.array([4]))
    assert large.shape == (1, 3, 24, 24)
    np.testing.assert_allclose(large[..., 1::3, 1::3], plain, atol=1e-5)  # the pixels at the same centres


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ({"image": 4}, r"images of 8 x 8 pixels, and the model takes 4; use model\.image=8 or more"),
        ({"channels": 1}, r"images of 3 channels, and the model 1; use model\.channels=3"),
        ({"classes": 4}, r"images:pets has 5 classes, and the model 4; use model\.classes=5 or more"),
    ],
)
def test_what_does_not_suit_the_model_is_refused_with_both_numbers(
    model: dict[str, Any], told: str, tmp_path: Path
) -> None:
    packed(tmp_path)
    with pytest.raises(CorpusError, match=told):
        open_dataset(spec_of(**model), tmp_path)


def test_images_that_are_no_squares_are_refused(tmp_path: Path) -> None:
    pack([IMAGES[:, :, :, 1:]], LABELS, tmp_path / "pets.images")
    with pytest.raises(CorpusError, match="images of 8 x 7 pixels; crop or pad them to a square"):
        open_dataset(spec_of(), tmp_path)


SPOILT: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut": (lambda data: data[:-3], "cut short or damaged: .* for its 60 images of 3 x 8 x 8"),
    "longer": (lambda data: data + b"xx", "cut short or damaged"),
    "another": (lambda data: b"PK" + data[2:], "does not begin with TYIMAGES"),
    "short": (lambda data: data[:12], "does not begin with TYIMAGES"),
    "version": (lambda data: data[:8] + b"\x09" + data[9:], "version 9"),
    "item": (lambda data: data[:12] + b"\x03" + data[13:], "3 bytes a number"),
    "mean": (lambda data: data[:40] + b"\xff" * 8 + data[48:], "its mean or deviation is no number"),
    "mean beyond f4": (lambda data: data[:40] + struct.pack("<d", 1e300) + data[48:], "its mean or deviation"),
    "deviation below f4": (lambda data: data[:64] + struct.pack("<d", 1e-60) + data[72:], "its mean or deviation"),
    "side": (lambda data: data[:24] + struct.pack("<II", 4000, 8) + data[32:], "of images of 3 x 4000 x 8, and"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_file_is_refused(name: str, tmp_path: Path) -> None:
    spoil, told = SPOILT[name]
    path = packed(tmp_path)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(CorpusError, match=rf"pets\.images is .*{told}"):
        open_dataset(spec_of(), tmp_path)
    assert image_file.listing(tmp_path, {}) == ([], 0)


def test_a_damaged_label_is_found_when_it_is_read(tmp_path: Path) -> None:
    path = packed(tmp_path)
    data = bytearray(path.read_bytes())
    at = 40 + 2 * 3 * 8
    data[at : at + 4] = b"\xff\x00\x00\x00"
    path.write_bytes(data)
    with pytest.raises(CorpusError, match="label 255, its classes are 5"):
        open_dataset(spec_of(), tmp_path).take(np.array([0]))


def test_a_data_folder_lists_its_whole_files(tmp_path: Path) -> None:
    packed(tmp_path)
    (tmp_path / "torn.images").write_bytes((tmp_path / "pets.images").read_bytes()[:-3])
    entry = {"name": "pets", "images": COUNT, "height": 8, "width": 8, "channels": 3, "classes": 5}
    (found,), more = image_file.listing(tmp_path, {})
    assert {name: value for name, value in found.items() if name != "values"} == entry and not more
    assert found["values"] == open_dataset(spec_of(), tmp_path).content()
    with pytest.raises(CorpusError, match=r"cats\.images is not in this worker's data folder; .* `pack-images`"):
        open_dataset(spec_of("images:cats"), tmp_path)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("order", ["first", "last"])
def test_the_command_packs_an_npz(
    order: str, compressed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = np.ascontiguousarray(IMAGES if order == "first" else IMAGES.transpose(0, 2, 3, 1))
    (np.savez_compressed if compressed else np.savez)(tmp_path / "raw.npz", images=images, labels=LABELS)
    data = tmp_path / "data"
    assert main(["pack-images", str(tmp_path / "raw.npz"), "--name", "pets", "--out", str(data)]) == 0
    assert "60 images of 3 x 8 x 8 in 5 classes" in capsys.readouterr().out
    found = image_file.open("images:pets", data)
    assert (found.pixels == IMAGES).all() and (found.labels == LABELS).all()


def test_the_command_packs_two_npy_of_grey_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", IMAGES[:, 0].astype(np.float32))
    np.save(tmp_path / "y.npy", LABELS.astype(np.int32))
    line = ["pack-images", str(tmp_path / "x.npy"), "--name", "pets", "--out", str(tmp_path)]
    assert main(line) == 2
    assert "needs --labels" in capsys.readouterr().err
    assert main([*line, "--labels", str(tmp_path / "y.npy")]) == 0
    assert image_file.open("images:pets", tmp_path).pixels.shape == (COUNT, 1, 8, 8)
    assert main(["pack-images", str(tmp_path / "x.npy"), "--name", "../x", "--out", str(tmp_path)]) == 2
    assert "letters, digits" in capsys.readouterr().err
    assert main(["pack-images", str(tmp_path / "cats"), "--name", "pets", "--out", str(tmp_path)]) == 2
    assert "cats: no such file" in capsys.readouterr().err


WRONG: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "objects": ({"images": np.array([{}, []], dtype=object)}, "Python objects, which are never loaded"),
    "object labels": ({"labels": np.array([{}, []], dtype=object)}, "Python objects, which are never loaded"),
    "fewer": ({"labels": LABELS[1:]}, "60 images and 59 labels"),
    "below 0": ({"labels": LABELS - 1}, "these from -1 to 3"),
    "broken": ({"labels": LABELS / 2}, "labels are whole numbers"),
    "one-hot": ({"labels": np.eye(5, dtype=np.int64)[LABELS]}, "labels are whole numbers"),
    "doubles": ({"images": IMAGES.astype(np.float64)}, "images are uint8 or float32"),
    "flat": ({"images": IMAGES.reshape(COUNT, -1)}, "images are uint8 or float32"),
    "unclear": ({"images": IMAGES.reshape(COUNT, 16, 12, 1)[:, :3, :3]}, "--channels first or last"),
    "by columns": ({"images": np.asfortranarray(IMAGES)}, "no array by rows"),
    "infinite": ({"images": np.where(np.arange(COUNT) == 9, np.inf, 0)[:, None, None].astype("f4")}, "image 9 has"),
    "no square": ({"images": IMAGES[..., 1:]}, "images of 8 x 7 pixels; crop or pad them to a square"),
    "no grey square": ({"images": IMAGES[:, 0, :, 1:]}, "images of 8 x 7 pixels; crop or pad them to a square"),
    "large": ({"images": np.zeros((COUNT, 1, 1025), "u1")}, "the largest that a model takes are 64 x 1024 x 1024"),
    "nothing": ({"images": IMAGES[:0], "labels": LABELS[:0]}, "there are no labels"),
}


@pytest.mark.parametrize("name", WRONG)
def test_arrays_that_are_no_images_are_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays, told = WRONG[name]
    path = saved(tmp_path, **arrays)
    assert main(["pack-images", str(path), "--name", "pets", "--out", str(tmp_path)]) == 2
    assert told in capsys.readouterr().err
    assert not list(tmp_path.glob("pets.*")), "no part of a file stays"


def test_files_that_are_no_npz_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path)
    line = ["pack-images", str(path), "--name", "pets", "--out", str(tmp_path)]
    path.write_bytes(path.read_bytes()[:-100])
    assert main(line) == 2
    assert "no whole .npz file" in capsys.readouterr().err
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("labels.npy", b"nonsense")
    assert main(line) == 2
    assert "no array that numpy.save writes" in capsys.readouterr().err
    np.savez(path, labels=LABELS)
    assert main(line) == 2
    assert "has no array images" in capsys.readouterr().err


def test_more_channels_than_a_model_takes_are_not_packed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A worker would not list such a file."""
    path = saved(tmp_path, images=np.zeros((COUNT, 65, 2, 2), np.uint8))
    assert main(["pack-images", str(path), "--name", "pets", "--channels", "first", "--out", str(tmp_path)]) == 2
    assert "is of images of 65 x 2 x 2" in capsys.readouterr().err


def header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (header("{'descr': '|u1', 'shape': ("), "no array that numpy.save writes"),
        (header("{'descr': '|u1', 'fortran_order': False, 'shape': (-3, 2)}"), "no array of numbers"),
        (header("{'descr': '|V0', 'fortran_order': False, 'shape': (99999999,)}"), "no array of numbers"),
        (header("{'descr': '|u1', 'fortran_order': False, 'shape': (99999999999999,)}"), "cut short: it ends in row 0"),
    ],
    ids=["torn", "below 0", "no size", "too many"],
)
def test_a_header_that_is_torn_or_lies_is_refused(
    labels: bytes, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", IMAGES)
    (tmp_path / "y.npy").write_bytes(labels)
    line = ["pack-images", str(tmp_path / "x.npy"), "--labels", str(tmp_path / "y.npy")]
    assert main([*line, "--name", "pets", "--out", str(tmp_path)]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(("at", "value"), [(6, 1), (8, 98)], ids=["encrypted", "another compression"])
def test_an_npz_that_cannot_be_unpacked_is_refused(
    at: int, value: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path)
    data = bytearray(path.read_bytes())
    for magic, more in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):  # in each member's header, and again in the directory
        first = data.find(magic)
        while first >= 0:
            data[first + at + more] = value
            first = data.find(magic, first + 1)
    path.write_bytes(data)
    assert main(["pack-images", str(path), "--name", "pets", "--out", str(tmp_path)]) == 2
    assert "no .npz file that numpy.savez writes" in capsys.readouterr().err


def test_moments_of_parts_are_those_of_the_whole() -> None:
    values = RANDOM.normal(1e6, 1e-2, (20, 2, 3, 3))
    moments = Moments()
    for part in np.split(values, [3, 3, 12]):
        moments.add(part)
    np.testing.assert_allclose(moments.mean, values.mean((0, 2, 3)), rtol=1e-14)
    np.testing.assert_allclose(moments.deviation, values.std((0, 2, 3)), rtol=1e-6)
    moments = Moments()
    moments.add(np.ones((2, 1, 2, 2)))
    assert moments.deviation.tolist() == [1.0]
    moments = Moments()
    moments.add(np.array([0, 2e-45], np.float32).reshape(2, 1, 1, 1))
    assert moments.deviation.tolist() == [1.0], "a number of f4 that is not normal"


@pytest.mark.parametrize(("model", "field"), [({"channels": 3}, "model.channels"), ({"classes": 9}, "model.classes")])
def test_digits_are_grey_and_of_ten_classes(model: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate({"model": {"kind": "mlp", **model}})
    assert field in field_errors(caught.value)
    RunSpec.model_validate({"model": {"kind": "mlp", "classes": 11}})


@pytest.mark.parametrize("kind", ["mlp", "vgg16", "resnet50"])
def test_a_profile_of_such_a_model_needs_no_file(kind: str) -> None:
    model = RunSpec.model_validate(
        {"model": {"kind": kind, "channels": 3, "classes": 4}, "train": {"corpus": "images:pets"}}
    ).model
    spec = profiled(model, "fp32", 1, "none", 2, "cpu")
    images, labels = stand_in(spec).take(np.arange(50))
    side = outline_of(model).side  # type: ignore[attr-defined]
    assert images.shape == (50, 3, side, side) and labels.max() == 3
