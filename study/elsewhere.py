"""Numbers of the study that README and the page on choosing a method quote; looked up as on its own pages."""

from __future__ import annotations

from functools import partial

from study.effects import select_rows
from study.fill_beyond import ONE_BACKWARD, classify_method, count_passes, find_closest_rival, format_percent
from study.names import MODELS, PROBABLE
from study.pages import Results, fill
from study.quotes import QUOTED_CONCLUSIONS, Quotes, register_conclusion
from study.sentences import format_effect, format_number
from study.tables import format_table

CHOICES = (
    "genatt", "tokentm", "decompx+skipplus", "decompx+plus", "fullgrad@libra+plus", "attnlrp", *PROBABLE.values(), "temper", "fuse",
    "anneal(of='temper', coalitions=32)", "anneal", "tis(masks=256)", "tis", "random",
)  # fmt: skip
COLUMNS = (  # heading, table, models, metric
    ("faithful", "beyond", MODELS, "faithfulness"),
    ("AP, pets", "beyond-pets", MODELS, "ap"),
    ("AP, Scenes", "beyond-scenes", ("Scenes",), "ap"),
    ("class discrimination, Scenes", "beyond-scenes", ("Scenes",), "class_discrimination"),
)


@fill("which-numbers")
def write_choices(results: Results) -> str:
    """Cost of each method, and its value by every measure."""
    figures_by_key = {
        (name, row.model, row.metric, row.method): row for _, name, *_ in COLUMNS for row in results.figures(name)
    }
    lines = []
    for method in CHOICES:
        means = (
            " / ".join(format_number(figures_by_key[name, model, metric, method].mean, 3) for model in models)
            for _, name, models, metric in COLUMNS
        )
        lines.append([f"`{method}`", f"{count_passes(method):g}", *means])
    counts = (str(figures_by_key[name, models[0], metric, CHOICES[0]].n) for _, name, models, metric in COLUMNS)
    return format_table(
        ["method", "passes", *(heading for heading, *_ in COLUMNS)], [*lines, ["*images*", "", *counts]]
    )


@register_conclusion("findings", QUOTED_CONCLUSIONS)
def conclude_findings(quotes: Quotes) -> str:
    faithful = partial(quotes.format_effects, table="beyond-pairs", metric="faithfulness")
    fitted = partial(quotes.format_effects, table="error-bars-photographs-pairs", metric="faithfulness", dataset="val")
    clip = partial(quotes.format_effect, table="error-bars-clip-pairs", metric="faithfulness", model="CLIP-B/16")
    images = {row.dataset: row.n for row in quotes.results.figures("error-bars-clip") if row.metric == "faithfulness"}

    def compare_on_clip(expected: str, method: str, against: str) -> str:
        """Effects on pets / on val."""
        verdicts = expected.split("/") if "/" in expected else [expected, expected]
        return " / ".join(
            clip(verdict, method, against, dataset=name)
            for verdict, name in zip(verdicts, ("pets", "val"), strict=True)
        )

    rows = select_rows(quotes.results.effects("beyond-pairs"), metric="faithfulness")
    published = {
        row.against
        for row in rows
        if classify_method(row.against) == "published" and count_passes(row.against) <= ONE_BACKWARD
    }
    ahead = [find_closest_rival(rows, model, "temper", ("published",)) for model in MODELS]
    quotes.require(all(row and row.low > 0 for row in ahead), "temper beats every published method of one backward")
    rivals = dict.fromkeys(row.against for row in ahead if row)
    tau = partial(quotes.format_order, "together", metric="faithfulness", truth="ap")
    single, pair, part = tau("scenes-orders", dataset="single"), tau("scenes-pair-orders", dataset="pair"), tau("scenes-orders", dataset="part")  # fmt: skip
    return f"""\
- **Beyond the papers.** `temper`, one backward pass, is more faithful than each of {len(published)} published methods of that cost, {" / ".join(format_effect(row) for row in ahead if row)} over the best of them, {", ".join(f"`{method}`" for method in rivals)}
  (over AttnLRP under PLUS explaining the probability, which is unpublished, {faithful("open/better", "temper", PROBABLE["attnlrp"])}). `fuse`, two backward passes, is more faithful than TIS with 1024 masks at
  {format_percent(count_passes("fuse") / count_passes("tis"))} of its cost, {faithful("better", "fuse", "tis")} ({rows[0].n} images that were not used to select anything).
- **With error bars.** `bayes`, random token subsets with `fuse` as prior, is ahead of TIS at its cost by {fitted("better", "bayes(samples=1024)", "tis")}, at a quarter of it by {fitted("better", "bayes(samples=256)", "tis")}, and every patch has a [standard error](docs/study/error-bars.md). Its maps are not masks: AP on pets
  {fitted("worse", "bayes(samples=1024)", "tis", metric="ap", dataset="pets")}.
- **A larger model, CLIP ViT-B/16**, on {images.get("pets", 0)} pets / {images.get("val", 0)} animals of val: `bayes` is ahead of TIS at its cost, {compare_on_clip("better", "bayes(samples=1024)", "tis")}. `fuse` is ahead of TIS on pets and behind it on val, {compare_on_clip("better/worse", "fuse", "tis")},
  and `temper` is behind AttnLRP under PLUS explaining the probability, {compare_on_clip("worse", "temper", PROBABLE["attnlrp"])}.
- **PLUS improves DecompX**, {quotes.format_effects("better", "decompx+plus", "decompx", "skipplus-pairs", "mean_aopc")} points of mean AOPC, but **TokenTM does not beat GenAtt** on masks of pets, {quotes.format_effects("worse", "tokentm", "genatt", "tokentm-pets-pairs", "miou")} of mIoU.
- **Faithfulness agrees with the ground truth.** Where the evidence is known, the order of methods by deletion and insertion (token removal) agrees with their order by AP: Kendall's τ {single} with one
  object, {pair} with two in the image, and only {part} where a part of the object determines the class ([one small model](docs/study/scenes.md))."""
