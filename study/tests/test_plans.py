"""Every plan of the study can be run by `vitreous bench`, and contains all methods that the pages compare."""

from __future__ import annotations

import pytest

from study import names, zebras
from study.run import ORDER, SCRIPTS
from study.tests.made_up import STUDY
from vitreous.bench.plan_check import check
from vitreous.bench.plan_parser import read_plan
from vitreous.bench.work_cells import choose_places, split_plan

PLANS = sorted(path.stem for path in (STUDY / "plans").glob("*.toml"))
DRAWN = [name for name in PLANS if name.startswith("scenes") or name == "beyond-scenes"]
PHOTOGRAPHS = [name for name in PLANS if name not in DRAWN]


def plan_of(name):
    return read_plan(STUDY / "plans" / f"{name}.toml", device="cpu")


def test_every_plan_is_run_and_every_name_has_a_plan():
    assert sorted([*PLANS, *SCRIPTS]) == sorted(ORDER)
    assert len(set(ORDER)) == len(ORDER)


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_plans_on_scenes_can_be_run_anywhere(name):
    plan = plan_of(name)

    assert check(plan) == []
    assert split_plan(plan)
    assert all("mask=evidence" in data.spec for data in plan.datasets)


@pytest.mark.slow
@pytest.mark.parametrize("name", PHOTOGRAPHS)
def test_plans_on_photographs_can_be_run_with_the_assets(name, assets):
    plan = plan_of(name)
    check(plan)

    assert split_plan(plan)
    assert tuple(model.label for model in plan.models) == names.MODELS  # always both
    assert not plan.maps  # no photograph, and nothing that shows one, is kept


@pytest.mark.parametrize("name", ["newer-grid", "beyond"])
def test_no_image_is_both_chosen_by_and_confirmed_on(name, assets):
    plan = plan_of(name)
    chosen_by = plan_of("beyond-choose") if name == "beyond" else plan
    halves = {
        data.part: set(choose_places(data, evaluation))
        for one in (chosen_by, plan)
        for data, evaluation in zip(one.datasets, one.evaluations, strict=True)
        if "val" in data.label
    }

    assert set(halves) == {"1/2", "2/2"}
    assert not halves["1/2"] & halves["2/2"]
    assert all(halves.values())


def test_methods_that_the_pages_compare_are_in_the_plans(assets):
    skipplus, start = (set(plan_of(name).methods) for name in ("skipplus", "skipplus-start"))
    tokentm, tis, grid = (set(plan_of(name).methods) for name in ("tokentm", "tis", "newer-grid"))

    assert {spec for family in names.FAMILIES.values() for spec in family} <= skipplus
    assert {spec for starts in names.STARTS.values() for spec in starts.values()} == start
    assert {*names.ABLATION, *names.VARIANTS} <= tokentm == set(plan_of("tokentm-pets").methods)
    assert names.TIS in tis
    assert grid >= names.PUBLISHED
    assert names.TEMPERED in set(plan_of("beyond").methods)
    assert skipplus == set(plan_of("skipplus-pets").methods)


@pytest.mark.parametrize("name", ["skipplus", "tokentm", "tis", "tis-options", "newer", "beyond", "beyond-choose"])
def test_there_are_pairs_to_compare(name, assets):
    methods = plan_of(name).methods
    found = names.list_pairs(name, methods)

    assert found
    assert all(one in methods and other in methods and one != other for one, other in found)
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("name", [name for name in PLANS if name.startswith("beyond")])
def test_averaged_methods_are_class_specific(name, assets):
    from vitreous.methods.coalition_methods import averaged_method
    from vitreous.methods.spec import resolve

    annealed = [method for method in map(resolve, plan_of(name).methods) if method.name == "anneal"]

    assert annealed
    assert all(averaged_method(method.options.get("of", "temper")).class_specific for method in annealed)


def test_methods_of_the_zebra_example_exist():
    from vitreous.methods.spec import resolve

    assert [resolve(spec).spec for spec in zebras.METHODS] == list(zebras.METHODS)


def test_ours_are_compared_with_others_and_all_with_tis():
    methods = plan_of("beyond-scenes").methods
    found = set(names.list_pairs("beyond-scenes", methods))

    assert {one for one, other in found if other == "tis"} == set(methods) - {"tis"}
    assert {("temper", other) for other in methods if not names.is_ours(other)} <= found
    assert {("fuse", "temper"), ("anneal", "fuse")} <= found
    assert ("genatt", "tokentm") not in found


def test_selected_variants_are_compared_with_every_alternative_of_the_plan(assets):
    methods = set(plan_of("beyond-choose").methods)
    said = [*names.TEMPER_LESS.values(), *names.FUSE_LESS.values(), *names.ANNEAL_LESS.values()]

    assert {one for pair in said for one in pair} <= methods
    assert set(names.QK.values()) <= methods
    assert names.is_compared("beyond", "faithfulness")
    assert not names.is_compared("beyond", "deletion_aopc")
