"""Descriptions of random small networks, and how they are drawn.

A description is a tree of frozen dataclasses, whose representation is what hypothesis prints of a network that fails;
`random_modules.build` makes the network.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st


@dataclass(frozen=True, slots=True)
class Step:
    """One block: what it computes, on tokens in which order, and how it is joined to its input."""

    kind: str = "mlp"
    join: str = "residual"
    order: str = "same"
    scale: str = "same"


@dataclass(frozen=True, slots=True)
class Trunk:
    """A stem, blocks on its tokens, and what the head reads."""

    steps: tuple[Step, ...] = (Step(), Step())
    prepare: str = "nothing"
    stem: str = "patches"
    form: str = "sequence"
    layout: str = "list"
    others: int = 0
    read: str = "mean"


@dataclass(frozen=True, slots=True)
class Vit:
    """A transformer of timm inside a module, and what is done to the image before and to its outputs after."""

    prepare: str = "nothing"
    after: str = "nothing"
    pool: str = "token"
    registers: int = 0
    nested: int = 0
    aliased: bool = False


@dataclass(frozen=True, slots=True)
class Join:
    """Several trunks that receive the same image, and how their logits are joined."""

    trunks: tuple[Trunk | Vit, ...]
    how: str = "sum"


@dataclass(frozen=True, slots=True)
class Exchange:
    """Two trunks side by side whose blocks also receive the mean token of the other one."""

    trunks: tuple[Trunk, Trunk]


@dataclass(frozen=True, slots=True)
class Augmented:
    """One trunk that is called on an image and on a transform of it."""

    trunk: Trunk | Vit
    transform: str = "mirrored"


@dataclass(frozen=True, slots=True)
class Guarded:
    """A trunk that computes more for bright images."""

    trunk: Trunk | Vit
    more: str = "pixels"


Description = Trunk | Vit | Join | Exchange | Augmented | Guarded

COMMON = ("mlp", "attention", "conv", "excite", "swiglu", "multiply", "dense", "parallel", "branches", "context")
RARE = ("experts", "tuple", "custom", "checkpointed", "recurrent")
KINDS = (*COMMON, *COMMON, *RARE)
LOCAL = ("mlp", "conv", "swiglu", "branches")  # kinds that keep the places of tokens without a residual
JOINS = ("residual", "residual", "plain", "in place", "scaled")
ORDERS = ("same", "same", "same", "flipped", "rolled", "transposed", "permuted", "left flipped")
SCALES = ("same", "same", "same", "down", "up")
PREPARE = (
    "nothing",
    "nothing",
    "nothing",
    "mirrored",
    "rolled",
    "transposed",
    "cropped",
    "resized",
    "scaled",
    "standardised",
)
STEMS = ("patches", "patches", "small patches", "convolutions", "unfolded")
FORMS = ("sequence", "sequence", "channels first", "channels last")
LAYOUTS = ("list", "list", "sequential", "pairs", "lists", "bare", "shared", "wrapped", "outside", "constant first")
READS = ("mean", "mean", "flat", "class token", "pyramid", "stem too", "pixels too", "gated", "two heads", "max", "u")
HOWS = ("sum", "mean", "concatenated", "product", "largest")
TRANSFORMS = ("mirrored", "rolled", "transposed", "brighter", "smaller")
MORE = ("pixels", "other trunk", "flipped tokens", "head")


def steps() -> st.SearchStrategy[Step]:
    step = st.builds(Step, *map(st.sampled_from, (KINDS, JOINS, ORDERS, SCALES)))
    return step.map(lambda s: s if s.kind in LOCAL or s.join != "plain" else Step(s.kind, "residual", s.order, s.scale))


def trunks() -> st.SearchStrategy[Trunk]:
    return st.builds(
        Trunk,
        st.lists(steps(), min_size=1, max_size=4).map(tuple),
        *map(st.sampled_from, (PREPARE, STEMS, FORMS, LAYOUTS)),
        st.sampled_from((0, 0, 1, 3)),
        st.sampled_from(READS),
    )


def vits() -> st.SearchStrategy[Vit]:
    afters = ("nothing", "linear", "scaled", "features", "tokens too", "middle too")
    return st.builds(Vit, *map(st.sampled_from, (PREPARE, afters, ("token", "avg"), (0, 0, 2), (0, 1, 2))))


def descriptions() -> st.SearchStrategy[Description]:
    """Descriptions of all kinds, of which single trunks are half."""
    one = st.one_of(trunks(), trunks(), vits())
    several = st.lists(one, min_size=2, max_size=2).map(tuple)
    return st.one_of(
        trunks(),
        trunks(),
        one,
        st.builds(Join, several, st.sampled_from(HOWS)),
        st.builds(Exchange, st.tuples(trunks(), trunks())),
        st.builds(Augmented, one, st.sampled_from(TRANSFORMS)),
        st.builds(Guarded, one, st.sampled_from(MORE)),
    )
