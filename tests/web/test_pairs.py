"""Pairs in the playground: the endpoint's numbers are the library's, and the page shows partners in a real browser."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

import vitreous
from tests.web.conftest import SMALL, Served, client_of, no_cost, png
from tests.web.conftest import SMALL_MODEL as MODEL
from tests.web.test_page import Visit
from vitreous.core.errors import ModelError
from vitreous.pairs.text_tower import TextTower
from vitreous.pairs.towers import without_classifier
from vitreous.web.budget import PassCost

BODY = {"model": MODEL, "image": "pair-1-6", "other": "pair-1-4"}


class Words(torch.nn.Module):
    """A text encoder whose embedding is as wide as that of the small model."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(50, 24)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(24, 24) for _ in range(2))

    def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.embed(input_ids)
        for block in self.blocks:
            x = torch.nn.functional.gelu(block(x))
        return {"text_embeds": x.mean(1)}


class Tokenizer:
    """One token per word, by its length."""

    all_special_ids = (0,)

    def __call__(self, text: str) -> dict[str, list[int]]:
        self.words = text.split()
        return {"input_ids": [len(word) for word in self.words]}

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return self.words


@pytest.fixture(scope="module")
def texts() -> dict[str, TextTower]:
    return {MODEL: TextTower(Words().eval().requires_grad_(False), Tokenizer())}


def scene(index: int) -> Image.Image:
    return Image.fromarray(vitreous.scenes.draw("pair", seed=1, index=index).image)


@pytest.fixture(scope="module")
def small():
    with client_of(SMALL) as opened:
        yield opened


@pytest.mark.parametrize("method", ["decompx", "occlusion"])
def test_the_shares_are_those_of_the_library(small, method):
    answer = small.post("/api/pairs/explain", json={**BODY, "method": method})
    assert answer.status_code == 200, answer.text
    explained = answer.json()
    tower = without_classifier(small.app.state.service.models.vit(MODEL))
    pair = vitreous.explain_pair(tower, scene(6), tower, scene(4), method)

    assert explained["similarity"] == pytest.approx(pair.similarity, rel=1e-4)
    torch.testing.assert_close(torch.tensor(explained["matrix"]), pair.matrix.float(), rtol=1e-3, atol=1e-5)
    assert explained["first"]["grid"] == [4, 4]
    scores = torch.tensor(explained["second"]["scores"])
    torch.testing.assert_close(scores, pair.map("b").flatten().float(), rtol=1e-3, atol=1e-5)


def test_the_embedding_is_the_input_of_the_classifier():
    vit = vitreous.load("scenes")
    images = vit.preprocess.batch([scene(6), scene(4)])
    tower = without_classifier(vit)
    with torch.no_grad():
        expected = vit.module.forward_head(vit.module.forward_features(images), pre_logits=True)
        torch.testing.assert_close(tower.forward(images), expected)
    assert tower.outputs == 144
    assert without_classifier(tower) is tower


def test_invalid_requests_are_refused_with_a_message(small):
    def refused(status: int, **changes: object) -> str:
        answer = small.post("/api/pairs/explain", json={**BODY, **changes})
        assert answer.status_code == status, answer.text
        return answer.json()["error"]

    assert "either other or text" in refused(422, other=None)
    assert "either other or text" in refused(422, text="a zebra")
    assert "has no text tower" in refused(422, other=None, text="a zebra")
    assert "no model 'nothing' is offered" in refused(404, model="nothing")
    assert "not here any more" in refused(404, other="0" * 64)
    assert "not signed and class-specific" in refused(422, method="rollout")
    assert "did you mean" in refused(422, method="decompxx")
    assert "cosine" in refused(422, similarity="euclidean")
    with client_of(replace(SMALL, seconds=60), lambda _: PassCost(0.5, 1.0)) as slow:
        answer = slow.post("/api/pairs/explain", json=BODY)
    assert answer.status_code == 422
    assert "one pass per number of the embedding (24), about 72 s here" in answer.json()["error"]
    assert "'occlusion' would take about 17 s" in answer.json()["error"]


def test_words_are_compared_if_there_is_a_text_tower(texts):
    from fastapi.testclient import TestClient

    from vitreous.web.app import create_app

    app = create_app(SMALL, no_cost, texts)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        offered = client.get("/api/pairs/about").json()["models"]
        body = {"model": MODEL, "image": "pair-1-6", "text": "gear or clock"}
        answer = client.post("/api/pairs/explain", json=body).json()
    assert [(entry["name"], entry["text"]) for entry in offered][1:] == [("scenes-biased", False), (MODEL, True)]
    assert answer["second"]["words"] == ["gear", "or", "clock"]
    assert (len(answer["matrix"]), len(answer["matrix"][0])) == (16, 3)


def test_a_text_tower_is_loaded_with_its_tokenizer(tmp_path: Path):
    import transformers
    from tokenizers import Tokenizer as WordTokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.CLIPConfig(
        text_config={
            "vocab_size": 9,
            "max_position_embeddings": 8,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "projection_dim": 8,
            **small,
        },
        vision_config={"image_size": 32, "patch_size": 16, **small},
        projection_dim=8,
    )
    model = transformers.CLIPModel(config).eval()
    model.save_pretrained(tmp_path)
    words = WordTokenizer(WordLevel({"[UNK]": 0, "a": 3, "zebra": 4}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(tmp_path)

    tower = TextTower.from_pretrained(tmp_path)
    prepared = tower.prepare("a zebra")

    assert prepared.words == ("a", "zebra")
    with torch.no_grad():
        features = model.get_text_features(input_ids=torch.tensor([[3, 4]]))
    torch.testing.assert_close(
        prepared.vectors, vitreous.scores.output_field(features, ("text_embeds", "pooler_output"))
    )
    transformers.ViTConfig().save_pretrained(tmp_path / "vit")
    with pytest.raises(ModelError, match="text towers are known of: clip"):
        TextTower.from_pretrained(tmp_path / "vit")


# ── in a browser ─────────────────────────────────────────────────────────────────────────────────


class PairVisit(Visit):
    def settle(self) -> None:
        self.until(
            "document.querySelector('#strongest button') && !document.body.classList.contains('loading')"
            " && document.getElementById('status').hidden"
        )

    def at(self, side: str, row: int, column: int) -> tuple[float, float]:
        box = self.page.locator(f"#{side}-image .image-view").bounding_box()
        return box["x"] + (column + 0.5) * box["width"] / 4, box["y"] + (row + 0.5) * box["height"] / 4


@pytest.fixture(scope="module")
def pair_server(texts):
    with Served(SMALL) as running:
        running.app.state.pairs.texts.update(texts)
        yield running


@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_patch_that_is_pointed_at_lights_its_partners(browser, pair_server, width, scheme):
    seen = PairVisit(browser, pair_server.address, f"pairs#model={MODEL}", width=width, scheme=scheme)
    page = seen.page
    image = "side => document.querySelector(`#${side}-image canvas.map`).toDataURL()"
    before = page.evaluate(image, "second")
    assert re.match(r"Cosine 0\.\d+", page.inner_text("#result-title"))
    page.locator("#first-image").scroll_into_view_if_needed()
    page.mouse.move(*seen.at("first", 2, 1))
    assert page.inner_text("#partners").startswith("First, row 3, column 2: its strongest partner is row")
    lit = page.evaluate(image, "second")
    assert lit != before
    page.mouse.click(*seen.at("first", 2, 1))
    page.mouse.move(5, 5)
    assert page.evaluate(image, "second") == lit  # kept
    page.keyboard.press("Escape")
    assert page.evaluate(image, "second") == before
    page.mouse.move(*seen.at("second", 3, 3))
    assert page.inner_text("#partners").startswith("Second, row 4, column 4")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")  # nothing sticks out
    seen.close(pair_server.address)


@pytest.mark.browser
def test_a_strongest_pair_is_marked_on_both_sides(browser, pair_server):
    seen = PairVisit(browser, pair_server.address, f"pairs#model={MODEL}")
    page = seen.page

    def marks() -> list[str]:
        draw = "all => all.map(canvas => canvas.toDataURL())"
        return page.eval_on_selector_all("#first-image canvas.marks, #second-image canvas.marks", draw)

    unmarked = marks()
    pair = page.locator("#strongest button >> nth=0")
    parts = re.findall(r"row (\d), column (\d)", pair.inner_text())
    pair.click()
    marked = marks()
    assert page.inner_text("#partners").startswith("First, row {}, column {}".format(*parts[0]))
    pair.click()
    assert marks() == unmarked
    expected = []
    for side, (row, column) in zip(("first", "second"), parts, strict=True):
        page.mouse.move(*seen.at(side, int(row) - 1, int(column) - 1))
        expected.append(marks()[len(expected)])
        page.mouse.move(5, 5)

    assert marked == expected
    assert all(mark != before for mark, before in zip(marked, unmarked, strict=True))
    seen.close(pair_server.address)


@pytest.mark.browser
def test_pairs_by_keyboard_upload_and_text(browser, pair_server):
    seen = PairVisit(browser, pair_server.address, f"pairs#model={MODEL}")
    page = seen.page
    page.focus("#first-image")
    for key in ("ArrowRight", "ArrowDown", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    assert page.inner_text("#partners").startswith("First, row 2, column 2")
    page.keyboard.press("Tab")
    page.keyboard.press("Escape")
    assert page.inner_text("#partners") == ""
    page.click("#strongest button >> nth=0")
    assert page.inner_text("#partners").startswith("First, row")

    before = page.inner_text("#result-value")
    page.set_input_files("#second-file", {"name": "x.png", "mimeType": "image/png", "buffer": png(90, 70)})
    page.wait_for_selector("#second-album .tile[aria-pressed='true'] >> text=your image")
    seen.settle()
    assert page.inner_text("#result-value") != before
    again = PairVisit(browser, pair_server.address, f"pairs{page.evaluate('location.hash')}")
    assert again.page.inner_text("#result-value") == page.inner_text("#result-value")
    again.page.wait_for_selector("#second-album .tile[aria-pressed='true'] >> text=your image")
    again.close(pair_server.address)

    page.route("**/api/pairs/explain", lambda route: route.fulfill(status=500, json={"error": "too much"}))
    page.select_option("#similarity", "dot")
    page.wait_for_selector("#error-message >> text=Too much")
    assert page.locator("body.loading").count() == 1  # what is shown is not the dot product
    page.unroute_all()
    seen.complaints.clear()
    page.select_option("#similarity", "cosine")
    seen.settle()

    page.route("**/api/pairs/explain", lambda route: None)  # no response
    page.select_option("#method", "occlusion")
    page.wait_for_selector("#status >> text=Computing")
    page.click("#kind >> text=Text")
    assert page.locator("#status").is_hidden()  # it waits for the text, not for the request before
    page.unroute_all(behavior="ignoreErrors")
    page.select_option("#method", "decompx")
    page.fill("#text", "gear or clock")
    page.keyboard.press("Enter")
    page.wait_for_selector("#words .word")
    seen.settle()
    assert page.locator("#words .word").all_inner_texts() == ["gear", "or", "clock"]
    page.hover("#words .word >> nth=2")
    assert page.inner_text("#partners").startswith("Second, “clock”: its strongest partner is row")
    page.focus("#words .word >> nth=0")
    page.keyboard.press("Enter")
    assert page.inner_text("#partners").startswith("Second, “gear”")
    unnamed = page.eval_on_selector_all(
        "button, input, select",
        "all => all.filter(e => !(e.labels?.length || e.getAttribute('aria-label') || e.textContent.trim())).map(e => e.outerHTML)",
    )
    assert unnamed == []
    seen.close(pair_server.address)
