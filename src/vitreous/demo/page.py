"""One self-contained page: pictures, true evidence, maps and scores side by side."""

from __future__ import annotations

import base64
from html import escape
from io import BytesIO

import numpy as np
from PIL import Image

from vitreous import __version__, scenes
from vitreous.demo.show import METHODS, Line, Told
from vitreous.draw import overlay_image

SIDE = 224

STYLE = """
:root { color-scheme: light dark; --ink: #1d2327; --soft: #5c6770; --paper: #fbfaf7; --card: #fff; --line: #e2ded5; --best: #0b6e4f; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e9e6df; --soft: #a3a79f; --paper: #16191b; --card: #1f2427; --line: #343b3f; --best: #7fd1ae; } }
* { box-sizing: border-box } body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif }
main { max-width: 1280px; margin: 0 auto; padding: 2.5rem 1.25rem 4rem }
h1 { font-size: 2.1rem; letter-spacing: -.02em; margin: 0 } h2 { margin: 3rem 0 .25rem; letter-spacing: -.01em }
p { max-width: 46rem } .soft { color: var(--soft) } code { font-size: .92em }
.strip { display: grid; grid-template-columns: repeat(var(--n), minmax(104px, 1fr)); gap: .6rem; overflow-x: auto; padding: .5rem 0 }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 10px; overflow: hidden }
figure img { display: block; width: 100%; aspect-ratio: 1 } figcaption { padding: .35rem .55rem .5rem; font-size: .78rem; line-height: 1.35 }
figcaption b { display: block; font-size: .82rem; overflow-wrap: anywhere }
.hit { color: var(--best) } .ask { margin: 1.1rem 0 0; font-weight: 600 }
.table { overflow-x: auto } table { border-collapse: collapse; margin: .75rem 0; font-variant-numeric: tabular-nums }
th, td { padding: .32rem .8rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left } thead th { color: var(--soft); font-weight: 600; font-size: .85rem }
td.best { color: var(--best); font-weight: 700 } footer { margin-top: 3.5rem; font-size: .85rem; color: var(--soft) }
@media print { .strip { break-inside: avoid } }
"""


def page(told: list[Told]) -> str:
    """The whole page as HTML; nothing is fetched."""
    chapters = "".join(chapter(one) for one in told)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Vitreous: which patches made the prediction</title><style>{STYLE}</style></head><body><main>
<h1>Vitreous</h1>
<p>Which patches made a Vision Transformer say what it says? These pictures are drawn by code, so the answer is known, and every map
can be held to it. The model is a ViT of 12 blocks that ships with the package; nothing was fetched to make this page.</p>
<p class="soft">Under each map: whether its peak lies on the evidence, and its average precision (AP) against the evidence, 1 being
perfect. What is explained is the probability of the class. Red speaks for it and blue against it; maps that know no sign run from
dark to bright.</p>
{summary(told)}
{chapters}
<p>Ask your own questions: <code>vitreous serve</code> opens the playground at
<a href="http://127.0.0.1:8420/">127.0.0.1:8420</a>, where patches can be taken away and other pictures dropped.</p>
<footer>vitreous {escape(__version__)} · {sum(one.count for one in told)} pictures, {len(METHODS)} methods ·
<code>vitreous demo</code> makes this page again</footer>
</main></body></html>
"""


def summary(told: list[Told]) -> str:
    head = "".join(f"<th colspan=2>{escape(one.chapter.title)}</th>" for one in told)
    sub = "<th>peak</th><th>AP</th>" * len(told)
    best = [[max(getattr(s, what) for s in one.scores) for what in ("pointing", "precision")] for one in told]
    rows = ""
    for row, method in enumerate(METHODS):
        cells = ""
        for one, tops in zip(told, best, strict=True):
            for what, top in zip(("pointing", "precision"), tops, strict=True):
                value = getattr(one.scores[row], what)
                cells += f"<td{' class=best' if value == top else ''}>{value:.2f}</td>"
        rows += f"<tr><td><code>{escape(method)}</code></td>{cells}</tr>"
    return (
        f'<div class="table"><table><thead><tr><th></th>{head}</tr><tr><th>method</th>{sub}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def chapter(one: Told) -> str:
    lines = "".join(strip(line, one) for line in one.lines)
    follows = "it names an object that is there" if not one.chapter.spurious else "it still names the object"
    return (
        f"<section><h2>{escape(one.chapter.title)}</h2><p>{escape(one.chapter.words)} "
        f'<span class="soft">{one.count} pictures scored; {follows} in {one.accuracy:.0%} of them.</span></p>{lines}</section>'
    )


def strip(line: Line, told: Told) -> str:
    name = scenes.CLASSES[line.target]
    first = next(iter(line.answers.values()))
    chance = first.logits[0].softmax(-1)[line.target].item()
    picture = Image.fromarray(line.scene.image)
    cells = figure(large(picture), "picture", "") + figure(outlined(line), "evidence", "known, not guessed")
    for method, answer in line.answers.items():
        hit = line.points[method] > 0.5
        verdict = (
            f'<span class="hit">peak on it</span> · AP {line.precision[method]:.2f}'
            if hit
            else f"peak off · AP {line.precision[method]:.2f}"
        )
        cells += figure(
            overlay_image(answer, longest=480).resize((SIDE, SIDE), Image.Resampling.LANCZOS), method, verdict
        )
    asked = f"Why “{escape(name)}”? <span class=soft>({chance:.0%} probability)</span>"
    return f'<p class="ask">{asked}</p><div class="strip" style="--n:{2 + len(line.answers)}">{cells}</div>'


def large(picture: Image.Image) -> Image.Image:
    return picture.resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def outlined(line: Line) -> Image.Image:
    """The picture with everything but the evidence faded, and its edge drawn."""
    mask = np.asarray(Image.fromarray(line.evidence.numpy()).resize((SIDE, SIDE), Image.Resampling.NEAREST))
    picture = np.asarray(large(Image.fromarray(line.scene.image)), np.float32)
    grey = picture.mean(-1, keepdims=True) * 0.35 + 150
    edge = np.zeros_like(mask)
    for axis in (0, 1):
        for step in (-2, -1, 1, 2):
            edge |= mask ^ np.roll(mask, step, axis)
    shown = np.where(mask[..., None], picture, grey)
    shown[edge & ~mask] = (11, 110, 79)
    return Image.fromarray(shown.clip(0, 255).astype(np.uint8))


def figure(picture: Image.Image, title: str, words: str) -> str:
    buffer = BytesIO()
    picture.convert("RGB").save(buffer, "WEBP", quality=86)
    source = base64.b64encode(buffer.getvalue()).decode()
    return (
        f'<figure><img alt="{escape(title)}" src="data:image/webp;base64,{source}">'
        f"<figcaption><b>{escape(title).replace('+', '+<wbr>')}</b>{words}</figcaption></figure>"
    )
