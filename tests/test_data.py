"""Data sets: the three forms give the same samples, keys follow content, and every refusal says how to mend it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from qbench.data import ArrayDataset, Inputs, Preprocessing, open_dataset, parse_preprocessing, take
from qbench.data.preprocessing import EXAMPLE
from qbench.errors import DataError, InputError
from qbench.protocols import Array, Batch, Dataset

ONE = [("x", (None, 3, 4, 5), "float32")]
TWO = [("a", (None, 2), "float32"), ("b", (None, 1), "int64")]


def samples(n: int = 7, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(n, 3, 4, 5)).astype(np.float32)


def joined(dataset: Dataset, size: int = 1) -> tuple[dict[str, Array], list[Array]]:
    batches = list(dataset.batches(size))
    feeds = {k: np.concatenate([b.feeds[k] for b in batches]) for k in batches[0].feeds}
    return feeds, [np.asarray(label) for b in batches if b.labels is not None for label in b.labels]


def save_folder(folder: Path, x: Array) -> str:
    folder.mkdir()
    for n, one in enumerate(x):
        np.save(folder / f"{n:03}.npy", one)
    return str(folder)


# the three forms

def test_npz_folder_and_function_give_the_same_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = samples()
    np.savez(tmp_path / "d.npz", x=x, labels=np.arange(7), other=np.zeros(3))
    folder = tmp_path / "folder"
    folder.mkdir()
    for n, one in enumerate(x):
        np.savez(folder / f"{n}.npz", x=one[None], labels=np.int64(n))
    (tmp_path / "mine_for_test.py").write_text(
        "import numpy as np\ndef make():\n    d = np.load('d.npz')\n"
        "    for n in range(7):\n        yield {'x': d['x'][n], 'labels': d['labels'][n]}\n")
    monkeypatch.chdir(tmp_path)
    for spec in ("d.npz", "folder", "mine_for_test:make", "mine_for_test.py:make", str(tmp_path / "mine_for_test.py") + ":make"):
        dataset = open_dataset(spec, inputs=ONE)
        assert len(dataset) == 7
        for size in (1, 3, 7, 100):
            feeds, labels = joined(dataset, size)
            assert np.array_equal(feeds["x"], x) and [int(v) for v in labels] == list(range(7)), (spec, size)
        assert [b.first for b in dataset.batches(3)] == [0, 3, 6]
    sys.modules.pop("mine_for_test", None)


def test_two_inputs_and_safe_conversions(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", a=np.ones((3, 2), np.float64), b=np.arange(3, dtype=np.uint8)[:, None])
    feeds, labels = joined(open_dataset(str(tmp_path / "d.npz"), inputs=TWO), 2)
    assert feeds["a"].dtype == np.float32 and feeds["b"].dtype == np.int64 and not labels


def test_class_folders_take_turns_and_number_classes_in_sorted_order(tmp_path: Path) -> None:
    for name, count in (("cat", 3), ("ant", 1), ("bee", 2)):
        (tmp_path / "d" / name).mkdir(parents=True)
        for n in range(count):
            np.save(tmp_path / "d" / name / f"{n}.npy", np.full((3, 4, 5), n, np.float32))
    (tmp_path / "d" / "README.txt").write_text("not a sample")
    dataset = open_dataset(str(tmp_path / "d"), inputs=ONE)
    assert [int(v) for v in joined(dataset)[1]] == [0, 1, 2, 1, 2, 2]        # ant, bee, cat, bee, cat, cat
    assert len(open_dataset(str(tmp_path / "d"), inputs=ONE, limit=4)) == 4


def test_unequal_shapes_never_share_a_batch(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    widths = [5, 5, 6, 7, 7, 7]
    for n, width in enumerate(widths):
        np.save(tmp_path / "d" / f"{n}.npy", np.full((3, 4, width), n, np.float32))
    batches = list(open_dataset(str(tmp_path / "d"), inputs=[("x", (None, 3, 4, None), "float32")]).batches(2))
    assert [b.feeds["x"].shape for b in batches] == [(2, 3, 4, 5), (1, 3, 4, 6), (2, 3, 4, 7), (1, 3, 4, 7)]
    assert [b.first for b in batches] == [0, 2, 3, 5]


def test_an_endless_function_ends_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "endless.py").write_text(
        "import numpy as np\ndef make():\n    n = 0\n    while True:\n        yield {'x': np.full((2, 3, 4, 5), n, 'float32')}\n        n += 1\n")
    dataset = open_dataset(f"{tmp_path / 'endless.py'}:make", inputs=ONE, limit=5)   # each item holds a batch of two
    assert len(dataset) == 5
    assert joined(dataset, 2)[0]["x"][:, 0, 0, 0].tolist() == [0, 0, 1, 1, 2]


def test_a_function_that_changes_its_mind_is_caught(tmp_path: Path) -> None:
    (tmp_path / "moody.py").write_text(
        "import numpy as np\nrng = np.random.default_rng(0)\ndef make():\n    yield {'x': rng.normal(size=(3, 4, 5))}\n")
    dataset = open_dataset(f"{tmp_path / 'moody.py'}:make", inputs=ONE)
    with pytest.raises(DataError, match="seed its random numbers"):
        list(dataset.batches(1))


# content keys

def test_key_follows_the_content_and_nothing_else(tmp_path: Path) -> None:
    x = samples()
    changed = x.copy()
    changed[3, 0, 0, 0] = np.nextafter(changed[3, 0, 0, 0], np.float32(9))
    same = ArrayDataset({"x": x.copy()}, name="another name")
    assert ArrayDataset({"x": x}).key == same.key
    others = [ArrayDataset({"x": changed}), ArrayDataset({"y": x}), ArrayDataset({"x": x.astype(np.float64)}),
              ArrayDataset({"x": x.reshape(7, 3, 20)}), ArrayDataset({"x": x}, np.arange(7)), take(same, 6)]
    assert len({d.key for d in [same, *others]}) == 1 + len(others)
    one, two = (open_dataset(save_folder(tmp_path / n, x), inputs=ONE) for n in ("one", "two"))
    assert one.key == two.key
    np.save(tmp_path / "two" / "003.npy", changed[3])
    assert one.key != open_dataset(str(tmp_path / "two"), inputs=ONE).key


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 5))
def test_head_holds_the_first_samples(count: int, size: int, other: int) -> None:
    x = np.arange(8, dtype=np.float32)[:, None]
    whole = ArrayDataset({"x": x}, np.arange(8))
    head = take(whole, count)
    assert len(head) == min(count, 8)
    for step in (size, other):
        feeds, labels = joined(head, step)
        assert feeds["x"][:, 0].tolist() == [int(v) for v in labels] == list(range(min(count, 8)))


def test_transform_is_applied_per_batch_and_is_part_of_the_key() -> None:
    class Twice:
        text = "twice"

        def __call__(self, stored: dict[str, Array]) -> dict[str, Array]:
            return {"x": stored["raw"] * np.float32(2)}

    raw = np.arange(4, dtype=np.uint8)[:, None]
    dataset = ArrayDataset({"raw": raw}, transform=Twice())  # type: ignore[arg-type]
    assert joined(dataset, 3)[0]["x"][:, 0].tolist() == [0, 2, 4, 6]
    assert dataset.key != ArrayDataset({"raw": raw}).key


# preprocessing

@st.composite
def preprocessings(draw: st.DrawFn) -> Preprocessing:
    colour = draw(st.sampled_from(["rgb", "bgr", "gray"]))
    counts = st.just(1) if colour == "gray" else st.sampled_from([1, 3])
    finite = st.floats(-1e6, 1e6)
    return Preprocessing(
        size=draw(st.none() | st.tuples(st.integers(1, 4096), st.integers(1, 4096))), fit=draw(st.sampled_from(["stretch", "crop"])),
        colour=colour, scale=draw(st.floats(1e-9, 1e9)), layout=draw(st.sampled_from(["nchw", "nhwc"])),
        mean=tuple(draw(finite) for _ in range(draw(counts))), std=tuple(draw(st.floats(1e-9, 1e9)) for _ in range(draw(counts))))


@given(preprocessings())
def test_text_parses_back_to_the_same_record(p: Preprocessing) -> None:
    assert parse_preprocessing(p.text) == p


def test_example_in_the_message_is_the_usual_one() -> None:
    p = parse_preprocessing(EXAMPLE)
    assert p == Preprocessing(size=(224, 224), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    assert parse_preprocessing("color=grey,scale=1/127.5").colour == "gray"


def test_pixels_become_the_documented_value(tmp_path: Path) -> None:
    rgb = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    Image.fromarray(rgb).save(tmp_path / "a.png")
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    want = (rgb / 255.0 - np.array(mean)) / np.array(std)
    for colour, layout in (("rgb", "nchw"), ("rgb", "nhwc"), ("bgr", "nchw")):
        p = Preprocessing(colour=colour, mean=mean, std=std, layout=layout)
        expected = want if colour == "rgb" else (rgb[..., ::-1] / 255.0 - np.array(mean)) / np.array(std)
        expected = expected.transpose(2, 0, 1) if layout == "nchw" else expected
        for got in (p.open(tmp_path / "a.png"), p.pixels(rgb)):
            assert got.dtype == np.float32
            np.testing.assert_allclose(got, expected, rtol=0, atol=4e-7)     # float32: values up to 2, three operations


def test_size_is_height_by_width_and_gray_keeps_sixteen_bits(tmp_path: Path) -> None:
    deep = np.arange(48, dtype=np.uint16).reshape(6, 8) * 1000
    Image.fromarray(deep).save(tmp_path / "deep.png")
    assert np.array_equal(parse_preprocessing("colour=gray,scale=1").open(tmp_path / "deep.png")[0], deep)
    assert parse_preprocessing("size=3x5").pixels(np.zeros((6, 8, 3), np.uint8)).shape == (3, 3, 5)
    crop = parse_preprocessing("size=4x4,fit=crop,colour=gray,scale=1").pixels(np.tile(np.arange(8, dtype=np.uint8), (4, 1)))
    assert np.array_equal(crop[0], np.tile([2, 3, 4, 5], (4, 1)))


def test_a_folder_of_photographs_turns_them_upright(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    sideways = Image.fromarray(np.zeros((8, 4, 3), np.uint8))
    exif = sideways.getexif()
    exif[0x0112] = 6                                                          # orientation: turn by 90 degrees
    sideways.save(tmp_path / "d" / "a.jpg", exif=exif)
    dataset = open_dataset(str(tmp_path / "d"), inputs=[("x", (None, 3, None, None), "float32")], preprocessing=Preprocessing())
    assert next(dataset.batches(1)).feeds["x"].shape == (1, 3, 4, 8)


def test_npz_of_pixels_goes_through_the_preprocessing(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), dtype=np.uint8)
    np.savez(tmp_path / "d.npz", x=pixels)
    feeds, _ = joined(open_dataset(str(tmp_path / "d.npz"), inputs=ONE, preprocessing=Preprocessing()))
    np.testing.assert_allclose(feeds["x"], pixels.transpose(0, 3, 1, 2) / 255.0, atol=1e-7)


@pytest.mark.parametrize(("text", "says"), [
    ("size=224", "not understood"), ("sice=1x1", "known: size"), ("size=1x1,size=2x2", "given twice"), ("mean=0/0", "wants 1 or 3"),
    ("colour=gray,mean=1/2/3", "wants 1 or 1"), ("std=0", "above 0"), ("layout=hwc", "known: nchw, nhwc"), ("scale=1/0", "not understood"),
    ("size=0x3", "at least 1"), ("rgb", "cannot read 'rgb'"), ("scale=nan", "above 0"), ("mean=nan", "finite"), ("fit=squash", "stretch, crop"),
])
def test_wrong_preprocessing_says_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_preprocessing(text)


# refusals

def read_all(spec: str, inputs: Inputs, preprocessing: Preprocessing | None = None) -> list[Batch]:
    return list(open_dataset(spec, inputs=inputs, preprocessing=preprocessing).batches(4))


@pytest.mark.parametrize(("arrays", "says"), [
    ({"images": np.zeros((2, 3, 4, 5), np.float32)}, r"no array for the model's input x float32\['\?', 3, 4, 5\]; it holds images float32"),
    ({"x": np.zeros((2, 4, 5, 3), np.float32)}, r"wants samples of shape 3x4x5, got 4x5x3; channels last.*\(0, 3, 1, 2\)"),
    ({"x": np.zeros((2, 3, 4, 6), np.float32)}, "got 3x4x6$"),
    ({"x": np.zeros((2, 3, 4), np.float32)}, "got 3x4$"),
    ({"x": np.zeros((2, 3, 4, 5), np.complex64)}, "wants float32, the data is complex64"),
    ({"x": np.zeros((2, 3, 4, 5), np.float32), "labels": np.zeros(3)}, "x: 2, labels: 3"),
    ({"x": np.zeros((0, 3, 4, 5), np.float32)}, "at least one; got x: 0"),
    ({"x": np.full((2, 3, 4, 5), -1e300)}, "wants float32, and 120 of the float64 values are beyond it, the first -1e.300; scale"),
])
def test_npz_that_does_not_fit(tmp_path: Path, arrays: dict[str, Array], says: str) -> None:
    np.savez(tmp_path / "d.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=says):
        open_dataset(str(tmp_path / "d.npz"), inputs=ONE)


@pytest.mark.parametrize(("values", "says"), [
    (np.array([[0.5]]), "cannot hold"), (np.array([[np.nan]]), "cannot hold"), (np.array([[300]]), r"highest 300"), (np.array([[-1]]), "lowest -1"),
])
def test_values_that_an_integer_input_cannot_hold(tmp_path: Path, values: Array, says: str) -> None:
    np.savez(tmp_path / "d.npz", x=values)
    with pytest.raises(DataError, match=says):
        open_dataset(str(tmp_path / "d.npz"), inputs=[("x", (None, 1), "uint8")])
    np.savez(tmp_path / "d.npz", x=np.array([[255.0]]))
    assert next(open_dataset(str(tmp_path / "d.npz"), inputs=[("x", (None, 1), "uint8")]).batches()).feeds["x"].item() == 255


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "exploded"),)

    bomb = np.array([Bomb()], dtype=object)
    np.savez(tmp_path / "d.npz", x=bomb)
    (tmp_path / "f").mkdir()
    np.save(tmp_path / "f" / "0.npy", bomb)
    for spec in ("d.npz", "f"):
        with pytest.raises(DataError, match="objects in it are refused"):
            read_all(str(tmp_path / spec), ONE)
    assert not (tmp_path / "exploded").exists()


def broken(tmp_path: Path) -> Iterator[tuple[str, str]]:
    folder = tmp_path / "many"
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 truncated")
    yield "bad.npz", "cannot be read as a .npz"
    folder.mkdir()
    yield "many", "no sample in it.*found nothing"
    (folder / "a.csv").write_text("1,2")
    yield "many", r"found 1 x \.csv"
    (folder / "a.png").write_bytes(b"no picture")
    yield "many", "cannot be read as a picture"
    (folder / "class").mkdir()
    np.save(folder / "class" / "b.npy", samples(1)[0])
    yield "many", "sub-folders are classes"
    (folder / "a.png").unlink()
    np.savez(folder / "class" / "b.npz", x=samples(2))
    yield "many", "holds 2 samples"
    with open(tmp_path / "one.npz", "wb") as file:
        np.save(file, samples())
    yield "one.npz", "is one array"
    (tmp_path / "data.csv").write_text("1")
    yield "data.csv", r"is a \.csv file; a data set is"
    yield "missing", "does not exist; a data set is"
    yield "no_such_module_here:make", "no module 'no_such_module_here'"
    yield "os:no_such", "has no function 'no_such'"
    yield "missing.py:make", "there is no file"


def test_every_refusal_says_what_and_how_to_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for spec, says in broken(tmp_path):
        with pytest.raises(InputError, match=says):
            read_all(spec, ONE, Preprocessing())


def test_pictures_without_preprocessing_get_a_suggestion(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((2, 2, 3), np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"perhaps --preprocess size=4x5,colour=rgb,.*layout=nchw"):
        read_all(str(tmp_path), ONE)
    with pytest.raises(DataError, match=r"perhaps --preprocess size=8x9,colour=gray,.*layout=nhwc") as caught:
        read_all(str(tmp_path), [("x", (None, 8, 9, 1), "float32")])
    suggestion = str(caught.value).split("--preprocess ")[1].split(" (")[0]
    batch = read_all(str(tmp_path), [("x", (None, 8, 9, 1), "float32")], parse_preprocessing(suggestion))[0]
    assert batch.feeds["x"].shape == (1, 8, 9, 1)


def test_a_model_with_two_inputs_needs_names(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(2, np.float32))
    with pytest.raises(DataError, match=r"2 inputs \(a, b\); save each sample as a \.npz"):
        read_all(str(tmp_path), TWO)


def test_an_input_without_a_batch_axis_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'rate' is a single number without a batch axis"):
        open_dataset(str(tmp_path), inputs=[*ONE, ("rate", (), "int64")])


def test_limits_below_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="at least 1"):
        open_dataset(str(tmp_path), inputs=ONE, limit=0)
    with pytest.raises(DataError, match="at least 1"):
        take(ArrayDataset({"x": samples()}), 0)
