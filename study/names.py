"""Methods that the study compares, by the names of the papers, and the pairs that each page compares."""

from __future__ import annotations

from itertools import pairwise

MODELS = ("ViT-Tiny", "DeiT-Tiny")
BARE = (
    "alti(preset='skipplus')"  # as published: a row without a positive contribution is 0/0, and Rollout spreads the NaN
)
ALTI, ATTIXG, ATTCAM = "alti(preset='skipplus', eps=1e-12)", "attixg(preset='skipplus')", "attcam(preset='skipplus')"
TEMPERED = "temper"


def list_folds(base: str) -> tuple[str, str, str]:
    return base, f"{base}+plus", f"{base}+skipplus"


# SkipPLUS: a method alone, under PLUS and under SkipPLUS
FAMILIES = {
    "DecompX": list_folds("decompx"),
    "GlobEnc": ("globenc+rollout(form='half')", "globenc+plus", "globenc+skipplus"),
    "ALTI": (f"{ALTI}+rollout(form='half')", f"{ALTI}+plus", f"{ALTI}+skipplus"),
    "ALTI of its authors": list_folds("alti"),
    "AttIN": list_folds("attin"),
    "IxG": list_folds("ixg"),
    "AttIxG": list_folds(ATTIXG),
    "FullGrad": ("fullgrad", "fullgrad+plus(biases='repeat')", "fullgrad+skipplus(biases='repeat')"),
    "FullGrad+": ("fullgrad", "fullgrad+plus", "fullgrad+skipplus"),
    "GradCAM": list_folds("gradcam"),
    "XGradCAM": list_folds("xgradcam"),
    "XGradCAM+": list_folds("xgradcamplus"),
    "GradCAM++": list_folds("gradcampp"),
    "GradCAMElementWise": list_folds("elementwise"),
    "AttCAM": list_folds(ATTCAM),
    "VanillaGrad:Norm2": list_folds("vanillagrad_norm"),
    "VanillaGrad": list_folds("vanillagrad"),
    "AttnGrad": list_folds("attngrad"),
    "GenAtt": list_folds("genatt"),
    "TransAtt": list_folds("transatt"),
}
VANISHING = {
    "ALTI, ½(I + T)": f"{ALTI}+rollout(form='half')",
    "ALTI, own rollout": ALTI,
    "ALTI as published, ½(I + T)": f"{BARE}+rollout(form='half')",
    "ALTI as published, own rollout": BARE,
    "ALTI of its authors": "alti",
    "GlobEnc, ½(I + T)": "globenc+rollout(form='half')",
    "GlobEnc, own rollout": "globenc",
}
SWEPT = (
    "decompx", "globenc", ALTI, "genatt", "ixg", ATTIXG, "fullgrad", "alti", "attin", "transatt", "attngrad", "vanillagrad_norm", "vanillagrad",
    "gradcam", "xgradcam", "xgradcamplus", "gradcampp", "elementwise", ATTCAM,
)  # fmt: skip
SHOWN_STARTS = SWEPT[:7]  # in the figure
STARTS = {spec: {start: f"{spec}+skipplus(start={start})" for start in range(12)} for spec in SWEPT}
MIDDLE = 6

ABLATION = ("tokentm(preset='baseline')", "tokentm(preset='af')", "tokentm(preset='af+l')", "tokentm")
VARIANTS = (
    "tokentm", "tokentm(question='logit')", "tokentm(source='norm')", "tokentm(question='logit', source='norm')",
    "tokentm(value_bias=True)", "tokentm(preset='libragrad')",
)  # fmt: skip
VARIANT_STEPS = {  # details that the paper does not specify: its four steps in each variant
    "probability, before LayerNorm": ABLATION,
    "logit, before LayerNorm": (
        "tokentm(preset='baseline', question='logit')", "tokentm(preset='af', question='logit')",
        "tokentm(preset='af+l', question='logit')", "tokentm(question='logit')",
    ),
    "probability, after LayerNorm": (*ABLATION[:2], "tokentm(preset='af+l', source='norm')", "tokentm(source='norm')"),
    "logit, after LayerNorm": (
        "tokentm(preset='baseline', question='logit')", "tokentm(preset='af', question='logit')",
        "tokentm(preset='af+l', question='logit', source='norm')", "tokentm(question='logit', source='norm')",
    ),
}  # fmt: skip

TIS = "tis(preset='released')"
SPEC_BY_SHARE = {0.5: "tis(masks=512)", **{share: f"tis(masks=512, kept={share})" for share in (0.1, 0.3, 0.7, 0.9)}}
TIS_PROBABILITY, TIS_LOGIT = (
    "tis(masks=128)",
    "tis(masks=128, question='logit')",
)  # used where label and prediction differ

# published cells of the grid: SkipPLUS's and LibraGrad's, and those with names of their own
PUBLISHED = frozenset(
    [spec + fold for spec in ("ixg", "fullgrad", "attixg", "genatt", "attngrad", "gradcam", "elementwise") for fold in ("", "+plus", "+skipplus")]
    + [spec + "@libra" for spec in ("ixg", "fullgrad", "attixg", "genatt", "attngrad", "tokentm", "gradcam", "elementwise")]
    + ["ixg@libra+plus", "ixg@libra+skipplus", "fullgrad@libra+plus", "attixg@libra+plus", "ixg@conservative", "ixg@attnlrp"]
    + ["tokentm", "legrad"]
)  # fmt: skip
SIGNALS = ("ixg", "fullgrad", "attixg", "genatt", "attngrad", "tokentm", "gradcam", "elementwise", "legrad")
LINEARISATIONS = {"plain": "", "conservative": "@conservative", "libra": "@libra", "attnlrp": "@attnlrp", "tempered": "@tempered"}  # fmt: skip
FOLDS = {"own": "", "PLUS": "+plus", "SkipPLUS": "+skipplus"}

QUESTIONS = {  # explaining the probability, and explaining the logit
    "GenAtt": ("genatt(question='probability')", "genatt"),
    "DecompX∘PLUS": ("decompx(question='probability')+plus", "decompx+plus"),
    "DecompX∘SkipPLUS": ("decompx(question='probability')+skipplus", "decompx+skipplus"),
    "AttnLRP": ("attnlrp(question='probability')", "attnlrp"),
    "AttnLRP∘PLUS": ("attnlrp(question='probability')+plus", "attnlrp+plus"),
    "FullGrad@libra∘PLUS": ("fullgrad(question='probability')@libra+plus", "fullgrad@libra+plus"),
    "LeGrad": ("legrad(question='probability')", "legrad"),
}
PROBABLE = {name: f"{name}(question='probability')+plus" for name in ("decompx", "attnlrp")}
ON_SCENES = {  # comparisons of the other pages, repeated where the evidence is known
    "DecompX∘PLUS, probability − logit": (PROBABLE["decompx"], "decompx+plus"),
    "AttnLRP∘PLUS, probability − logit": (PROBABLE["attnlrp"], "attnlrp+plus"),
    "DecompX∘PLUS − DecompX": ("decompx+plus", "decompx"),
    "DecompX∘SkipPLUS − DecompX": ("decompx+skipplus", "decompx"),
    "GenAtt∘SkipPLUS − GenAtt": ("genatt+skipplus", "genatt"),
    "TokenTM − GenAtt": ("tokentm", "genatt"),
    "Temper − DecompX∘PLUS, both probability": (TEMPERED, PROBABLE["decompx"]),
    "Temper − AttnLRP∘PLUS, both probability": (TEMPERED, PROBABLE["attnlrp"]),
    "Fuse − DecompX∘PLUS, both probability": ("fuse", PROBABLE["decompx"]),
    "Anneal − TIS, 256 masks": ("anneal", "tis(masks=256)"),
    "TIS, 256 masks − DecompX∘PLUS, probability": ("tis(masks=256)", PROBABLE["decompx"]),
    "TIS, 256 masks, probability − logit": ("tis(masks=256)", "tis(masks=256, question='logit')"),
}
# selected variants and their alternatives, compared on the selection half
TEMPERED_SPEC = "ixg(question='probability')@tempered({})+plus"
TEMPER_LESS = {
    "probability instead of logit": (TEMPERED, "temper(question='logit')"),
    "not the margin": (TEMPERED, "temper(question='margin')"),
    "LayerNorm's σ fixed, not differentiated": (TEMPERED, TEMPERED_SPEC.format("norm='exact'")),
    "LayerNorm's mean not fixed": (TEMPERED, TEMPERED_SPEC.format("norm='fixed'")),
    "activations as ratios, not derivatives": (TEMPERED, TEMPERED_SPEC.format("activation='exact'")),
    "values whole, not halved": (TEMPERED, TEMPERED_SPEC.format("v=0.5")),
    "all layers summed, not the first alone": (TEMPERED, "temper+first"),
    "not from the middle layer on": (TEMPERED, "temper+skipplus"),
    "shares of tokens alone, not of biases too": (TEMPERED, "fullgrad(question='probability')@tempered+plus"),
}
QK = {
    0: TEMPERED_SPEC.format("qk=0"),
    0.125: TEMPERED_SPEC.format("qk=0.125"),
    0.25: TEMPERED,
    0.375: TEMPERED_SPEC.format("qk=0.375"),
}
QK |= {share: TEMPERED_SPEC.format(f"qk={share}") for share in (0.5, 0.75, 1)}
FUSE_LESS = {
    "share and slope, not the share alone": ("fuse", TEMPERED),
    "not the slope alone": ("fuse", "presence"),
    "probability instead of logit": ("fuse", "fuse(question='logit')"),
    "not the margin": ("fuse", "fuse(question='margin')"),
    "the slope alone: exact, not with σ fixed": ("presence", "presence@conservative"),
    "the slope alone: exact, not tempered": ("presence", "presence@tempered"),
}
ANNEAL_LESS = {
    "16 halves, not the whole image alone": ("anneal", "fuse"),
    "16 halves, not 8": ("anneal", "anneal(coalitions=8)"),
    "32 halves, not 16": ("anneal(coalitions=32)", "anneal"),
    "halves, not quarters and their complements": ("anneal", "anneal(kept=0.25)"),
    "halves, not a tenth to a half in turn": ("anneal", "anneal(kept=(0.1, 0.2, 0.3, 0.4, 0.5))"),
    "halves, not three quarters (1.5 times the cost)": ("anneal", "anneal(kept=0.75, complements=False)"),
    "halves, not nine tenths (nearly twice the cost)": ("anneal", "anneal(kept=0.9, complements=False)"),
    "share and slope, not the share alone": ("anneal", "anneal(of='temper')"),
    "not the slope alone": ("anneal", "anneal(of='presence')"),
    "probability instead of logit": ("anneal", "anneal(question='logit')"),
    "the share alone: 16 halves, not the whole image": ("anneal(of='temper')", TEMPERED),
}
OURS = (TEMPERED, "presence", "fuse", "anneal")
PAIRS_BY_PROBABILITY = (("presence", TEMPERED), ("fuse", TEMPERED), ("anneal", "fuse"), ("tis", TEMPERED))


def is_ours(method: str) -> bool:
    return method.partition("(")[0] in OURS


TRUTHS = ("ap", "pointing_game", "energy_pointing", "class_discrimination")
DESCRIBES = ("sparseness",)


def list_pairs(plan: str, methods: tuple[str, ...]) -> list[tuple[str, str]]:
    """Pairs of methods of a plan that are compared, (method, against)."""
    match plan:
        case "skipplus" | "skipplus-pets":
            own = [(folded, base) for base, *both in FAMILIES.values() for folded in both]
            own += [(skip, plus) for _, plus, skip in FAMILIES.values()]
            own += [(base, "random") for base in VANISHING.values()]
            own += [("decompx+skipplus", other) for other in methods]
        case "skipplus-vanish":
            own = [(method, other) for method in VANISHING.values() for other in ("random", "genatt")]
        case "tokentm" | "tokentm-pets":
            own = [(later, earlier) for steps in VARIANT_STEPS.values() for earlier, later in pairwise(steps)]
            own += [(method, other) for method in VARIANTS for other in ("genatt", "tokentm")]
            own += [("tokentm", other) for other in methods] + [("tokentm", "genatt(question='probability')")]
        case "tis" | "tis-sensitivity":
            own = [(TIS, other) for other in methods]
        case "tis-pointing":
            own = [("tis(masks=256)", other) for other in methods]
        case "tis-options":
            own = [("tis", other) for other in methods] + [
                (SPEC_BY_SHARE[0.5], other) for other in SPEC_BY_SHARE.values()
            ]
        case "tis-disagreement":
            own = [(TIS_LOGIT, TIS_PROBABILITY)]
        case "newer":
            own = [(other, "genatt") for other in methods] + [(other, "decompx+skipplus") for other in methods]
            own += list(QUESTIONS.values())
        case "beyond-choose":
            own = [*TEMPER_LESS.values(), *FUSE_LESS.values(), *ANNEAL_LESS.values()]
            own += [(TEMPERED, other) for other in QK.values()]
        case "beyond" | "beyond-pets" | "beyond-scenes":
            own = [(method, other) for method in methods if is_ours(method) for other in methods if not is_ours(other)]
            own += [(method, other) for method in OURS for other in OURS] + [(method, "tis") for method in methods]
        case "scenes" | "scenes-pair":
            own = list(ON_SCENES.values())
            own += [(method, other) for method in OURS for other in (PROBABLE["decompx"], "tis(masks=256)")]
        case "zebras":
            own = [(other, "genatt") for other in methods] + [("decompx+skipplus", "decompx")]
        case _:
            own = []
    return [pair for pair in dict.fromkeys(own) if pair[0] != pair[1] and set(pair) <= set(methods)]


def is_compared(plan: str, metric: str) -> bool:
    """Whether pairs of a plan are compared by a metric; metrics that no page shows are left out of the tables."""
    return metric in READ.get(plan, (metric,))


READ = {
    "skipplus-pets": ("ap(preset='skipplus')",),
    "scenes": ("ap", "pointing_game"),
    "scenes-pair": ("ap", "class_discrimination"),
    "newer": ("faithfulness",),
    "beyond": ("faithfulness",),
    "beyond-choose": ("faithfulness",),
    "beyond-pets": ("faithfulness", "ap"),
    "beyond-scenes": ("faithfulness", "ap", "class_discrimination"),
}
