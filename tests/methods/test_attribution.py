"""Attributions as files, tables and maps at the size of the original image."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from tests.cases import each
from vitreous import Attribution, DataError, Preprocess, ShapeError
from vitreous.methods.attribution_files import TENSORS, metadata
from vitreous.methods.map_arrays import check_size
from vitreous.testing import tiny_vits


@pytest.fixture(scope="module")
def vit():
    return replace(tiny_vits(torch.float32)["class token"], preprocess=Preprocess.plain(32))


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def black_box():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 8, 8), torch.nn.Flatten(), torch.nn.Linear(64, 3))
    return vitreous.wrap(module, black_box=True, preprocess=Preprocess.plain(32))


# ── files ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("file", ["map.safetensors", "map.npz", "map.NPZ"])
@pytest.mark.parametrize("method", ["decompx", "rise(masks=8)"])
def test_everything_but_the_images_survives_a_file(vit, tmp_path, file, method):
    attribution = vitreous.explain(vit, [noise(60, 40), noise(33, 90)], [[1, 2], [0, 1]], method)

    path = attribution.save(tmp_path / "deep" / file)
    back = Attribution.load(path)

    assert path == tmp_path / "deep" / file
    for name in TENSORS:
        own, read = getattr(attribution, name), getattr(back, name)
        assert (own is None or name == "images") == (read is None), name
        if name == "images":
            continue
        assert own is None or (torch.equal(own, read) and own.dtype == read.dtype), name
    for name in ("layout", "method", "native", "signed", "names", "preprocess"):
        assert getattr(back, name) == getattr(attribution, name), name
    assert dict(back.provenance) == dict(attribution.provenance)
    assert back.originals is None


def stored_bytes(path) -> bytes:
    """Everything in a file, without the compression of the archive."""
    if path.suffix != ".npz":
        return path.read_bytes()
    with ZipFile(path) as archive:
        return b"".join(archive.read(name) for name in archive.namelist())


@pytest.mark.parametrize("file", ["map.safetensors", "map.npz"])
def test_a_file_contains_the_models_input_only_where_that_was_requested(vit, tmp_path, file):
    attribution = vitreous.explain(vit, noise(60, 40), [[1, 2]], "ixg")
    pixels = attribution.images[0, 0, :4].contiguous().numpy().tobytes()

    assert pixels not in stored_bytes(attribution.save(tmp_path / file))
    path = attribution.save(tmp_path / file, images=True)
    assert pixels in stored_bytes(path)
    assert torch.equal(Attribution.load(path).images, attribution.images)

    with pytest.raises(DataError, match=r"a \.npy file holds maps alone"):
        attribution.save(tmp_path / "map.npy", images=True)
    with pytest.raises(ShapeError, match=r"no images to store; attribution\.with_images\(image\)\.save"):
        replace(attribution, images=None).save(tmp_path / file, images=True)


def test_the_image_of_a_loaded_attribution_is_given_for_drawing(vit, tmp_path):
    image = noise(60, 40)
    attribution = vitreous.explain(vit, image, [[1, 2]], "ixg")
    back = Attribution.load(attribution.save(tmp_path / "map.npz"))
    image.save(tmp_path / "image.png")

    for given in (image, tmp_path / "image.png", np.asarray(image), [image]):
        complete = back.with_images(given)
        assert torch.equal(complete.images, attribution.images)
        assert [original.tobytes() for original in complete.originals] == [image.tobytes()] * 2
        assert torch.equal(complete.pixels("original").nan_to_num(9), attribution.pixels("original").nan_to_num(9))
    assert torch.equal(back.with_images(attribution.images[:1]).images, attribution.images)
    assert back.with_images(attribution.images).originals is None
    note = "drawn without the image; attribution.with_images(image) adds it"
    texts = [" ".join(text.get_text() for text in shown.plot().texts) for shown in (back, back.with_images(image))]
    assert [note in " ".join(text.split()) for text in texts] == [True, False]
    assert [note in shown._repr_html_() for shown in (back, back.with_images(image))] == [True, False]


@each(
    "given, message",
    [
        ([1, 2, 3], r"3 images do not fit 2 rows"),
        ([], r"no images were given"),
        (torch.zeros(3, 16, 16), r"the model's input has 32 x 32 pixels here, not \[\(3, 16, 16\)\]"),
    ],
)
def test_images_that_do_not_fit_are_refused(vit, given, message):
    attribution = vitreous.explain(vit, noise(60, 40), [[1, 2]], "ixg")
    images = [noise(60, 40)] * 3 if isinstance(given, list) and given else given
    with pytest.raises(ShapeError, match=message):
        attribution.with_images(images)
    two = vitreous.explain(vit, [noise(60, 40), noise(33, 90)], [[1, 2], [1, 2]], "ixg")
    assert len(two.with_images([noise(60, 40), noise(33, 90)]).originals) == 4
    with pytest.raises(ShapeError, match="the rows are about more than 1 image: their logits differ"):
        two.with_images(noise(60, 40))
    with pytest.raises(ShapeError, match="the geometry of the preprocessing is not known"):
        replace(attribution, preprocess=None).with_images(noise(60, 40))


def test_a_black_box_and_half_precision_survive_a_file(black_box, tmp_path):
    attribution = vitreous.explain(black_box, noise(60, 40), 1, "rise(masks=8)")
    attribution = replace(attribution, native_pixels=attribution.native_pixels.bfloat16())

    for file in ("map.safetensors", "map.npz"):
        back = Attribution.load(attribution.save(tmp_path / file))
        assert back.patches is None
        assert back.native_pixels.dtype == torch.bfloat16
        assert torch.equal(back.native_pixels, attribution.native_pixels)


def test_an_npz_file_is_read_without_vitreous(vit, tmp_path):
    attribution = vitreous.explain(vit, noise(60, 40), 1, "decompx")

    with np.load(attribution.save(tmp_path / "map.npz"), allow_pickle=False) as file:
        about = json.loads(str(file["vitreous"]))
        assert np.array_equal(file["patches"], attribution.patches.numpy())

    assert about["method"] == "decompx"
    assert about["layout"] == {"grid": [4, 4], "patch": [8, 8], "prefix": 1}


def test_an_npy_file_holds_the_maps_alone_and_is_not_read_back(vit, tmp_path):
    attribution = vitreous.explain(vit, noise(60, 40), [[1, 2]], "decompx")

    path = attribution.save(tmp_path / "map.npy")

    assert np.array_equal(np.load(path, allow_pickle=False), attribution.maps().numpy())
    with pytest.raises(
        DataError, match=r"map\.npy' holds maps alone, without layout, method and classes; read it with"
    ):
        Attribution.load(path)


@pytest.mark.parametrize("file", ["map", "map.png", "map.pt", "map.npz.part"])
def test_a_name_of_another_format_is_refused_and_nothing_is_written(vit, tmp_path, file):
    attribution = vitreous.explain(vit, noise(60, 40), 1, "ixg")

    with pytest.raises(
        DataError, match=rf"'{file}' is no format of attributions; save as \.safetensors, \.npz or \.npy"
    ):
        attribution.save(tmp_path / file)

    assert not list(tmp_path.iterdir())
    assert Attribution.load(attribution.save(tmp_path / file, format="npz")).method == "ixg"
    with pytest.raises(DataError, match=r"format='zip' is no format"):
        attribution.save(tmp_path / "map.npz", format="zip")


def test_an_npz_file_that_is_no_attribution_is_refused(tmp_path):
    np.savez(tmp_path / "other.npz", patches=np.zeros(3))
    np.savez(tmp_path / "pickled.npz", vitreous=np.array([object()], dtype=object))
    np.savez(tmp_path / "more.npz", vitreous=np.array('{"dtypes": {"patches": "load"}}'), patches=np.zeros(3))
    np.savez(tmp_path / "list.npz", vitreous=np.array("[]"))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "other.npz").read_bytes()[:60])

    for file in ("other.npz", "pickled.npz", "more.npz", "list.npz", "cut.npz"):
        with pytest.raises(DataError, match=f"{file}' is not an attribution"):
            Attribution.load(tmp_path / file)
    with pytest.raises(DataError, match=r"no file .*missing\.npz"):
        Attribution.load(tmp_path / "missing.npz")


def test_a_file_without_preprocessing_from_an_earlier_version_is_read(vit, tmp_path):
    from safetensors.torch import save_file

    attribution = vitreous.explain(vit, noise(60, 40), 1, "ixg")
    about = {key: value for key, value in metadata(attribution).items() if key != "preprocess"}
    tensors = {"patches": attribution.patches, "targets": attribution.targets}
    save_file(tensors, tmp_path / "old.npz", metadata={"vitreous": json.dumps(about)})  # under any name

    back = Attribution.load(tmp_path / "old.npz")

    assert torch.equal(back.patches, attribution.patches)
    assert back.preprocess is None


# ── the size of the original image ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("method", ["decompx", "rise(masks=8)"])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_maps_come_at_the_size_of_the_original_image(vit, method, mode):
    attribution = vitreous.explain(vit, noise(60, 40), [[1, 2]], method)  # the model sees the middle 40x40

    maps = attribution.pixels("original", mode)

    assert maps.shape == (2, 40, 60)
    assert maps[:, :, :10].isnan().all()
    assert maps[:, :, 50:].isnan().all()
    assert not maps[:, :, 10:50].isnan().any()
    if mode == "nearest" and method == "decompx":
        assert torch.equal(maps[:, ::10, 10:50:10], attribution.maps())
    if mode == "bilinear" and method == "decompx":
        restored = vit.preprocess.restore(attribution.maps(), (40, 60))
        torch.testing.assert_close(maps, restored, rtol=0, atol=0, equal_nan=True)


def test_original_images_of_several_sizes_give_a_list(vit):
    attribution = vitreous.explain(vit, [noise(60, 40), noise(33, 90)], 1, "ixg")

    maps = attribution.pixels("original")

    assert isinstance(maps, list)
    assert [tuple(one.shape) for one in maps] == [(40, 60), (90, 33)]


def test_a_black_box_gives_maps_at_the_original_size(black_box):
    attribution = vitreous.explain(black_box, noise(60, 40), 1, "rise(masks=8)")

    maps = attribution.pixels("original")

    assert maps.shape == (1, 40, 60)
    assert torch.equal(maps.isnan(), (torch.arange(60) < 10).logical_or(torch.arange(60) >= 50).expand(1, 40, 60))


def test_without_original_images_that_size_is_refused(vit, tmp_path):
    from_tensor = vitreous.explain(vit, torch.randn(1, 3, 32, 32), 1, "ixg")
    from_file = Attribution.load(vitreous.explain(vit, noise(60, 40), 1, "ixg").save(tmp_path / "map.npz"))

    for attribution in (from_tensor, from_file):
        with pytest.raises(ShapeError, match=r"no original images here: they were given as tensors, or .* a file"):
            attribution.pixels("original")
    assert from_file.preprocess.restore(from_file.maps(), (40, 60)).shape == (1, 40, 60)
    with pytest.raises(ShapeError, match=r"size='full'; give 'original' or \(height, width\)"):
        from_file.pixels("full")


def test_sizes_of_numpy_are_sizes():
    check_size((np.int64(4), np.int32(6)))
    for size in ((4.0, 6.0), (0, 6), (4,), 4):
        with pytest.raises(ShapeError, match=r"\(height, width\) in pixels would work"):
            check_size(size)


def test_rows_are_iterated(vit):
    attribution = vitreous.explain(vit, noise(60, 40), [[1, 2]], "ixg")

    assert isinstance(
        attribution, Iterable
    )  # not by the protocol of sequences alone, which type checkers do not accept
    assert [(len(row), *row.targets.tolist()) for row in attribution] == [(1, 1), (1, 2)]


# ── tables ───────────────────────────────────────────────────────────────────────────────────────


def test_a_table_has_one_line_per_map_and_patch(vit):
    pandas = pytest.importorskip("pandas")
    attribution = vitreous.explain(vit, [noise(60, 40), noise(33, 90)], [[1, 2], [0, 1]], "decompx")

    table = attribution.to_pandas()

    assert isinstance(table, pandas.DataFrame)
    assert list(table.columns) == ["method", "row", "target", "name", "y", "x", "score"]
    assert len(table) == 4 * 16
    assert table.groupby("row")["target"].first().tolist() == [1, 2, 0, 1]
    assert set(table["name"]) == set(attribution.names)
    line = table[(table["row"] == 2) & (table["y"] == 1) & (table["x"] == 3)]
    assert line["score"].item() == attribution.maps()[2, 1, 3].item()
    assert np.array_equal(table["score"].to_numpy(), attribution.maps().numpy().ravel())


def test_without_pandas_a_table_is_refused_with_a_message(vit, monkeypatch):
    attribution = vitreous.explain(vit, noise(60, 40), 1, "ixg")
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(DataError, match="to_pandas needs pandas: pip install pandas"):
        attribution.to_pandas()


# ── arrays as images ─────────────────────────────────────────────────────────────────────────────


def test_arrays_of_eight_bits_are_images(vit):
    image = noise(60, 40)
    colours = np.asarray(image)
    tensor = torch.from_numpy(colours.copy())
    own = vitreous.explain(vit, image, 1, "ixg")

    for given in (
        colours,
        colours[None],
        [colours],
        colours.transpose(2, 0, 1),
        np.concatenate([colours, np.full((40, 60, 1), 255, np.uint8)], -1),
        tensor,
        tensor.permute(2, 0, 1),
        tensor.permute(2, 0, 1)[None],
        [tensor.permute(2, 0, 1)],
    ):
        attribution = vitreous.explain(vit, given, 1, "ixg")
        assert torch.equal(attribution.patches, own.patches)
        assert attribution.originals[0].tobytes() == image.tobytes()
    assert vitreous.explain(vit, np.stack([colours] * 3), 1, "ixg").patches.shape == (3, 16)
    assert vitreous.explain(vit, [colours, image, np.zeros((9, 8), np.uint8)], 1, "ixg").patches.shape == (3, 16)


def test_grey_and_transparent_arrays_open_as_their_files_do(vit):
    grey = np.asarray(noise(60, 40))[..., 0]
    clear = np.zeros((40, 60, 4), np.uint8)

    for given in (grey, grey[..., None], torch.from_numpy(grey.copy()), torch.from_numpy(grey.copy())[None]):
        (picture,) = vitreous.explain(vit, given, 1, "ixg").originals
        assert np.array_equal(np.asarray(picture), np.repeat(grey[..., None], 3, -1))
    (picture,) = vitreous.explain(vit, clear, 1, "ixg").originals
    assert np.asarray(picture).min() == 255


def test_an_array_of_three_channels_first_and_last_is_read_as_its_library_has_it(vit):
    colours = np.random.default_rng(0).integers(0, 256, (3, 9, 3), dtype=np.uint8)

    (from_array,) = vitreous.explain(vit, colours, 1, "ixg").originals
    (from_tensor,) = vitreous.explain(vit, torch.from_numpy(colours), 1, "ixg").originals

    assert (from_array.size, from_tensor.size) == ((9, 3), (3, 9))


# ── names ────────────────────────────────────────────────────────────────────────────────────────


def test_the_packages_names_are_its_public_interface():
    assert dir(vitreous) == sorted(vitreous.__all__)
    assert {"Preprocess", "explain", "draw", "scenes"} <= set(dir(vitreous))
    assert not {"annotations", "import_module", "TYPE_CHECKING", "Any", "HOMES", "HOME_OF"} & set(dir(vitreous))
    assert all(getattr(vitreous, name) is not None for name in dir(vitreous))
