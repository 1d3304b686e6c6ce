"""All random choices of an image, made before drawing.

A `ScenePlan` is plain data: replace one field and render it again to get the same image with only that change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from vitreous.core.errors import SpecError
from vitreous.scenes.drawings import CLUTTER, OCCLUDERS, PAIRED_CLASSES, STAMP_RADIUS, THINGS, UPRIGHT, Stamp
from vitreous.scenes.sprite import SIZE, Light, Pose
from vitreous.scenes.surfaces import SURFACES, Ground

CLASSES: tuple[str, ...] = (*THINGS, *PAIRED_CLASSES)
PAIRED_INDICES = tuple(CLASSES.index(name) for name in PAIRED_CLASSES)
MARKS = ("aligned", "moved", "absent")


@dataclass(frozen=True, slots=True)
class Item:
    """An object or a piece of clutter: name, pose, lightness, and the seed of its colours and details.

    Parameters
    ----------
    name
        Name of a class or of a kind of clutter.
    pose
        Position, size and rotation.
    lightness
        Lightness of its colours (OKLCH).
    seed
        Seed of its colours and details.

    Examples
    --------
    >>> from vitreous import scenes
    >>> plan = scenes.plan("single", seed=0, index=0, label="gear")
    >>> plan.things[0].pose.radius > 0
    True
    """

    name: str
    pose: Pose
    lightness: float
    seed: int


@dataclass(frozen=True, slots=True)
class ScenePlan:
    """Everything needed to draw an image.

    Parameters
    ----------
    kind
        Kind of scene, a key of `KINDS`.
    seed, index
        Seed and number of the image.
    ground
        Background surface.
    light
        Direction of the light and strength of shadows.
    behind
        Clutter behind the objects.
    things
        Objects from back to front; the first one is the target.
    front
        Clutter in front of the objects.
    stamp
        The stamp of a "shortcut" scene, or None.

    Examples
    --------
    >>> from vitreous import scenes
    >>> plan = scenes.plan("single", seed=0, index=0, label="gear")
    >>> plan.kind, len(plan.things)
    ('single', 1)
    """

    kind: str
    seed: int
    index: int
    ground: Ground
    light: Light
    behind: tuple[Item, ...]
    things: tuple[Item, ...]
    front: tuple[Item, ...]
    stamp: Stamp | None = None


def paired_class(label: int) -> int | None:
    """Index of the paired class, which differs from this one only in a mark; None if there is none.

    Parameters
    ----------
    label
        Class index.

    Returns
    -------
    int or None

    Examples
    --------
    >>> from vitreous.scenes import CLASSES, paired_class
    >>> CLASSES[paired_class(CLASSES.index("heart card"))]
    'diamond card'
    """
    if label not in PAIRED_INDICES:
        return None
    return PAIRED_INDICES[PAIRED_INDICES.index(label) ^ 1]


def plan(kind: str, seed: int, index: int, *, label: int | str | None = None, mark: str = "aligned") -> ScenePlan:
    """Make all random choices for image number `index` of this kind and seed.

    Parameters
    ----------
    kind
        "single", "pair", "part" or "shortcut"; see `KINDS`.
    seed
        Seed of the dataset.
    index
        Number of the image.
    label
        Class of the target by name or index; random by default.
    mark
        The stamp of a "shortcut" encodes the class ("aligned") or another class ("moved"), or is "absent".

    Returns
    -------
    ScenePlan

    Raises
    ------
    SpecError
        If kind, label or mark is unknown, or a "part" is requested of a class without a paired class.

    Examples
    --------
    >>> from vitreous import scenes
    >>> plan = scenes.plan("single", seed=0, index=0, label="gear")
    >>> plan.things[0].name
    'gear'
    """
    if kind not in KINDS:
        raise SpecError(f"no kind of scene {kind!r}; known: {', '.join(KINDS)}")
    if mark not in MARKS:
        raise SpecError(f"a stamp cannot be {mark!r}; it can be {', '.join(MARKS)}")
    for name, value in {"seed": seed, "index": index}.items():
        if not isinstance(value, int | np.integer) or value < 0:
            raise SpecError(f"{name}={value!r}; a whole number from 0 on would work")
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, index, tuple(KINDS).index(kind)))))
    ground = _ground(rng)
    angle = rng.uniform(0, 2 * math.pi)
    light = Light(math.cos(angle), math.sin(angle), rng.uniform(0.28, 0.5))
    behind = tuple(_clutter(rng) for _ in range(rng.integers(2, 6)))
    labels = _labels(rng, kind, label)
    corner = _corner(rng)
    things = tuple(_things(rng, kind, ground, labels, corner if kind == "shortcut" else None))
    front = _occluders(rng, things)
    stamp = _stamp(rng, labels[0], corner, mark) if kind == "shortcut" else None
    return ScenePlan(kind, seed, index, ground, light, behind, things, front, stamp)


def _labels(rng: np.random.Generator, kind: str, requested: int | str | None) -> tuple[int, ...]:
    pool = PAIRED_INDICES if kind == "part" else tuple(range(len(CLASSES)))
    first = pool[rng.integers(len(pool))]
    step = int(rng.integers(1, len(CLASSES)))
    if requested is not None:
        first = _index_of(requested)
        if first not in pool:
            raise SpecError(
                f"{CLASSES[first]!r} has no paired class, so it is not decided by a part; use one of {', '.join(PAIRED_CLASSES)}"
            )
    return (first, (first + step) % len(CLASSES)) if kind == "pair" else (first,)


def _index_of(label: int | str) -> int:
    if isinstance(label, str) and label in CLASSES:
        return CLASSES.index(label)
    if isinstance(label, int) and 0 <= label < len(CLASSES):
        return label
    raise SpecError(f"no class {label!r}; known: {', '.join(CLASSES)}, or their number from 0 to {len(CLASSES) - 1}")


def _ground(rng: np.random.Generator) -> Ground:
    styles = tuple(SURFACES)
    return Ground(
        style=styles[rng.integers(len(styles))],
        lightness=0.45 + 0.46 * math.sqrt(rng.random()),
        chroma=rng.uniform(0.015, 0.09),
        hue=rng.random(),
        angle=rng.uniform(0, 2 * math.pi),
        seed=_seed(rng),
    )


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(1 << 62))


def _contrasting(rng: np.random.Generator, ground: Ground) -> float:
    """Random lightness that differs from the ground's by at least 0.2."""
    low, high = (0.46, ground.lightness - 0.2) if ground.lightness > 0.69 else (ground.lightness + 0.2, 0.92)
    return rng.uniform(low, high)


def _clutter(rng: np.random.Generator) -> Item:
    names = tuple(CLUTTER)
    name = names[rng.integers(len(names))]
    litter = CLUTTER[name]
    pose = Pose(
        x=rng.uniform(0, SIZE),
        y=rng.uniform(0, SIZE),
        radius=rng.uniform(litter.smallest, litter.largest),
        angle=rng.uniform(0, 2 * math.pi),
    )
    return Item(name, pose, rng.uniform(0.35, 0.85), _seed(rng))


def _corner(rng: np.random.Generator) -> tuple[float, float]:
    x, y = rng.uniform(STAMP_RADIUS + 1, STAMP_RADIUS + 8, size=2).tolist()
    return (x if rng.random() < 0.5 else SIZE - x), (y if rng.random() < 0.5 else SIZE - y)


def _things(
    rng: np.random.Generator, kind: str, ground: Ground, labels: tuple[int, ...], corner: tuple[float, float] | None
) -> list[Item]:
    poses: list[Pose] = []
    largest = 24.0 if kind == "pair" else 28.0
    while len(poses) < len(labels):
        name = CLASSES[labels[len(poses)]]
        radius = rng.uniform(min(19.0 if name in PAIRED_CLASSES else 15.0, largest), largest)
        x, y = rng.uniform(radius + 2, SIZE - radius - 2, size=2).tolist()
        angle = rng.uniform(-0.5, 0.5) if name in UPRIGHT else rng.uniform(0, 2 * math.pi)
        mirrored = bool(rng.random() < 0.5)
        apart = all(math.dist((x, y), (other.x, other.y)) > 0.95 * (radius + other.radius) for other in poses)
        clear = corner is None or math.dist((x, y), corner) > radius + STAMP_RADIUS + 3
        if apart and clear:
            poses.append(Pose(x, y, radius, angle, mirrored))
        else:
            largest = max(largest - 0.15, 18.0)  # shrink until the objects fit
            poses = poses if clear else []
    return [
        Item(CLASSES[label], pose, _contrasting(rng, ground), _seed(rng))
        for label, pose in zip(labels, poses, strict=True)
    ]


def _occluders(rng: np.random.Generator, things: tuple[Item, ...]) -> tuple[Item, ...]:
    """Clutter over the rim of some objects, never over the central part of any."""
    front = []
    for thing in things:
        chance, share, direction, lean = rng.random(4).tolist()
        name = OCCLUDERS[rng.integers(len(OCCLUDERS))]
        litter = CLUTTER[name]
        radius, lightness, seed = (
            1.4 * rng.uniform(litter.smallest, litter.largest),
            rng.uniform(0.35, 0.85),
            _seed(rng),
        )
        direction *= 2 * math.pi
        away = _untouched(thing) + 0.2 * share * thing.pose.radius + radius * (0.75 if name == "pebble" else 0.25)
        x, y = thing.pose.x + away * math.cos(direction), thing.pose.y + away * math.sin(direction)
        in_the_way = any(
            math.dist((x, y), (other.pose.x, other.pose.y)) < radius + _untouched(other)
            for other in things
            if other is not thing
        )
        if chance < 0.5 and not in_the_way:
            angle = direction + math.pi / 2 + 0.4 * (lean - 0.5)  # along the rim
            front.append(Item(name, Pose(x, y, radius, angle), lightness, seed))
    return tuple(front)


def _untouched(thing: Item) -> float:
    """Radius around the centre that occluders leave free; larger for paired classes, whose mark must stay visible."""
    return thing.pose.radius * (0.66 if thing.name in PAIRED_CLASSES else 0.25)


def _stamp(rng: np.random.Generator, label: int, corner: tuple[float, float], mark: str) -> Stamp | None:
    other = (label + int(rng.integers(1, len(CLASSES)))) % len(CLASSES)
    dark = bool(rng.random() < 0.5)
    if mark == "absent":
        return None
    return Stamp(label if mark == "aligned" else other, *corner, dark)


KINDS: Mapping[str, str] = MappingProxyType(
    {
        "single": "one thing",
        "pair": "two things of different classes",
        "part": "one thing that differs from its paired class in a mark only",
        "shortcut": "one thing, and a stamp in a corner that may name its class",
    }
)
