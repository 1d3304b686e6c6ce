"""The page in a real browser: user actions and their results."""

from __future__ import annotations

import base64
import hashlib
import inspect
import json
import re
import time
from dataclasses import replace
from io import BytesIO
from itertools import chain

import numpy as np
import pytest
from PIL import Image

import vitreous
from tests.web.conftest import SMALL, SMALL_MODEL, Served, png
from vitreous.draw import overlay_image
from vitreous.web.budget import PassCost
from vitreous.web.settings import Settings

pytestmark = pytest.mark.browser
PATIENCE = 60_000
METHODS = ["temper", "decompx+skipplus", "genatt", "rollout"]
CROPPED = png(400, 200)  # the server computes its maps for the first test that drops it


class Visit:
    """An open page, with the errors in its console and the requests that it made."""

    def __init__(
        self, browser, address: str, fragment: str = "", width: int = 1280, scheme: str = "light", moving: bool = False
    ) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            reduced_motion="no-preference" if moving else "reduce",
            accept_downloads=True,
        )
        self.context.set_default_timeout(PATIENCE)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page = self.context.new_page()
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda problem: self.complaints.append(str(problem)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.open(address, fragment)

    def open(self, address: str, fragment: str = "") -> None:
        """Load the page again; it has no state of the last visit, since it stores nothing in the browser."""
        path, mark, screen = fragment.partition("#")
        # with an address of its own, since another fragment alone would load nothing
        self.page.goto(f"{address}/{path}?visit={len(self.requests)}{mark}{screen}")
        if path != "api":  # a page without maps
            self.settle()

    def until(self, condition: str, arg=None) -> None:
        """Wait until an expression is true; polled from here, since the page's policy forbids evaluating strings in it."""
        end = time.monotonic() + PATIENCE / 1000
        while not self.page.evaluate(condition, arg):
            assert time.monotonic() < end, condition
            self.page.wait_for_timeout(25)

    def settle(self) -> None:
        """Wait until maps, curves and layers are shown."""
        self.page.wait_for_selector("#comparison span, #comparison:empty", state="attached")
        self.until(
            "document.querySelectorAll('.card.waiting').length === 0 && document.querySelector('#result-summary button')"
            " && document.querySelector('#layer-list .layer') && document.getElementById('status').hidden"
        )
        self.until("!document.getElementById('compared-methods').textContent.includes('computing')")

    def close(self, address: str) -> None:
        self.context.close()
        self.check(address)

    def check(self, address: str) -> None:
        """No errors in the console, and no requests to other servers; both lists are cleared."""
        complaints, requests = self.complaints[:], self.requests[:]
        self.complaints.clear()
        assert complaints == []
        assert all(url.startswith((address, "blob:")) for url in requests)

    def shares(self) -> dict[str, str]:
        rows = self.page.eval_on_selector_all(
            ".class-bar",
            "rows => rows.map(r => [r.querySelector('.name').textContent, r.querySelector('.share').textContent])",
        )
        return dict(rows)

    def says(self) -> str:
        return self.page.inner_text("#prediction-title").replace("\xa0", " ")


@pytest.fixture(scope="module")
def opened():
    """Pages that are open, by width, colour scheme and motion: to open another one takes as long as to load the page."""
    pages: dict[tuple, list[Visit]] = {}
    yield pages
    for page_visit in chain.from_iterable(pages.values()):
        page_visit.context.close()


@pytest.fixture
def visit(browser, served: Served, opened):
    """Function that loads the page as a user who comes for the first time."""
    used: list[tuple[tuple, Visit]] = []

    def go(fragment: str = "", width: int = 1280, scheme: str = "light", moving: bool = False) -> Visit:
        key = (width, scheme, moving)
        if opened.get(key):
            used.append((key, opened[key].pop()))
            used[-1][1].open(served.address, fragment)
        else:
            used.append((key, Visit(browser, served.address, fragment, *key)))
        return used[-1][1]

    yield go
    for key, page_visit in used:
        opened.setdefault(key, []).append(page_visit)
    for _, page_visit in used:
        page_visit.check(served.address)


@pytest.fixture(scope="module")
def untouched(browser, served: Served):
    """A visit shared by tests that only look at the page, or leave it as it was."""
    page_visit = Visit(browser, served.address)
    yield page_visit
    page_visit.close(served.address)


@pytest.fixture(scope="module")
def bare_context(browser):
    context = browser.new_context()
    context.set_default_timeout(PATIENCE)
    context.new_page()
    yield context
    context.close()


@pytest.fixture
def bare_page(bare_context):
    """An empty page on which errors are expected."""
    (page,) = bare_context.pages
    yield page
    page.unroute_all()
    page.goto("about:blank")


def test_everything_is_reached_by_the_tab_key(untouched):
    seen = untouched
    seen.page.evaluate(
        """() => {
            window.reached = [];
            const start = document.createElement('span');
            [start.id, start.tabIndex] = ['start-of-page', -1];
            document.body.prepend(start);
            start.focus();
            document.addEventListener('focusin', (event) => window.reached.push(event.target.id || event.target.className));
        }"""
    )
    for _ in range(70):
        seen.page.keyboard.press("Tab")
    reached = set(seen.page.evaluate("window.reached"))
    seen.page.evaluate("document.getElementById('start-of-page').remove()")
    for expected in (
        "model",
        "other-scenes",
        "file",
        "large-image",
        "class-bar",
        "class-input",
        "add-method",
        "question",
        "scale",
        "opacity",
        "enlarge",
        "patch-share",
        "play",
        "start-layer",
        "layer",
        "save-png",
        "copy-link",
    ):
        assert expected in reached, expected
    unnamed = seen.page.eval_on_selector_all(
        "button, input, select",
        "all => all.filter(e => !(e.labels?.length || e.getAttribute('aria-label') || e.textContent.trim())).map(e => e.outerHTML)",
    )
    assert unnamed == []


def test_the_score_of_a_patch_is_shown_for_all_maps(untouched):
    seen = untouched
    seen.page.locator(".card .image-view").nth(1).hover(position={"x": 10, "y": 10})
    first = seen.page.locator(".cards .patch-score").all_inner_texts()
    vit, scene = vitreous.load("scenes"), vitreous.scenes.draw("pair", seed=1, index=6)
    for text, method in zip(first, METHODS, strict=True):
        score = float(vitreous.explain(vit, Image.fromarray(scene.image), [[6]], method, "probability").patches[0, 0])
        shown, _, power = text.replace("−", "-").partition(" × 10")
        power = int(power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")) or 0)
        assert float(shown) * 10**power == pytest.approx(score, abs=0.02 * 10**power), method


@pytest.mark.parametrize("method", ["temper", "rollout"])
def test_colours_are_the_library_s_own(untouched, method):
    seen = untouched
    at = METHODS.index(method)
    url = (
        seen.page.locator(".card .image-view")
        .nth(at)
        .evaluate(
            """pane => {
            const [base, over] = pane.querySelectorAll('canvas'), sheet = document.createElement('canvas'), pen = sheet.getContext('2d');
            [sheet.width, sheet.height] = [280, 280];
            pen.drawImage(base, 0, 0, 280, 280);
            pen.globalAlpha = over.style.opacity;
            pen.drawImage(over, 0, 0, 280, 280);
            return sheet.toDataURL();
        }"""
        )
    )
    shown = np.asarray(Image.open(BytesIO(base64.b64decode(url.split(",")[1]))).convert("RGB"), float)
    scene = vitreous.scenes.draw("pair", seed=1, index=6)
    found = vitreous.explain("scenes", Image.fromarray(scene.image), [[6]], method, "probability")
    expected = np.asarray(overlay_image(found).resize((280, 280), Image.Resampling.LANCZOS), float)
    assert np.abs(shown - expected).mean() < 3
    assert np.quantile(np.abs(shown - expected), 0.99) < 16


def test_the_page_explains_the_prediction(untouched):
    seen = untouched

    assert seen.says() == "The model predicts gear 50 %"
    because = seen.page.inner_text("#result-summary").replace("\xa0", " ")
    assert re.search(r"The prediction depends on \d+ patches of 196", because)
    assert "the model predicts square-window house" in because
    assert seen.page.locator(".chip code").all_inner_texts() == METHODS
    default = inspect.signature(vitreous.explain).parameters["method"].default
    assert seen.page.locator(".card b").first.inner_text() == default
    assert seen.page.locator(".card").count() >= 4
    seen.page.click("#result-summary >> text=Remove them")
    seen.until("document.getElementById('predicted-class').textContent === 'square-window house'")
    assert re.match(r"Without \d+ patches it now predicts square-window house", seen.says())
    assert (
        seen.page.evaluate("document.activeElement.textContent") == "Restore them"
    )  # it keeps the focus when it is drawn again
    seen.page.keyboard.press("Enter")
    seen.until("document.getElementById('prediction-prefix').textContent === 'The model predicts'")


def test_patches_are_removed_with_the_mouse_and_restored(untouched):
    seen = untouched
    seen.page.evaluate("scrollTo(0, 0)")
    before, box = seen.shares(), seen.page.locator("#large-image").bounding_box()

    def at(row, column):
        return box["x"] + (column + 0.5) * box["width"] / 14, box["y"] + (row + 0.5) * box["height"] / 14

    mouse = seen.page.mouse
    for row in (7, 8, 9, 10, 11):
        mouse.move(*at(row, 6))
        mouse.down()
        mouse.move(*at(row, 12), steps=14)
        mouse.up()
    seen.until("document.getElementById('prediction-prefix').textContent.startsWith('Without 35 patches')")
    seen.until("before => document.querySelector('.class-bar .share').textContent !== before", arg=before["gear"])
    assert seen.page.inner_text("#predicted-class") == "square-window house"
    for left in (28, 21, 14, 7):  # one stroke is one step
        seen.page.click("#undo")
        seen.until(
            "n => document.getElementById('prediction-prefix').textContent.startsWith(`Without ${n} `)", arg=left
        )
    mouse.click(*at(7, 6))  # a removed patch is restored
    seen.until("document.getElementById('prediction-prefix').textContent.startsWith('Without 6 ')")
    seen.page.click("#restore")
    seen.until("document.getElementById('prediction-prefix').textContent === 'The model predicts'")
    assert seen.shares() == before


def test_patches_are_removed_with_the_keyboard(untouched):
    seen = untouched
    seen.page.focus("#large-image")
    for key in ("ArrowRight", "ArrowDown", "ArrowRight", "Space"):
        seen.page.keyboard.press(key)
    assert seen.page.inner_text("#cursor-description").startswith("Row 2, column 2, score")
    assert seen.page.inner_text("#cursor-description").endswith("removed")
    seen.page.keyboard.press("Shift+ArrowRight")
    seen.until("document.getElementById('prediction-announcement').textContent.startsWith('Without 2 of 196 patches')")
    readings = seen.page.locator(".cards .patch-score").all_inner_texts()
    assert len(readings) == 4
    assert all(readings)
    seen.page.keyboard.press("Control+z")
    seen.until("document.getElementById('prediction-prefix').textContent.startsWith('Without 1 patch ')")
    seen.page.keyboard.press("Space")  # column 3 again
    seen.until("document.getElementById('prediction-prefix').textContent.startsWith('Without 2 patches')")
    seen.page.click("#restore")
    seen.until("document.getElementById('prediction-prefix').textContent === 'The model predicts'")


def test_a_dropped_image_is_explained(visit, served):
    seen, data = visit(), CROPPED
    seen.page.evaluate(
        """([bytes]) => {
            const data = new DataTransfer();
            data.items.add(new File([Uint8Array.from(atob(bytes), c => c.charCodeAt(0))], 'mine.png', {type: 'image/png'}));
            for (const kind of ['dragenter', 'dragover', 'drop'])
                document.body.dispatchEvent(new DragEvent(kind, {bubbles: true, cancelable: true, dataTransfer: data}));
        }""",
        [base64.b64encode(data).decode()],
    )
    name = hashlib.sha256(data).hexdigest()
    seen.page.wait_for_selector(".tile[aria-pressed='true'] >> text=your image")
    seen.until("name => location.hash.includes(name)", arg=name)
    seen.settle()

    assert "does not contain your image" in seen.page.inner_text("#link-note")
    assert seen.page.locator("#show-evidence-field").is_hidden()
    again = visit(seen.page.evaluate("location.hash"))  # while the server remembers it, the link works
    assert again.shares() == seen.shares()


def test_a_link_to_an_evicted_image_asks_for_it_and_works_after_its_upload(bare_page):
    data = png(90, 70)
    name = hashlib.sha256(data).hexdigest()
    with Served(Settings(port=0)) as fresh:
        page = bare_page
        page.goto(f"{fresh.address}/#image={name}&method=ixg&method=genatt&classes=3")
        page.wait_for_selector("text=The image of this link is not here any more")
        page.set_input_files("#file", {"name": "x.png", "mimeType": "image/png", "buffer": data})
        page.wait_for_selector("text=Why key?", timeout=PATIENCE)
        assert page.locator(".chip").count() == 2


def test_a_file_that_is_no_image_is_refused_with_a_message(bare_page, served):
    page = bare_page
    page.goto(served.address)
    page.wait_for_selector(".class-bar")
    page.set_input_files("#file", {"name": "x.png", "mimeType": "image/png", "buffer": b"nonsense"})
    page.wait_for_selector("#error-message:visible")
    assert page.inner_text("#error-message").startswith("That is not an image, or a damaged one")
    assert page.locator(".class-bar").count() >= 5  # the earlier content stays


def test_two_classes_and_more_methods(visit):
    seen = visit()
    seen.page.click(".class-bar >> text=square-window house")
    seen.page.wait_for_selector("text=Why square-window house?")
    seen.settle()
    assert seen.page.locator(".card .enlarge").count() == 8
    seen.page.click("#add-method")
    seen.page.fill("#method-search", "genatt@libra+plus")
    seen.page.keyboard.press("Enter")
    seen.settle()
    assert seen.page.locator(".card .enlarge").count() == 10
    seen.page.click("[aria-label='Remove rollout']")
    seen.settle()
    assert seen.page.locator(".chip").all_inner_texts()[-1].startswith("genatt@libra+plus")
    own = seen.page.locator(".card .ticks").all_inner_texts()
    seen.page.select_option("#scale", "all")
    assert len(set(seen.page.locator("#map-rows .ticks").all_inner_texts())) == 1 < len(set(own))
    seen.page.click("[aria-label='Show genatt for square-window house large']")
    seen.until("document.querySelector('#result-summary code')?.textContent === 'genatt'")
    assert "square-window house" in seen.page.inner_text("#result-summary")


def test_the_card_of_a_failing_method_shows_the_reason(bare_page, served):
    page = bare_page
    page.goto(f"{served.address}/#method=genatt(varaint=1)&method=ixg")
    page.wait_for_selector(".card.failed >> text=did you mean 'variant'?", timeout=PATIENCE)
    page.wait_for_selector(".card .enlarge")


def test_the_slider_removes_the_patches_that_two_methods_rank_first(visit):
    seen = visit(moving=True)
    scene, vit = vitreous.scenes.draw("pair", seed=1, index=6), vitreous.load("scenes")
    seen.page.locator("#patch-share").focus()
    for _ in range(9):
        seen.page.keyboard.press("ArrowRight")
    assert seen.page.inner_text("#patch-share-value").replace("\xa0", " ") == "11 % · 21 of 196 patches"
    probe = vitreous.Probe(vit, vit.preprocess.batch([Image.fromarray(scene.image)]))
    said = seen.page.locator(".compared-probability strong").all_inner_texts()
    for text, method in zip(said, ["temper", "rollout"], strict=True):
        scores = vitreous.explain(vit, Image.fromarray(scene.image), [[6]], method, "probability").patches[0]
        keep = (scores.argsort(descending=True, stable=True).argsort() >= 21)[None, None]
        share = float(probe.logits(keep)[0, 0].softmax(-1)[6])
        assert float(text.replace("\xa0", "").rstrip("%")) == pytest.approx(100 * share, abs=0.6), method
    assert "the more faithful map" in seen.page.inner_text("#comparison")
    seen.page.click("#curve-mode >> text=Keep only the highest")
    assert seen.page.inner_text("#patch-share-value").startswith("0")
    seen.page.fill(
        "#patch-share", str(int(seen.page.get_attribute("#patch-share", "max")) - 3)
    )  # the last steps are enough
    seen.page.click("#play")
    seen.until("document.getElementById('patch-share').value === document.getElementById('patch-share').max")
    assert seen.page.inner_text("#play") == "Play"

    seen.page.click("#play")  # from the start
    seen.page.click(".tile >> nth=1")
    seen.page.wait_for_selector("body:not(.loading)")
    seen.settle()
    assert seen.page.inner_text("#patch-share-value").startswith("0")
    assert seen.page.inner_text("#play") == "Play"


def test_the_start_layer_moves_the_map(visit):
    seen = visit()
    first = seen.page.inner_text("#layer-sum b")
    drawn = seen.page.evaluate("document.querySelector('#layer-sum canvas.map').toDataURL()")
    seen.page.locator("#start-layer").focus()
    seen.page.keyboard.press("ArrowRight")
    seen.page.keyboard.press("ArrowRight")

    assert (first, seen.page.inner_text("#layer-sum b")) == ("temper+skipplus(start=6)", "temper+skipplus(start=8)")
    assert seen.page.evaluate("document.querySelector('#layer-sum canvas.map').toDataURL()") != drawn
    assert seen.page.locator(".layer").count() == 12
    assert seen.page.locator(".layer.excluded").count() == 8
    seen.page.click("[aria-label='Start at layer 2']")
    assert seen.page.locator(".layer.excluded").count() == 2
    seen.page.click("#add-layer-sum")
    seen.settle()
    assert seen.page.locator(".card b").all_inner_texts()[4] == "temper+skipplus(start=2)"


def test_a_link_restores_the_screen(visit):
    seen = visit()
    seen.page.click(".class-bar >> text=square-window house")
    seen.settle()
    seen.page.click("#result-summary >> text=Remove them")
    seen.page.select_option("#question", "logit")
    seen.settle()
    seen.page.fill("#opacity", "60")
    seen.page.select_option("#scale", "method")
    seen.page.click("#curve-mode >> text=Keep only the highest")
    seen.page.fill("#patch-share", "5")
    seen.page.click("[aria-label='Start at layer 3']")
    seen.page.click("#view >> text=Image")
    seen.until(
        "location.hash.includes('removed=') && location.hash.includes('view=image') && location.hash.includes('start=3')"
    )
    link = seen.page.evaluate("location.hash")
    assert "step=5" in link
    again = visit(link)

    again.until("document.getElementById('prediction-prefix').textContent.startsWith('Without')")
    again.until("document.getElementById('code').textContent !== ''")  # requested after the map
    assert again.says() == seen.says()
    assert again.shares() == seen.shares()
    for probe in ("#patch-share-value", "#layer-sum b", "#code", "#method-chips"):
        assert again.page.inner_text(probe) == seen.page.inner_text(probe)
    for control in ("#question", "#scale", "#opacity"):
        assert again.page.input_value(control) == seen.page.input_value(control)
    again.until("location.hash !== ''")
    again.page.wait_for_timeout(300)
    assert again.page.evaluate("location.hash") == link


def test_a_damaged_link_opens_the_page(bare_page, served):
    page = bare_page
    page.goto(
        f"{served.address}/#method=genatt&step=-3.5&lead=-2&start=99&rivals=9.9&classes=77&removed=%25&film=nonsense"
    )
    page.wait_for_selector("#layer-list >> text=no method 'nonsense'", timeout=PATIENCE)
    page.wait_for_selector(".compared-probability strong")

    assert page.input_value("#patch-share") == "0"
    assert page.locator("#layer-sum figure").is_hidden()  # a sum of other layers would seem to be that of this method
    assert page.locator("#layer-list p").bounding_box()["width"] > 400


def test_image_scores_and_code_can_be_downloaded(visit, tmp_path, monkeypatch):
    seen = visit()
    seen.page.click("#result-summary >> text=Remove them")
    seen.until("document.getElementById('code').textContent.includes('keep[0, 0')")
    files = {}
    for button in ("save-png", "save-json", "save-tensors"):
        with seen.page.expect_download() as waiting:
            seen.page.click(f"#{button}")
        files[waiting.value.suggested_filename] = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(files[waiting.value.suggested_filename])

    assert set(files) == {"vitreous.png", "vitreous-scores.json", "vitreous-scores.zip"}
    sheet = Image.open(files["vitreous.png"])
    assert sheet.width > 2500
    assert np.asarray(sheet.convert("RGB")).std() > 20
    entries = json.loads(files["vitreous-scores.json"].read_text())["maps"]
    assert [entry["method"] for entry in entries] == METHODS
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "exported"}
    exec(compile(seen.page.text_content("#code"), "exported", "exec"), names)  # the lines on the screen
    for entry in entries:
        scores = names["maps"][entry["method"]].patches[0].tolist()
        assert entry["classes"][0]["scores"] == pytest.approx(scores, abs=1e-6, rel=1e-4)
    assert names["vit"].class_name(int(names["probabilities"].argmax())) == seen.page.inner_text("#predicted-class")


def test_it_works_at_the_width_of_a_phone(visit):
    seen = visit(width=390, scheme="dark")
    for scheme in ("light", "dark"):  # the page follows when the scheme is changed, and ends as it was opened
        seen.page.emulate_media(color_scheme=scheme)
        assert seen.page.evaluate("document.documentElement.scrollWidth") == 390
        small = seen.page.eval_on_selector_all(
            "main button, main select",
            "all => all.filter(e => e.offsetParent && e.getBoundingClientRect().height < 30).map(e => e.outerHTML)",
        )
        assert small == []  # a finger finds them
        background = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
        light = sum(int(part) for part in background[4:-1].split(",")) > 380
        assert light == (scheme == "light")
    seen.page.click("#result-summary >> text=Remove them")
    seen.until("document.getElementById('prediction-prefix').textContent.startsWith('Without ')")


@pytest.mark.parametrize("width", [320, 820, 1280])
def test_nothing_overlaps(untouched, width):
    page = untouched.page
    page.set_viewport_size({"width": width, "height": 900})
    try:
        tops = "all => new Set(all.map(e => Math.round(e.getBoundingClientRect().top))).size"
        assert page.eval_on_selector_all(".tile img", tops) == 1
        assert page.eval_on_selector_all(".cards b", tops) == {320: 2, 820: 2, 1280: 1}[width]
        assert page.locator("#patch-share").bounding_box()["width"] > 150
        assert page.locator(".class-bar .track").first.bounding_box()["width"] > 50
        assert page.eval_on_selector_all(
            ".ticks",
            """all => all.every(ticks => {
                const boxes = [...ticks.children].map(e => e.getBoundingClientRect()).filter(box => box.width);
                return boxes.every((box, i) => i === 0 || box.left > boxes[i - 1].right + 2);
            })""",
        )
    finally:
        page.set_viewport_size({"width": 1280, "height": 900})


def test_a_score_that_is_rounded_to_zero_has_no_power_of_ten(untouched):
    shown = untouched.page.evaluate(
        """import("/static/formatting.js").then(({ formatFullScore }) =>
            [1e-9, -2e-5, 0, null].map((value) => formatFullScore(value, { low: -1e-4, high: 1e-4 })))"""
    )
    assert shown == ["0", "−0.2 × 10⁻⁴", "0", "undefined"]


def test_the_api_page_lists_every_endpoint(visit, served):
    seen = visit("api")
    seen.page.wait_for_selector("section")
    listed = seen.page.inner_text("main")
    assert all(path in listed for path in served.ask("/openapi.json")[1]["paths"])


# ── images that are cropped, misspelt classes, the cursor ────────────────────────────────────────


def drop_image(seen: Visit, data: bytes) -> str:
    """Drop an image on the page, which leaves the focus where it is; return its name."""
    seen.page.evaluate(
        """([bytes]) => {
            const data = new DataTransfer();
            data.items.add(new File([Uint8Array.from(atob(bytes), c => c.charCodeAt(0))], 'x.png', {type: 'image/png'}));
            document.body.dispatchEvent(new DragEvent('drop', {bubbles: true, cancelable: true, dataTransfer: data}));
        }""",
        [base64.b64encode(data).decode()],
    )
    name = hashlib.sha256(data).hexdigest()
    seen.until("name => location.hash.includes(name)", arg=name)
    return name


def test_a_new_image_shows_its_crop_and_no_cursor_of_the_last_one(visit):
    seen = visit()
    statuses: list[tuple[str, int]] = []
    seen.page.on("response", lambda answer: statuses.append((answer.url, answer.status)))
    assert seen.page.locator("#crop").is_hidden()
    seen.page.focus("#large-image")
    for key in (
        "ArrowRight",
        "ArrowDown",
        "ArrowRight",
        "Space",
    ):  # the removal schedules a request for the Python lines
        seen.page.keyboard.press(key)
    drop_image(seen, CROPPED)
    seen.settle()

    assert seen.page.evaluate("document.activeElement.id") == "large-image"
    assert seen.page.inner_text("#cursor-description") == ""
    marked = "[...document.querySelectorAll('#large-image canvas.marks')].some(c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((v, i) => i % 4 === 3 && v && c.width / 14 * 2 > i / 4 % c.width && i / 4 / c.width < c.height / 14 * 2))"
    assert not seen.page.evaluate(marked)  # nothing is drawn around rows and columns 1 and 2
    assert [(url, status) for url, status in statuses if status >= 400] == []
    assert "50 % of the image's area" in seen.page.inner_text("#crop-caption")
    seen.until("document.getElementById('crop-image').naturalWidth === 360")
    seen.page.locator(".tile").nth(1).click()
    seen.until("document.getElementById('crop').hidden")
    seen.settle()


def test_a_misspelt_class_is_suggested(visit):
    seen = visit()
    seen.page.fill("#class-input", "squre window hose")
    seen.page.keyboard.press("Enter")
    seen.page.click("#class-suggestions >> text=square-window house")
    seen.page.wait_for_selector("text=Why square-window house?")
    assert seen.page.locator("#class-suggestions").inner_text() == ""
    assert seen.page.input_value("#class-input") == ""
    for text, expected in (("qqqqqq", "none that resembles it"), ("77", "classes 0 to 19")):
        seen.page.fill("#class-input", text)
        seen.page.keyboard.press("Enter")
        seen.page.wait_for_selector(f"#class-suggestions >> text={expected}")
    seen.settle()


# ── sampling ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def slow_server():
    """A server on which a forward pass is said to take a tenth of a second, so that 60 s allow for 290 of them."""
    with Served(replace(SMALL, seconds=60), lambda vit: PassCost(0.1, 0.2)) as running:
        yield running


def test_partial_maps_are_shown_with_their_number_of_samples(bare_page, slow_server):
    page = bare_page
    asked: list[str] = []

    def pass_on(route):
        asked.append(json.loads(route.request.post_data)["method"])
        if asked[-1] == "rise":  # the last request waits until the preview has been looked at
            page.wait_for_selector(".card.partial >> text=Partial result: 72 of 290 masks; computing more…")
            assert page.inner_text(".card.partial b") == "rise(masks=72)"
        route.continue_()

    page.route("**/api/explain", pass_on)
    page.goto(f"{slow_server.address}/#model={SMALL_MODEL}&method=rise")
    page.wait_for_selector("text=290 of 4,000 masks; all of them would take about 400 s here.")
    assert asked == ["rise(masks=18)", "rise(masks=72)", "rise"]
    assert page.inner_text(".card b") == "rise(masks=290)"
    assert page.locator(".card.partial").count() == 0


def test_a_method_that_cannot_finish_is_refused_before_it_starts(bare_page, slow_server):
    page = bare_page
    page.goto(f"{slow_server.address}/#method=scorecam%2Bplus")
    sentence = "'scorecam+plus' takes 1,729 passes of this model, about 173 s here, and a request may take 60 s"
    page.wait_for_selector(f".card.failed >> text={sentence}")
    assert page.inner_text("#result-summary").startswith(f"There is no map to rank patches by: {sentence}")


def test_the_last_partial_map_is_kept_when_sampling_fails(bare_page, slow_server):
    page = bare_page

    def fail_last(route):
        if json.loads(route.request.post_data)["method"] == "hsic":
            route.fulfill(status=504, json={"error": "that took too long"})
        else:
            route.continue_()

    page.route("**/api/explain", fail_last)
    page.goto(f"{slow_server.address}/#model={SMALL_MODEL}&method=hsic")
    page.wait_for_selector("text=Partial result: 72 of 290 masks. Stopped: that took too long")
    assert page.inner_text(".card b") == "hsic(masks=72)"
