"""`vitreous.maps.read`: stored maps as attributions, by key, in batches, and from files of earlier versions."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch

import vitreous
from tests.mapping.images import encoded_images, run, write_folder, write_tars
from vitreous import maps
from vitreous.core.errors import DataError
from vitreous.mapping.export import sort_shards


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> maps.MapFolder:
    root = tmp_path_factory.mktemp("stored")
    spec = write_folder(root / "images", encoded_images(7))
    run(spec, root / "maps", methods=("gradcam", "decompx+skipplus"), batch_size=1)
    return maps.read(root / "maps")


@pytest.fixture(scope="module")
def expected() -> vitreous.Attribution:
    good = [data for number, data in enumerate(encoded_images(7)) if number != 5]
    return vitreous.explain("scenes", good, method="decompx+skipplus", batch_size=1)


def test_rows_are_attributions(stored, expected):
    rows = list(stored.rows(method="decompx+skipplus"))
    joined = torch.cat([row.attribution.patches for row in rows])

    assert len(stored) == 14  # with the two rows of the broken image
    assert [row.key for row in rows] == [f"00{number}.png" for number in (0, 1, 2, 3, 4, 6)]
    assert torch.allclose(joined, expected.patches, rtol=0, atol=2**-10 * float(expected.patches.abs().max()))
    assert [row.target for row in rows] == expected.targets.tolist()
    first = rows[0].attribution
    assert (first.method, first.layout, first.names) == ("decompx+skipplus", expected.layout, expected.names[:1])
    assert first.provenance["model"] == expected.provenance["model"]
    assert first.preprocess == expected.preprocess
    assert first.pixels().shape == (1, 112, 112)


def test_iterating_batches_keys_and_failures(stored):
    assert [attribution.method for attribution in stored] == ["gradcam", "decompx+skipplus"] * 6
    batches = list(stored.batches(3, method="gradcam"))
    assert sum(map(len, batches)) == 6
    assert max(map(len, batches)) <= 3
    assert [row.attribution.method for row in stored["004.png"]] == ["gradcam", "decompx+skipplus"]
    assert list(stored.keys()) == [f"00{number}.png" for number in range(7)]
    assert [key for key, _ in stored.failures()] == ["005.png"] * 2
    with pytest.raises(KeyError):
        stored["005.png"]
    with pytest.raises(DataError, match="maps have no column 'colour'; they have key, index"):
        next(stored.rows(colour=1))


def test_stored_maps_can_be_measured(stored):
    vit = vitreous.load("scenes")
    row = next(stored.rows(method="gradcam"))
    result = vitreous.evaluate(vit, [encoded_images(1)[0]], row.attribution, "sparseness")
    assert result.scores.shape == (1,)


def test_a_folder_is_measured_with_the_images_that_were_explained(tmp_path):
    """Maps of several methods, targets and tar files meet their own images and labels, also of a part of the dataset."""
    spec = write_tars(tmp_path / "tars", encoded_images(9), per_tar=4)
    run(spec, tmp_path / "maps", methods=("gradcam", "random"), targets="top 2", images=7)
    stored, vit = maps.read(tmp_path / "maps"), vitreous.load("scenes")

    metric = "deletion_aopc(ratios=(0.3, 0.7))"

    scored = list(stored.evaluate(vit, metric, batch_size=5))
    assert [row.key for row, _ in scored] == [row.key for row in stored.rows()]
    for (row, score), (_, sample) in list(zip(scored, stored.samples(), strict=True))[::5]:
        image = vit.preprocess(sample.image)[None]
        expected = vitreous.evaluate(vit, image, row.attribution, metric).scores
        assert score == pytest.approx(float(expected), abs=1e-4)
        assert (sample.key, sample.label) == (row.key, row.label)
    few = [row.role for row, _ in stored.evaluate("scenes", "sparseness", role="top 1", method="random")]
    assert few == ["top 1"] * 6

    other = write_tars(tmp_path / "other" / "tars", encoded_images(3), per_tar=2)
    with pytest.raises(DataError, match="has no 't0/002' at the place where it was explained"):
        list(stored.samples(other))
    sort_shards(tmp_path / "maps")
    with pytest.raises(DataError, match="does not say where its images are"):
        next(maps.read(tmp_path / "maps" / "_sorted").samples())


def test_a_folder_without_maps_gives_an_error_message(tmp_path):
    with pytest.raises(DataError, match=r"holds no maps; `vitreous map DATASET"):
        maps.read(Path(tmp_path))


def test_an_undefined_map_is_read_with_its_caution(stored):
    table = stored.dataset.to_table().filter(pc.field("error").is_null()).slice(0, 1)
    column = table.schema.get_field_index("scale")
    undefined = table.set_column(column, "scale", pa.array([float("nan")], table.schema.field("scale").type))

    attribution = maps.as_attribution(undefined, stored.about)
    assert not attribution.native_maps.isfinite().any()
    assert "undefined" in attribution.provenance["caveat"]
    assert "undefined" not in maps.as_attribution(table, stored.about).provenance.get("caveat", "")
