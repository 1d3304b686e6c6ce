"""The script that measures error bars and ceilings, and the tables of its rows."""

from __future__ import annotations

import torch

import vitreous
from study import error_ceilings, error_fits, error_maps, error_results, fill_default
from study.pages import Results
from tests.models.families import pictures, seen
from vitreous.capture.probe import Probe
from vitreous.methods.additive_model import deviation_prior

ROWS = """\
model,dataset,picture,method,metric,value
{rows}
"""


def test_fits_of_fewer_samples_are_those_of_the_method(monkeypatch):
    monkeypatch.setattr(error_fits, "SIZES", (32,))
    vit, targets = seen("vit-even"), torch.tensor([3, 1])
    found = error_fits.fit_maps(vit, pictures(), targets, "logit", "temper", 64)
    assert len(found) == 2
    for spec, attribution in found.items():
        again = vitreous.explain(vit, pictures(), targets, spec)
        torch.testing.assert_close(attribution.patches, again.patches)
        torch.testing.assert_close(attribution.stderr, again.stderr)


def test_variants_of_the_fit_share_its_subsets(monkeypatch):
    monkeypatch.setattr(error_fits, "SIZES", (32,))
    vit, images, targets = seen("vit-even"), pictures(), torch.tensor([3, 1])
    given = error_fits.draw_subsets(vit, images, targets, 32)
    (method,) = error_fits.fit_maps(vit, images, targets, "logit", "temper", 32).values()
    monkeypatch.setitem(error_fits.SHRINKAGE, "own", deviation_prior(12))
    same, none = error_fits.fit_maps(vit, images, targets, "logit", "temper", 32, given, ("own", "fixed100000")).items()
    torch.testing.assert_close(same[1].patches, method.patches)
    assert same[0].endswith("| own")
    prior = vitreous.explain(vit, images, targets, "temper(question='logit')").patches
    for found, map_of_prior in zip(none[1].patches, prior, strict=True):  # no deviations: the prior map up to a factor
        assert torch.corrcoef(torch.stack([found, map_of_prior]))[0, 1].abs() > 0.99
    for prior, cover in (("fuse as two maps", "features"), ("fuse", "plain"), ("fuse", "space")):
        (found,) = error_fits.fit_maps(vit, images, targets, "probability", prior, 32, given, ("log",), cover).values()
        assert found.patches.isfinite().all()


def test_greedy_orders_take_the_best_next_step():
    probe = Probe(seen("vit-even"), pictures()[:1], torch.tensor([3]), "probability")
    for removing in (True, False):
        (rank,) = error_ceilings.rank_greedily(probe, removing).tolist()
        assert sorted(rank) == list(range(12))
        keep = torch.full((1, 1, 12), removing)
        for place in range(3):
            scores = {}
            for patch in range(12):
                if rank[patch] >= place:
                    option = keep.clone()
                    option[..., patch] = not removing
                    scores[patch] = probe.score(option).item()
            best = min(scores, key=scores.__getitem__) if removing else max(scores, key=scores.__getitem__)
            assert rank[best] == place
            keep[..., best] = not removing


def test_specs_are_shortened_by_defaults():
    short = error_results.shorten_spec
    assert short("bayes(samples=128, prior='fuse', question='probability')") == "bayes(samples=128)"
    assert (
        short("bayes(samples=128, prior='temper', question='logit')")
        == "bayes(samples=128, prior='temper', question='logit')"
    )
    assert short("decompx(question='logit')+plus") == "decompx+plus"
    assert short("temper(question='probability')") == "temper"
    assert short("greedy deletion") == "greedy deletion"


def test_methods_are_averaged_over_common_images(tmp_path):
    path = tmp_path / "error-bars-scenes.csv"
    rows = [
        "Scenes,single,a,temper,ap,0.5",
        "Scenes,single,b,temper,ap,0.7",
        "Scenes,single,a,random,ap,0.1",
        "Scenes,single,a,bayes | log,ap,0.1",
    ]
    path.write_text(ROWS.format(rows="\n".join(rows)))
    (sheet,) = error_results.read_sheets([path])
    assert (sheet.methods, sheet.images) == (("temper", "random"), ("a", "b"))
    assert error_results.compute_effect(sheet, "temper", "random").effect == 0.4
    (whole,) = error_results.read_sheets([path], common=True)
    assert (whole.images, whole.scores.tolist()) == (("a",), [[0.5], [0.1]])
    assert "bayes [log]" in error_results.read_sheets([path], every=True)[0].methods


def test_tables_of_shards_are_read_together(tmp_path):
    for shard, picture, value in ((1, "a", 0.2), (2, "b", 0.6)):
        rows = f"ViT-Tiny,pets,{picture},temper,ap,{value}"
        (tmp_path / f"error-bars-photographs-ViT-Tiny-{shard}-of-2.csv").write_text(ROWS.format(rows=rows))
    assert error_results.measure_errors(tmp_path, tmp_path / "results") == ["photographs"]
    (figure,) = Results(tmp_path / "results").figures("error-bars-photographs")
    assert (figure.n, figure.mean) == (2, 0.4)


def test_shards_share_the_batches_of_photographs(monkeypatch):
    monkeypatch.setattr(error_maps, "open_dataset", lambda spec: spec)
    monkeypatch.setattr(error_maps, "batches", lambda dataset, preprocess, places, size: [places])
    vit, places = seen("vit-even"), tuple(range(10, 21))
    shards = [next(error_maps.read_places("pets", vit, places, 4, f"{number}/2")) for number in (1, 2)]
    assert shards == [[10, 11, 12, 13, 18, 19, 20], [14, 15, 16, 17]]
    assert [*error_maps.read_places("pets", vit, places, 4)] == [list(places)]


def test_rows_that_were_not_measured_again_are_kept(tmp_path):
    results = tmp_path / "results"
    for value, models in ((0.1, ("ViT-Tiny", "DeiT-Tiny")), (0.3, ("ViT-Tiny",))):
        rows = [f"{model},pets,a,tis(masks=64),ap,{value}" for model in models]
        (tmp_path / "error-bars-masks.csv").write_text(ROWS.format(rows="\n".join(rows)))
        error_results.measure_errors(tmp_path, results)
    means = {row.model: row.mean for row in Results(results).figures("error-bars-masks")}
    assert means == {"ViT-Tiny": 0.3, "DeiT-Tiny": 0.1}


def test_the_default_has_the_best_worst_case(tmp_path):
    values = {  # faithfulness and AP on photographs; class discrimination and negative objects on Scenes; the stamp in two models
        "random": (0.5, 0.4, 0.5, 0.5, 0.5, 0.5),
        "temper": (1.5, 0.6, 1.0, 0.4, 1.0, 0.4),
        "temper(question='logit')": (1.4, 0.9, 0.8, 0.0, 1.0, 0.2),
    }
    photographs, scenes = [], []
    for method, (faithful, ap, apart, blue, used, unused) in values.items():
        name = f'"{method}"'
        photographs += [f"ViT-Tiny,pets,a,{name},faithfulness,{faithful}", f"ViT-Tiny,pets,a,{name},ap,{ap}"]
        scenes += [
            f"Scenes,pair,a,{name},class_discrimination,{apart}",
            f"Scenes,single,a,{name},object_negative,{blue}",
        ]
        scenes += [
            f"scenes-biased,shortcut,a,{name},stamp_above_thing,{used}",
            f"scenes,shortcut,a,{name},stamp_above_thing,{unused}",
        ]
    for part, rows in (("photographs", photographs), ("scenes", scenes)):
        (tmp_path / f"error-bars-{part}.csv").write_text(ROWS.format(rows="\n".join(rows)))
    assert error_results.measure_errors(tmp_path, tmp_path / "results") == ["photographs", "scenes"]
    lines = fill_default.write_default(Results(tmp_path / "results")).splitlines()[2:]
    assert [line.split(" | ")[0].strip("| ") for line in lines] == ["temper(question='logit')", "temper"]
    assert "0.60 | class discrimination, pair" in lines[0]
    assert "0.40 | AP, pets" in lines[1]
