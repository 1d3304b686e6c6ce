"""Conclusions about questions that no paper answers, written by hand; every number is looked up."""

from __future__ import annotations

from functools import partial

from study.effects import select_rows
from study.fill_beyond import EIGHTH, count_passes, format_percent
from study.names import PROBABLE, QUESTIONS
from study.quotes import Quotes, format_list, register_conclusion
from study.sentences import judge

LRP, SHARE, BIASES = PROBABLE["attnlrp"], PROBABLE["decompx"], "fullgrad(question='probability')@tempered+plus"


@register_conclusion("newer")
def conclude_newer(quotes: Quotes) -> str:
    against_skipplus = partial(
        quotes.format_effects, against="decompx+skipplus", table="newer-pairs", metric="faithfulness"
    )
    newer = partial(quotes.format_effects, table="newer-pairs", metric="faithfulness")
    grid = [row for row in quotes.results.effects("newer-grid-chosen") if "confirm" in row.dataset]
    tops = {row.model: row for row in reversed(grid)}
    quotes.require(
        {(row.method, row.against) for row in tops.values()} == {("fullgrad@tempered+plus", "fullgrad@libra+plus")},
        "fullgrad@tempered+plus is the combination that was selected on both models",
    )
    question_effects = [
        row for row in quotes.results.effects("newer-pairs") if (row.method, row.against) in QUESTIONS.values()
    ]
    quotes.require(all(row.high >= 0 for row in question_effects), "no method loses when it explains the probability")
    best = partial(quotes.format_effects, table="newer-grid-chosen", metric="faithfulness", dataset="val, to confirm")
    mean_of = partial(quotes.format_means, table="newer-grid", metric="faithfulness", dataset="val, to confirm")
    return format_list(
        f"**Of the published methods, `fullgrad@libra+plus` is the best** with one backward pass, {against_skipplus('better', 'fullgrad@libra+plus')} over DecompX∘SkipPLUS. AttnLRP as published, with the map of the first layer, is {against_skipplus('worse/better', 'attnlrp')}, LeGrad {against_skipplus('worse', 'legrad')}.",
        f"**AttnLRP summed over layers**, which is not published, is {against_skipplus('better', 'attnlrp+plus')} over DecompX∘SkipPLUS. Input × gradient summed over layers has a faithfulness of {mean_of('ixg+plus')} with plain gradients and {mean_of('ixg@libra+plus')} with Libra's (means, not paired differences).",
        f"**Explain the probability, not the logit:** {newer('better', SHARE, 'decompx+plus')} for DecompX∘PLUS, {newer('better', LRP, 'attnlrp+plus')} for AttnLRP∘PLUS; no method loses by this.",
        f"**An unpublished combination beats the best published one** on images that were not used to select it: `fullgrad@tempered+plus`, {best('better', 'fullgrad@tempered+plus', 'fullgrad@libra+plus')}. [Beyond](beyond.md) continues from there.",
    )


@register_conclusion("scenes")
def conclude_scenes(quotes: Quotes) -> str:
    tau = partial(quotes.format_order, truth="ap")
    tis_effect = partial(
        quotes.format_effect, method="tis(masks=256)", against=SHARE, table="scenes-pairs", metric="ap", model="Scenes"
    )
    pair_effect = partial(quotes.format_effect, table="scenes-pair-pairs", model="Scenes")
    stamp = partial(quotes.format_mean, table="shortcut", metric="stamp_above_thing")
    contrast = {row.method: row.mean for row in select_rows(quotes.results.figures("shortcut"), metric="stamp_above_thing", model="biased − plain")}  # fmt: skip
    quotes.require(contrast.get("tis(masks=256)", 0) > 0.9 > contrast.get("temper", 1) > 0.3, "TIS distinguishes the two models more clearly than temper")  # fmt: skip
    quotes.require(contrast.get("gradcam", 0) < -0.3, "Grad-CAM shows the stamp in the wrong model")
    return format_list(
        f"**Which methods find the evidence?** If it is a whole object (`single`), methods that run the model with patches removed: the AP of TIS with 256 masks minus that of DecompX∘PLUS explaining the probability is {tis_effect('better', dataset='single')}. If it is one small mark (`part`), TIS is not better, {tis_effect('open|worse', dataset='part')}.",
        f"**Two classes in one image** are distinguished by explaining the probability: {pair_effect('better', SHARE, 'decompx+plus', metric='class_discrimination')} of class discrimination for DecompX∘PLUS. Maps from attention alone and from sums of vectors do not depend on the class.",
        f"**The shortcut is exposed most clearly by running the model with patches removed.** The probability that a pixel of the stamp scores above a pixel of the object is {stamp('tis(masks=256)', model='scenes-biased')} in the model that uses the stamp and {stamp('tis(masks=256)', model='scenes')} in the other for TIS with 256 masks. `temper` and similar methods show the stamp in the model that uses it just as clearly ({stamp('temper', model='scenes-biased')}), but often in the other model, too ({stamp('temper', model='scenes')}). Grad-CAM shows it in the wrong model ({stamp('gradcam', model='scenes-biased')} and {stamp('gradcam', model='scenes')}).",
        f"**Do the metrics agree with the ground truth?** Where whole objects are the evidence, yes: the order of methods by faithfulness (token removal) and by AP has τ {tau('together', 'scenes-orders', 'faithfulness', dataset='single')} on `single` and {tau('together', 'scenes-pair-orders', 'faithfulness', dataset='pair')} on `pair`, close to the agreement of the ground truth with itself.",
        f"**Where the evidence is small, they separate good methods from useless ones, but do not rank good ones.** On `part`, among the better half of the methods, faithfulness has τ {tau('open|apart', 'scenes-orders', 'faithfulness', among='better half', dataset='part')} with the ground truth, insertion over blur {tau('together', 'scenes-orders', BLURRED, among='better half', dataset='part')}. Small differences in faithfulness between good methods do not show that one of them is more correct.",
        models=False,
    )


BLURRED = "insertion(steps=28, baseline='blur')"


@register_conclusion("beyond")
def conclude_beyond(quotes: Quotes) -> str:
    val = partial(quotes.format_effects, table="beyond-pairs", metric="faithfulness")
    pets = partial(quotes.format_effects, table="beyond-pets-pairs", metric="faithfulness")
    scenes = partial(quotes.format_effect, table="beyond-scenes-pairs", metric="faithfulness", model="Scenes")
    mask = partial(quotes.format_means, table="beyond-pets", metric="ap")
    evidence = partial(quotes.format_effect, table="scenes-pairs", metric="ap", model="Scenes")
    presence_effects = select_rows(quotes.results.effects("beyond-scenes-pairs"), metric="faithfulness", method="presence", against="random")  # fmt: skip
    relation = "worse than" if [judge(row) for row in presence_effects] == ["worse"] else "no better than"
    share = count_passes("anneal") / count_passes("tis")
    quotes.require(share <= EIGHTH, "anneal costs at most an eighth of TIS")
    return format_list(
        f"**One backward pass:** `temper` beats every published method of that cost on both models, {val('better', 'temper', 'fullgrad@libra+plus')} of faithfulness over the best of them, `fullgrad@libra+plus`, on images that were not used to select anything.",
        f"**As faithful as TIS with 1024 masks at an eighth of its cost:** even more faithful. `fuse`, which costs {count_passes('fuse'):g} forward passes ({format_percent(count_passes('fuse') / count_passes('tis'))}), is ahead by {val('better', 'fuse', 'tis')}, `anneal` ({format_percent(share)}) by {val('better', 'anneal', 'tis')}.",
        f"**`anneal` gains little over `fuse`:** {val('better/open', 'anneal', 'fuse')}, at {count_passes('anneal') / count_passes('fuse'):g} times the cost.",
        f"**On pets** the same three differences are {pets('better', 'temper', 'fullgrad@libra+plus')}, {pets('better', 'fuse', 'tis')} and {pets('better', 'anneal', 'tis')}.",
        f"**The last step of `temper` is small.** AttnLRP summed over layers and explaining the probability, which is unpublished, is not significantly different from it on ViT-Tiny and is close on DeiT-Tiny: {val('open/better', 'temper', LRP)}.",
        f"**The maps are not masks.** AP on pets is {mask('temper')} for `temper` and {mask('anneal')} for `anneal`; `decompx+skipplus` has {mask('decompx+skipplus')}.",
        f"**On Scenes the slope does not help.** `fuse` is behind `temper`, {scenes('worse', 'fuse', 'temper')} of faithfulness, and the slope alone, `presence`, is {relation} a random map, {scenes('worse|open', 'presence', 'random')}.",
        f"**They find less of the known evidence**, which is a limitation: the difference of AP on `single` is {evidence('worse', 'anneal', 'tis(masks=256)', dataset='single')} for `anneal` minus TIS with 256 masks and {evidence('worse', 'fuse', SHARE, dataset='single')} for `fuse` minus DecompX∘PLUS explaining the probability, on `part` {evidence('worse', 'anneal', 'tis(masks=256)', dataset='part')} and {evidence('worse', 'fuse', SHARE, dataset='part')}.",
    )
