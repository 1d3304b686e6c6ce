"""Conclusions about the papers' claims, written by hand; every number is looked up."""

from __future__ import annotations

from functools import partial

from study import shorts_ours  # noqa: F401 - registers its conclusions
from study.fill_index import BLACK
from study.fill_tokentm import read_orders
from study.names import (
    ABLATION,
    ALTI,
    ATTCAM,
    FAMILIES,
    MODELS,
    TIS,
    TIS_LOGIT,
    TIS_PROBABILITY,
    VARIANT_STEPS,
    VARIANTS,
)
from study.quotes import Quotes, format_list, register_conclusion
from study.sentences import format_number

SENSITIVITY = "max_sensitivity(preset='tis')"
RISE, TAM, TRANSATT = "rise(preset='tis', masks=1000)", "tam(preset='tis')", "transatt(preset='tis')"
SEGMENTED, DELETED, INSERTED = (f"{name}(preset='skipplus')" for name in ("ap", "deletion_aopc", "insertion_aopc"))
ROLLED = "+rollout(form='half')"
PAINTED, IG = "tis(ablate='pixels')", "ig(preset='tis')"


@register_conclusion("skipplus")
def conclude_skipplus(quotes: Quotes) -> str:
    gain = partial(quotes.format_effects, table="skipplus-pairs", metric="mean_aopc")
    loss = partial(quotes.format_effect, "worse", table="skipplus-pairs", metric="mean_aopc", model="DeiT-Tiny")
    against_random = partial(quotes.format_effects, against="random", table="skipplus-pairs")
    start = partial(quotes.format_effects, against="best start", table="skipplus-start-regret", metric="mean_aopc")
    pets = partial(quotes.format_effect, table="skipplus-pets-pairs", metric=SEGMENTED, model="DeiT-Tiny")
    folded = [(plus, alone) for alone, plus, _ in FAMILIES.values()]
    skipped = [(skip, alone) for alone, _, skip in FAMILIES.values()]
    plus_gains, plus_losses, skipplus_gains = (
        quotes.count_verdicts(group, "skipplus-pairs", "mean_aopc", verdict)
        for group, verdict in ((folded, "better"), (folded, "worse"), (skipped, "better"))
    )
    rows = [row for row in quotes.results.figures("skipplus") if row.metric == DELETED]
    undefined = [max((row.undefined for row in rows if row.model == model), default=0) for model in MODELS]
    return format_list(
        f"**Summing over layers helps.** PLUS improves DecompX by {gain('better', 'decompx+plus', 'decompx')} points of mean AOPC, GlobEnc by {gain('better', 'globenc+plus', f'globenc{ROLLED}')} and ALTI by {gain('better', f'{ALTI}+plus', f'{ALTI}{ROLLED}')}, as the paper says; "
        f"of {len(FAMILIES)} methods it improves {plus_gains} and worsens {plus_losses}.",
        f"**SkipPLUS is not better than PLUS for DecompX**, {gain('worse', 'decompx+skipplus', 'decompx+plus')}; of the {len(FAMILIES)} methods it improves {skipplus_gains}. The difference to the best start is {start('worse', 'decompx+skipplus(start=6)')} for the middle layer and {start('open', 'decompx+skipplus(start=0)')} for PLUS, "
        f'so "either PLUS or SkipPLUS is near the best" holds for DecompX because of PLUS. The advantages of SkipPLUS are its cost, half a backward pass, and AP on pets for DeiT-Tiny ({pets("better", "decompx+skipplus", "decompx+plus")} over PLUS).',
        f"**Where PLUS does not help, it is mostly not worse**, as the paper says, with exceptions: PLUS changes GradCAM++ by {gain('worse', 'gradcampp+plus', 'gradcampp')}, and on DeiT-Tiny AttCAM by {loss(f'{ATTCAM}+plus', ATTCAM)} and AttnGrad by {loss('attngrad+plus', 'attngrad')}. GenAtt loses a little on ViT-Tiny: PLUS {gain('worse/open', 'genatt+plus', 'genatt')}, SkipPLUS {gain('worse/open', 'genatt+skipplus', 'genatt')}.",
        f"**No trade-off.** Across methods insertion and deletion are positively correlated (Kendall's τ {quotes.format_orders('together', 'skipplus-trades', DELETED, INSERTED, dataset='val')}). Deletion correlates with AP, as published ({quotes.format_orders('together', 'skipplus-pets-trades', DELETED, SEGMENTED, dataset='pets')}).",
        f"**ALTI under Rollout** divides by zero here: as published {' / '.join(map(str, undefined))} of 250 maps are undefined. With 10⁻¹² added no map is undefined, but the form of the authors' code, without the identity (`ALTI_ro`), "
        f"is below a random map by insertion ({against_random('worse', ALTI, metric=INSERTED)} of insertion AOPC) and above it by deletion ({against_random('better', ALTI, metric=DELETED)}); with ½(I + T) it is above by both ({against_random('better', f'{ALTI}{ROLLED}', metric=INSERTED)} and {against_random('better', f'{ALTI}{ROLLED}', metric=DELETED)}). "
        f"GlobEnc is below by insertion on ViT-Tiny in both forms (`globenc_norm2_ro` {against_random('worse/open', 'globenc', metric=INSERTED)}, ½(I + T) {against_random('worse/open', f'globenc{ROLLED}', metric=INSERTED)}).",
    )


@register_conclusion("tokentm")
def conclude_tokentm(quotes: Quotes) -> str:
    area = partial(quotes.format_effects, table="tokentm-pets-pairs", metric="miou")
    curve = partial(quotes.format_effects, table="tokentm-pairs", explained="predicted")
    negative, positive = (f"{word}_auc(preset='tokentm')" for word in ("negative", "positive"))
    both = [*quotes.results.effects("tokentm-pets-pairs"), *quotes.results.effects("tokentm-pairs")]
    ahead = [row for row in both if (row.method, row.against) == ("tokentm", "genatt") and row.low > 0]
    quotes.require(not ahead, "TokenTM is ahead of GenAtt in no measure")
    base, fused, long, whole = ABLATION
    taus = {variant: compute_mean_tau(quotes, variant) for variant in (*VARIANTS, *VARIANT_STEPS)}
    method_taus, step_taus = ([taus[variant] for variant in group] for group in (VARIANTS, VARIANT_STEPS))
    before, after = ([tau for variant, tau in taus.items() if f"{word} LayerNorm" in variant] for word in ("before", "after"))  # fmt: skip
    quotes.require(
        max(method_taus) - min(method_taus) < 0.05, "the order of nine methods does not distinguish the variants"
    )
    quotes.require(min(after) > max(before), "lengths after LayerNorm are closer to the order of the steps")
    assert len(step_taus) == len(before) + len(after)
    quotes.require(
        find_disjoint(quotes) == {("ViT-Tiny", "pets")},
        "intervals of the variants overlap except for masks on ViT-Tiny",
    )
    return format_list(
        f"**TokenTM is not better than GenAtt here.** It is better in none of nine measures on either model, and worse on masks: mIoU {area('worse', 'tokentm', 'genatt')}. By negative AUC it is {curve('worse/open', 'tokentm', 'genatt', metric=negative)}, by positive AUC {curve('open', 'tokentm', 'genatt', metric=positive)}. "
        "The differences in the paper are as small, so the models or masks may determine the sign; it is not an improvement in general.",
        f"**Of its parts, aggregation over layers (AF) has the only large effect**, as in the paper: {area('better', fused, base)} of mIoU. Lengths (L) change it by {area('open', long, fused)}, directions (NECC) lower it a little, {area('worse', whole, long)}.",
        f"**The unspecified details remain undecided.** The order of nine methods does not distinguish the variants (mean τ {format_number(min(method_taus), 2)} to {format_number(max(method_taus), 2)}). The order of the four steps is weak evidence for measuring after LayerNorm (mean τ {format_number(min(after), 2)} against {format_number(max(before), 2)} at best; four items, and intervals that overlap except for masks on ViT-Tiny), and does not decide between probability and logit.",
    )


def compute_mean_tau(quotes: Quotes, variant: str) -> float:
    taus = [row.tau for row in read_orders(quotes.results) if row.metric == variant and row.tau == row.tau]
    return sum(taus) / len(taus) if taus else 0.0


def find_disjoint(quotes: Quotes) -> set[tuple[str, str]]:
    """Models and datasets on which the intervals of all variants of the steps have no point in common."""
    rows = [row for row in read_orders(quotes.results) if row.metric in VARIANT_STEPS and row.tau == row.tau]
    rows_by_key = {key: [row for row in rows if (row.model, row.dataset) == key] for key in {(row.model, row.dataset) for row in rows}}  # fmt: skip
    return {
        key
        for key, group in rows_by_key.items()
        if max(row.tau_low for row in group) > min(row.tau_high for row in group)
    }


@register_conclusion("tis")
def conclude_tis(quotes: Quotes) -> str:
    mean, blur, noise = (BLACK.replace("black", word) for word in ("mean", "blur", "random"))
    first = partial(quotes.format_effects, method=TIS, table="tis-pairs")
    options = partial(quotes.format_effects, method="tis", table="tis-options-pairs")
    images = max((row.n for row in quotes.results.effects("tis-pairs")), default=0)
    logit_effect = quotes.format_effect("open|worse", TIS_LOGIT, TIS_PROBABILITY, "tis-disagreement-gap-pairs", "energy_pointing", "ViT-Tiny", dataset="val, gap 0.75–1")  # fmt: skip
    peak = partial(quotes.format_effects, method="tis(masks=256)", table="tis-pointing-pairs", metric="pointing_game(preset='tis')")  # fmt: skip
    compare_sensitivity = partial(quotes.format_effects, method=TIS, table="tis-sensitivity-pairs", metric=SENSITIVITY)
    sensitivity = partial(quotes.format_means, table="tis-sensitivity", metric=SENSITIVITY)
    perturbed_images = max((row.n for row in quotes.results.effects("tis-sensitivity-pairs")), default=0)
    return format_list(
        f"**TIS is first among the paper's methods** on three of four baselines on both models (black: {first('better', against='genatt', metric=BLACK)} over GenAtt), and behind Integrated Gradients on blur ({first('worse', against=IG, metric=blur)}), both as published.",
        f"**AttnLRP summed over layers, which the paper did not compare, is not significantly worse than TIS** on any of the four baselines, on {images} images and at less than a hundredth of the cost, and on DeiT-Tiny it is better on blur: TIS minus AttnLRP∘PLUS is {first('open', against='attnlrp+plus', metric=BLACK)} on black, {first('open', against='attnlrp+plus', metric=mean)} on mean, {first('open', against='attnlrp+plus', metric=noise)} on random and {first('open/worse', against='attnlrp+plus', metric=blur)} on blur.",
        f"**Pointing game:** no significant difference to GenAtt ({peak('open', against='genatt')}); the paper has TIS well ahead of GenAtt, and on ViT-B behind BT-H and BT-T (0.823 against 0.855 and 0.846).",
        f"**Max-sensitivity is mostly as published**, on {perturbed_images} images: TIS has {sensitivity(TIS)} (the paper's ViT-B / DeiT-B: 0.156 / 0.162), TAM is less sensitive ({compare_sensitivity('worse', against=TAM)}), RISE only on DeiT-Tiny ({compare_sensitivity('open/worse', against=RISE)}), Integrated Gradients and TransAtt are far more sensitive ({compare_sensitivity('better', against=IG)} and {compare_sensitivity('better', against=TRANSATT)}). GenAtt, less sensitive than TIS in the paper, is more sensitive on ViT-Tiny ({compare_sensitivity('better/worse', against='genatt')}).",
        f"**Masks:** 1024 minus 128 is {options('better', against='tis(masks=128)', metric='faithfulness')} of faithfulness, 1024 minus 512 {options('better', against='tis(masks=512)', metric='faithfulness')} and 1024 minus 2048 {options('worse', against='tis(masks=2048)', metric='faithfulness')}: the gain is small beyond 512, not beyond 128, and there is still a gain beyond 1024.",
        f"**Removing tokens instead of painting pixels over**, the paper's main claim, gains {options('better', against=PAINTED, metric='faithfulness')} where the metric removes tokens too, and {options('open', against=PAINTED, metric=BLACK)} where it paints pixels over as the paper's does: some of the gain comes from the metric.",
        f"**Where the model predicts another class with high probability** there are too few images to decide whether the logit moves the peak; by energy pointing it does not help on ViT-Tiny ({logit_effect}).",
    )
