"""The endpoints return the results of the library."""

from __future__ import annotations

import json
import math
from base64 import b64decode
from dataclasses import replace
from hashlib import sha256
from io import BytesIO
from typing import NoReturn
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from tests.web.conftest import SUBJECT, png
from vitreous.core.errors import ShapeError
from vitreous.models.image_input import Preprocess
from vitreous.web import render
from vitreous.web.class_search import find_classes
from vitreous.web.service import ExplainPayload, explain_layers


@pytest.fixture(scope="module")
def scene():
    return vitreous.scenes.draw("pair", seed=1, index=6)


@pytest.fixture(scope="module")
def vit():
    return vitreous.load("scenes")


def close(values, expected, tolerance=1e-5):
    expected = torch.as_tensor(expected).double()
    torch.testing.assert_close(torch.tensor(values, dtype=torch.float64), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.slow
def test_prediction_without_patches(client, vit, scene):
    removed = [3, 77, 100, 195]
    said = client.post("/api/prediction", json={**SUBJECT, "removed": [*removed, 3]}).json()

    keep = torch.ones(1, 1, 196, dtype=torch.bool)
    keep[0, 0, removed] = False
    probe = vitreous.Probe(vit, vit.preprocess.batch([Image.fromarray(scene.image)]))
    expected = probe.logits(keep)[0, 0].softmax(-1)
    close(said["probabilities"], expected)
    assert [one["index"] for one in said["top"]] == expected.topk(5).indices.tolist()
    assert [one["name"] for one in said["top"]] == [vit.classes[one["index"]] for one in said["top"]]
    assert (said["kept"], said["patches"]) == (192, 196)


@pytest.mark.parametrize("method", ["decompx+skipplus", "rollout", "genatt@libra+plus", "ig(steps=2)"])
def test_maps_are_the_library_s_own(client, vit, scene, method):
    found = client.post("/api/explain", json={**SUBJECT, "method": method, "targets": [6, 15]}).json()

    expected = vitreous.explain(vit, Image.fromarray(scene.image), [[6, 15]], method, "probability")
    assert found["method"] == expected.method
    assert found["class_specific"] == (method != "rollout")
    for row, one in enumerate(found["maps"]):
        close(one["scores"], expected.patches[row])
        assert one["name"] == vit.classes[one["target"]]
        assert set(one["evidence"]) == {"peak", "precision"}
        if method.startswith("ig"):
            data = np.frombuffer(b64decode(one["pixels"]["data"]), "<f4")
            close(data, expected.native_pixels[row].flatten())
        else:
            assert one["pixels"] is None


@pytest.mark.slow
def test_a_curve_is_every_mask_alone(client, vit, scene):
    found = client.post("/api/curve", json={**SUBJECT, "method": "decompx+skipplus", "target": 6}).json()

    picture = Image.fromarray(scene.image)
    scores = vitreous.explain(vit, picture, [[6]], "decompx+skipplus", "probability").patches[0]
    slow = vitreous.load("scenes")
    slow.module.double()
    probe = vitreous.Probe(slow, slow.preprocess.batch([picture]).double())
    assert found["order"] == sorted(range(196), key=lambda patch: (-float(scores[patch]), patch))
    counts = [step["count"] for step in found["deletion"]]
    assert counts[0] == 0
    assert counts[-1] == 196
    assert counts == sorted(set(counts))
    for at in (0, 3, 12, 25, len(counts) - 1):
        for side, kept in (("deletion", found["order"][counts[at] :]), ("insertion", found["order"][: counts[at]])):
            keep = torch.zeros(1, 1, 196, dtype=torch.bool)
            keep[0, 0, kept] = True
            said = probe.logits(keep)[0, 0].softmax(-1)
            assert found[side][at]["probability"] == pytest.approx(float(said[6]), abs=1e-5)
            assert found[side][at]["top"][0]["index"] == int(said.argmax())
            assert len(found[side][at]["top"]) == 1


@pytest.mark.slow
def test_ties_are_ordered_and_areas_computed_as_metrics_do(client, vit, scene, monkeypatch):
    """A constant map has no order of its own: `vitreous.metrics` draws one from the image's content."""
    from vitreous.metrics.order import area_under, patch_ranks

    service = client.app.state.service
    image = vit.preprocess.batch([Image.fromarray(scene.image)])
    attribution = vitreous.explain(vit, image, [[6]], "genatt", "probability")
    constant = replace(attribution, patches=torch.ones_like(attribution.patches))
    monkeypatch.setattr(service, "maps", lambda payload: [constant])
    curve = service.curve(ExplainPayload("scenes", "pair-1-6", "genatt", (6,), "probability"))

    probe = vitreous.Probe(vit, image, torch.tensor([[6]]), "probability")
    assert curve.order == patch_ranks(constant, probe)[0].argsort().tolist()
    assert curve.order != list(range(196))
    shares = [point.count / 196 for point in curve.deletion]
    probability = torch.tensor([[point.probability for point in side] for side in (curve.deletion, curve.insertion)])
    close([curve.deletion_area, curve.insertion_area], area_under(probability.double(), shares, "normalised"))
    undefined = replace(attribution, patches=torch.full_like(attribution.patches, torch.nan))
    monkeypatch.setattr(service, "maps", lambda payload: [undefined])
    with pytest.raises(ShapeError, match="no order"):
        service.curve(ExplainPayload("scenes", "pair-1-6", "genatt", (6,), "probability"))


# ── cropping ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("size", "preprocess", "seen", "sentence"),
    [
        ((100, 200), Preprocess.plain(64), 0.5, "cuts off 25 % of its width on the left and right each."),
        ((300, 100), Preprocess.plain(64), 1 / 3, "cuts off 33 % of its height on the top and bottom each."),
        ((64, 64), Preprocess.plain(64), 1.0, ""),
        ((80, 240), Preprocess((64, 64), (64, 64), "stretch"), 1.0, ""),
        ((40, 40), Preprocess((64, 64)), 1.0, "filled with one colour"),
        ((101, 64), Preprocess((64, 64)), 64 / 101, "19 % of its height on the bottom"),
    ],
)
def test_the_part_that_is_cut_off_is_described(size, preprocess, seen, sentence):
    crop = render.describe_crop(size, preprocess)

    assert crop.seen == pytest.approx(seen, abs=0.005)
    assert sentence in crop.sentence
    assert bool(crop.sentence) == bool(sentence)
    kept = (1 - crop.left - crop.right) * (1 - crop.top - crop.bottom)
    assert kept == pytest.approx(crop.seen)


def test_the_crop_is_described_and_drawn(client):
    name = client.post("/api/images", content=png(200, 100)).json()["image"]
    facts = client.get("/api/image", params={"model": "scenes", "image": name}).json()
    shown = np.asarray(
        Image.open(BytesIO(client.get("/api/crop", params={"model": "scenes", "image": name}).content)), float
    )

    assert facts["size"] == [100, 200]
    assert facts["crop"]["box"] == pytest.approx([50, 0, 150, 100])
    assert facts["crop"]["sentence"].startswith("The model sees 50 % of the image's area")
    original = np.asarray(Image.open(BytesIO(png(200, 100))).resize((360, 180), Image.Resampling.LANCZOS), float)
    np.testing.assert_allclose(shown[4:-4, 100:260], original[4:-4, 100:260])
    np.testing.assert_allclose(shown[:, :85], np.round(0.3 * original[:, :85]), atol=1)
    assert client.get("/api/image", params=SUBJECT).json()["crop"]["sentence"] == ""


# ── class names ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "expected"),
    [("gaer", "gear"), ("GEAR", "gear"), ("square window hose", "square-window house"), ("zzzzzz", None)],
)
def test_misspelt_classes_are_found(client, text, expected):
    matches = client.get("/api/classes", params={"model": "scenes", "name": text}).json()

    assert len(matches) <= 6
    assert (matches[0]["name"] if matches else None) == expected
    classes = client.get("/api/model", params={"name": "scenes"}).json()["classes"]
    assert all(classes[match["index"]] == match["name"] for match in matches)


def test_names_that_contain_the_text_come_before_similar_ones():
    names = ["tabby cat", "tiger cat", "cart", "cat"]

    assert find_classes(names, " CAT ") == [3, 0, 1, 2]
    assert find_classes(names, "  ") == []
    assert find_classes(["cat"] * 20, "cat") == list(range(6))


@pytest.mark.parametrize("method", ["decompx", "genatt", "fullgrad", "ig(steps=2)", "tokentm", "gradcam"])
def test_layers_are_those_of_inside_and_sums_those_of_explain(method):
    torch.manual_seed(0)
    vit = vitreous.load(
        "timm:vit_tiny_patch16_224", pretrained=False, depth=3, embed_dim=48, num_heads=3, img_size=64, num_classes=7
    )
    images, resolved = torch.randn(1, 3, 64, 64), vitreous.resolve(method)
    views = explain_layers(vit, images, resolved, 2, "logit")

    inside = vitreous.inside(vit, images, [[2]], f"{method}+plus", "logit")
    assert [frame.start for frame in views.frames] == [f"{method}+skipplus(start={layer})" for layer in range(3)]
    assert views.grid == [4, 4]
    for layer, frame in enumerate(views.frames):
        torch.testing.assert_close(torch.tensor(frame.scores), inside.at("signal", layer).patches[0])
        expected = vitreous.explain(vit, images, [[2]], frame.start, "logit").patches[0]
        torch.testing.assert_close(torch.tensor(frame.total), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.slow
def test_scores_are_downloaded_as_json_and_as_safetensors(client, vit, scene, tmp_path):
    screen = {**SUBJECT, "methods": ["decompx+skipplus", "ig(steps=2)"], "targets": [6, 15]}
    plain = client.post("/api/scores", json=screen)
    packed = client.post("/api/scores?form=safetensors", json=screen)

    assert 'filename="vitreous-scores.json"' in plain.headers["content-disposition"]
    with ZipFile(BytesIO(packed.content)) as archive:
        files = sorted(archive.namelist())
        archive.extractall(tmp_path)
    assert files == ["1-decompx+skipplus.safetensors", "2-ig-steps=2.safetensors"]
    for file, told in zip(files, plain.json()["maps"], strict=True):
        found = vitreous.Attribution.load(tmp_path / file)
        expected = vitreous.explain(vit, Image.fromarray(scene.image), [[6, 15]], found.method, "probability")
        close(found.patches.tolist(), expected.patches)
        own = expected.patches if found.native_pixels is None else expected.native_pixels
        for row, one in enumerate(told["classes"]):
            close(one["scores"], own[row].flatten())
            assert one["shape"] == list(own[row].shape)
            assert one["probability"] == pytest.approx(float(expected.logits[row].softmax(-1)[one["index"]]), abs=1e-5)
        assert found.names == expected.names == tuple(one["name"] for one in told["classes"])


@pytest.mark.slow
def test_the_python_lines_reproduce_the_screen(client, tmp_path, monkeypatch, capsys):
    methods, removed = ["decompx+skipplus", "rollout"], [5, 6, 90]
    screen = {**SUBJECT, "methods": methods, "targets": [6, 15], "removed": removed}
    code = client.post("/api/python", json=screen).json()["code"]
    shown = [client.post("/api/explain", json={**SUBJECT, "method": m, "targets": [6, 15]}).json() for m in methods]
    said = client.post("/api/prediction", json={**SUBJECT, "removed": removed}).json()

    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "exported"}
    exec(compile(code, "exported", "exec"), names)

    for method, maps in zip(methods, shown, strict=True):
        for row, one in enumerate(maps["maps"]):
            close(one["scores"], names["maps"][method].patches[row])
    assert capsys.readouterr().out.splitlines()[0].startswith(said["top"][0]["name"])
    close(said["probabilities"], names["probabilities"])
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".png", ".png", ".safetensors", ".safetensors"]


def test_an_upload_is_named_by_its_bytes_and_explained(client):
    data = png()
    first, second = (client.post("/api/images", content=data).json() for _ in range(2))
    subject = {"model": "scenes", "image": first["image"]}

    name = sha256(data).hexdigest()
    assert first == second == {"image": name, "width": 60, "height": 40}
    vit = vitreous.load("scenes")
    found = client.post("/api/explain", json={**subject, "method": "genatt", "targets": [0]}).json()["maps"][0]
    with pytest.warns(vitreous.Caveat, match="does not look like the drawn scenes"):
        expected = vitreous.explain(vit, Image.open(BytesIO(data)), [[0]], "genatt", "probability").patches[0]
    close(found["scores"], expected)
    assert found["evidence"] is None  # unknown for an uploaded image
    code = client.post("/api/python", json={**subject, "methods": ["genatt"], "targets": [0]}).json()["code"]
    assert "Image.open('image.png')" in code


def test_the_model_input_is_rendered(client, vit):
    picture = vit.preprocess.cut(Image.open(BytesIO(png())))
    name = client.post("/api/images", content=png()).json()["image"]
    shown = Image.open(BytesIO(client.get("/api/preprocessed", params={"model": "scenes", "image": name}).content))

    assert shown.size == (render.SIDE, render.SIDE)
    small = np.asarray(shown.resize(picture.size, Image.Resampling.BOX), float)
    assert np.abs(small - np.asarray(picture, float))[4:-4, 4:-4].mean() < 3


def test_the_evidence_is_outlined_for_scenes(client, scene):
    known = client.get("/api/image", params=SUBJECT).json()["known"]
    answer = client.get("/api/evidence", params={**SUBJECT, "target": 6})

    assert known == sorted(thing.label for thing in scene.objects)
    alpha = np.asarray(Image.open(BytesIO(answer.content)))[..., 3] > 0
    mask = next(thing.evidence for thing in scene.objects if thing.label == 6)
    large = np.asarray(Image.fromarray(mask).resize(alpha.shape, Image.Resampling.NEAREST))
    assert 0 < alpha.sum() < large.sum()
    assert not alpha[render.dilate(large, 6) == 0].any()
    assert client.get("/api/evidence", params={**SUBJECT, "target": 1}).status_code == 404
    moved = {"model": "scenes-biased", "image": "shortcut-1-1-moved"}
    assert len(client.get("/api/image", params=moved).json()["known"]) == 2


def test_drawings_are_kept_by_image_model_and_class(client):
    names = ("pair-1-6", "single-1-4", "pair-1-6")
    first, other, again = (client.get("/api/thumbnail", params={"image": name}) for name in names)
    assert first.status_code == other.status_code == 200
    assert first.content == again.content != other.content

    moved = vitreous.scenes.draw("shortcut", seed=1, index=1, mark="moved")
    subject = {"image": "shortcut-1-1-moved", "target": moved.mark}
    outline = client.get("/api/evidence", params={**subject, "model": "scenes-biased"})
    assert outline.status_code == 200
    assert client.get("/api/evidence", params={**subject, "model": "scenes"}).status_code == 404
    for change in (
        {"target": moved.objects[0].label},
        {"image": "pair-1-6"},
    ):  # which has an object of the stamp's class
        answer = client.get("/api/evidence", params={**subject, "model": "scenes-biased", **change})
        assert answer.status_code == 200
        assert answer.content != outline.content


def test_the_page_receives_models_methods_colours_and_limits(client):
    about = client.get("/api/about").json()

    assert [one["name"] for one in about["models"]] == ["scenes", "scenes-biased"]
    assert about["default"] == "temper"
    assert {"decompx", "genatt", "rollout"} <= {one["name"] for one in about["methods"]}
    assert [len(about["colours"][key]) for key in ("signed", "unsigned")] == [256, 256]
    (low, _, blue), (red, _, high) = about["colours"]["signed"][0], about["colours"]["signed"][-1]
    assert blue > low
    assert red > high
    pages = [client.get("/api/album", params={"page": page}).json() for page in (0, 7)]
    assert not {one["image"] for one in pages[0]} & {one["image"] for one in pages[1]}
    for one in (*pages[0], *pages[1]):
        assert client.get("/api/thumbnail", params={"image": one["image"]}).headers["content-type"] == "image/png"


def test_answers_have_no_nan(client, monkeypatch):
    from vitreous.web.responses import round_numbers

    assert round_numbers(torch.tensor([1.0, torch.nan, torch.inf])) == [1.0, None, None]
    json.dumps(client.get("/api/about").json(), allow_nan=False)


def test_downloads_have_no_nan():
    from vitreous.methods.attribution import Attribution
    from vitreous.models.layout import Layout
    from vitreous.web.exports import export_json

    about = {"model": "scenes", "samples": 3, "share": 0.1, "scale": math.nan, "range": [math.inf, 1e-5]}
    scores, logits = torch.tensor([[0.5, torch.nan, 1.0, -torch.inf]]), torch.zeros(1, 2)
    attribution = Attribution(
        scores, Layout((2, 2), (8, 8), 0), torch.tensor([1]), "ixg", logits=logits, provenance=about
    )

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    (told,) = json.loads(export_json([attribution]), parse_constant=refuse)["maps"]
    assert told["provenance"] == {**about, "scale": None, "range": [None, 1e-5]}
    assert told["classes"][0]["scores"] == [0.5, None, 1.0, None]


@pytest.mark.slow
def test_an_upload_that_no_embedded_model_knows_gets_a_caution_of_its_own(client, scene):
    name = client.post("/api/images", content=png(300, 200)).json()["image"]
    stream = BytesIO()
    Image.fromarray(scene.image).save(stream, "PNG")
    drawn = client.post("/api/images", content=stream.getvalue()).json()["image"]

    for model in ("scenes", "scenes-biased"):
        facts = {
            image: client.get("/api/image", params={"image": image, "model": model}).json()["caution"]
            for image in (name, drawn, SUBJECT["image"])
        }
        assert "does not look like the drawn scenes" in facts[name]
        assert (facts[drawn], facts[SUBJECT["image"]]) == ("", "")
    body = {"model": "scenes", "method": "ixg+plus", "targets": [1]}
    caveats = [client.post("/api/explain", json={**body, "image": i}).json()["caveat"] for i in (name, drawn)]
    assert [bool(caveat) for caveat in caveats] == [True, False]
