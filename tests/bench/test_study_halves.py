"""Disjoint parts of a dataset for selection and confirmation, and weights in the assets."""

from __future__ import annotations

import pytest

from tests.bench.fixture import small_plan
from vitreous.bench.plan import to_toml
from vitreous.bench.plan_check import check
from vitreous.bench.plan_parser import read_plan
from vitreous.bench.work_cells import choose_places, split_plan
from vitreous.core.errors import SpecError

SPEC = "scenes:single?count=21"


def halves(**changes):
    data = [{"spec": SPEC, "label": part, "part": part} for part in ("1/2", "2/2")]
    plan = small_plan(datasets=data, **changes)
    return plan, [choose_places(*pair) for pair in zip(plan.datasets, plan.evaluations, strict=True)]


def test_parts_are_a_partition_of_the_images():
    plan, (first, second) = halves()

    assert (first, second) == (tuple(range(0, 21, 2)), tuple(range(1, 21, 2)))
    assert sorted(place for cell in split_plan(plan) for place in cell.places) == list(range(21))


def test_fewer_images_of_a_part_are_the_first_of_more():
    _, few = halves(images=4)
    _, many = halves(images=9)

    assert [len(one) for one in few] == [4, 4]
    assert [one[:4] for one in many] == few
    assert all(place % 2 == half for half, places in enumerate(many) for place in places)


def test_without_a_part_nothing_changes():
    plan = small_plan(datasets=[SPEC], images=5)

    assert plan.datasets[0].part == ""
    same = small_plan(datasets=[{"spec": SPEC}], images=5)
    assert choose_places(plan.datasets[0], plan.evaluations[0]) == choose_places(same.datasets[0], same.evaluations[0])


def test_a_part_is_written_and_read_back(tmp_path):
    plan, _ = halves()
    file = tmp_path / "plan.toml"
    file.write_text(to_toml(plan))

    assert read_plan(file).datasets == plan.datasets
    assert read_plan(file).run == plan.run


@pytest.mark.parametrize("part", ["3/2", "0/2", "half", 2])
def test_invalid_parts_are_refused(part):
    with pytest.raises(SpecError, match=r"part = .* is not understood; write i/n with i from 1 to n"):
        small_plan(datasets=[{"spec": SPEC, "part": part}])


@pytest.mark.slow
def test_more_images_than_a_part_has_are_refused():
    plan, _ = halves(images=10)
    with pytest.raises(SpecError, match=r"part 2/2 of scenes has 10 images, so 11 cannot be chosen"):
        check(small_plan(datasets=[{"spec": SPEC, "part": "2/2"}], images=11))
    assert check(plan) == []


def test_weights_may_be_in_the_assets(tmp_path, monkeypatch):
    (tmp_path / "own.safetensors").write_bytes(b"")
    model = {"name": "scenes", "checkpoint": "assets:own.safetensors"}
    monkeypatch.setenv("VITREOUS_ASSETS", str(tmp_path))
    assert small_plan(models=[model]).models[0].checkpoint == str(tmp_path / "own.safetensors")

    monkeypatch.delenv("VITREOUS_ASSETS")
    with pytest.raises(SpecError, match="VITREOUS_ASSETS names; it is not set"):
        small_plan(models=[model])
