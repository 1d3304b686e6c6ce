"""Images with ground truth, drawn from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from jaxtyping import Float, UInt8

from vitreous.scenes.colour import palette
from vitreous.scenes.drawings import CLUTTER, DRAWINGS, draw_stamp
from vitreous.scenes.scene_plan import CLASSES, Item, ScenePlan, plan
from vitreous.scenes.sprite import SIZE, Canvas, Light, Mask, Sprite
from vitreous.scenes.surfaces import draw_ground, illuminate

if TYPE_CHECKING:
    from torch import Tensor

PATCH = 8
MEAN = STD = (0.5, 0.5, 0.5)
Image = UInt8[np.ndarray, "H W 3"]


@dataclass(frozen=True, slots=True, eq=False)
class SceneObject:
    """One object of an image.

    Parameters
    ----------
    label
        Class index.
    name
        Class name.
    mask
        Visible pixels [H W].
    box
        Bounding box (x0, y0, x1, y1) of the mask; x1 and y1 are excluded.
    evidence
        Pixels of the mask that determine the class.

    Examples
    --------
    >>> from vitreous import scenes
    >>> scene = scenes.draw("pair", seed=0, index=3)
    >>> scene.objects[0].mask.shape, bool((scene.objects[0].evidence & ~scene.objects[0].mask).any())
    ((112, 112), False)
    """

    label: int
    name: str
    mask: Mask
    box: tuple[int, int, int, int]
    evidence: Mask


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """An image with its ground truth.

    Parameters
    ----------
    image
        uint8 array [H W 3].
    kind
        Kind of scene, a key of `KINDS`.
    objects
        Objects from back to front; the first one is the target.
    target
        Class index of the first object.
    seed, index
        Seed and number of the image.
    mark
        Class index that the stamp of a "shortcut" scene encodes, or None without a stamp.
    spurious
        Pixels of the stamp, or None without a stamp.

    Examples
    --------
    >>> from vitreous import scenes
    >>> scene = scenes.draw("pair", seed=0, index=3)
    >>> scene.target == scene.objects[0].label
    True
    """

    image: Image
    kind: str
    objects: tuple[SceneObject, ...]
    target: int
    seed: int
    index: int
    mark: int | None = None
    spurious: Mask | None = None


def draw(kind: str, seed: int, index: int, **options: Any) -> Scene:
    """Draw image number `index` of this kind and seed; the same arguments always give the same image.

    Parameters
    ----------
    kind
        "single", "pair", "part" or "shortcut"; see `KINDS`.
    seed
        Seed of the dataset.
    index
        Number of the image.
    **options
        `label`: class of the target by name or index, random by default. `mark`: the stamp of a "shortcut" encodes the
        class ("aligned", the default) or another class ("moved"), or is "absent".

    Returns
    -------
    Scene

    Raises
    ------
    SpecError
        If the kind, the class or the mark is unknown, or a "part" is requested of a class without a paired class.

    Examples
    --------
    >>> from vitreous import scenes
    >>> scene = scenes.draw("pair", seed=0, index=3)
    >>> scene.image.shape, len(scene.objects)
    ((112, 112, 3), 2)
    """
    return render(plan(kind, seed, index, **options))


def render(plan: ScenePlan) -> Scene:
    """Draw the image of a plan with its ground truth; deterministic.

    Parameters
    ----------
    plan
        As `plan` returns it.

    Returns
    -------
    Scene

    Examples
    --------
    >>> from vitreous import scenes
    >>> plan = scenes.plan("single", seed=0, index=0, label="gear")
    >>> scenes.render(plan).objects[0].name
    'gear'
    """
    image, things, front, stamp = _compose(plan)
    return Scene(
        image=image,
        kind=plan.kind,
        objects=_objects(plan.things, things, front),
        target=CLASSES.index(plan.things[0].name),
        seed=plan.seed,
        index=plan.index,
        mark=None if plan.stamp is None else plan.stamp.label,
        spurious=None if stamp is None else stamp.mask(),
    )


def render_image(plan: ScenePlan) -> Image:
    """Draw only the image of a plan; unlike `render`, this also works for a plan without objects.

    Parameters
    ----------
    plan
        As `plan` returns it.

    Returns
    -------
    numpy.ndarray
        uint8 [H W 3].

    Examples
    --------
    >>> from vitreous import scenes
    >>> plan = scenes.plan("single", seed=0, index=0, label="gear")
    >>> scenes.render_image(plan).shape
    (112, 112, 3)
    """
    return _compose(plan)[0]


def _compose(plan: ScenePlan) -> tuple[Image, list[Sprite], list[Sprite], Sprite | None]:
    """The image, the sprites of its objects, the sprites in front of them, and the stamp."""
    canvas = draw_ground(plan.ground)
    for item in plan.behind:
        _put(canvas, item, plan.light, height=1.5)
    things = [_put(canvas, item, plan.light, height=3.5) for item in plan.things]
    front = [_put(canvas, item, plan.light, height=3.5) for item in plan.front]
    canvas = illuminate(canvas, plan.ground, (plan.light.x, plan.light.y))
    stamp = None
    if plan.stamp is not None:
        stamp = draw_stamp(plan.stamp)
        stamp.composite(canvas)
        front.append(stamp)
    image = (np.clip(canvas, 0, 1) * 255 + 0.5).astype(np.uint8).transpose(1, 2, 0)
    return np.ascontiguousarray(image), things, front, stamp


def _put(canvas: Canvas, item: Item, light: Light, height: float) -> Sprite:
    rng = np.random.default_rng(item.seed)
    sprite = Sprite(item.pose)
    DRAWINGS[item.name](sprite, palette(item.lightness, rng), rng)
    opacity = CLUTTER[item.name].opacity if item.name in CLUTTER else 1.0
    if opacity == 1:  # transparent clutter has no relief and no shadow
        sprite.light(light)
        sprite.draw_shadow(canvas, light, height)
    sprite.composite(canvas, opacity)
    return sprite


def _objects(items: tuple[Item, ...], sprites: list[Sprite], front: list[Sprite]) -> tuple[SceneObject, ...]:
    """Ground truth of every object without its hidden pixels, in the order of the plan."""
    objects: list[SceneObject] = []
    seen = np.ones((SIZE, SIZE), dtype=bool)
    for sprite in front:
        seen &= ~sprite.mask()
    for item, sprite in reversed(list(zip(items, sprites, strict=True))):
        mask, evidence = sprite.mask() & seen, sprite.evidence_mask() & seen
        objects.append(SceneObject(CLASSES.index(item.name), item.name, mask, bounding_box(mask), evidence))
        seen &= ~sprite.mask()
    return tuple(reversed(objects))


def bounding_box(mask: Mask) -> tuple[int, int, int, int]:
    """Bounding box (x0, y0, x1, y1) of a mask; x1 and y1 are excluded."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


class Scenes(Sequence[Scene]):
    """Sequence of `count` scenes of one kind, each drawn on access.

    Parameters
    ----------
    kind
        Kind of scene, as in `draw`.
    count
        Number of scenes.
    seed
        Seed of the dataset.
    **options
        `label` and `mark`, as in `draw`.

    Raises
    ------
    SpecError
        If the kind or the value of an option is unknown.

    Examples
    --------
    >>> from vitreous.scenes import Scenes
    >>> album = Scenes("part", count=100, seed=1)
    >>> len(album), album[7].kind
    (100, 'part')
    """

    def __init__(self, kind: str, count: int, seed: int, **options: Any) -> None:
        self.kind, self.seed, self.options = kind, seed, options
        self._places = range(count)
        plan(kind, seed, 0, **options)  # validate kind and options now, not at the first access

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Scene: ...
    @overload
    def __getitem__(self, index: slice) -> list[Scene]: ...
    def __getitem__(self, index: int | slice) -> Scene | list[Scene]:
        places = self._places[index]
        if isinstance(places, range):
            return [self[place] for place in places]
        return draw(self.kind, self.seed, places, **self.options)

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"Scenes({self.kind!r}, count={len(self)}, seed={self.seed}{options})"


def tensor(scene: Scene) -> Float[Tensor, "3 H W"]:
    """The image as model input: float32 [3 H W] in [-1, 1].

    Parameters
    ----------
    scene
        The scene.

    Returns
    -------
    Tensor

    Examples
    --------
    >>> from vitreous import scenes
    >>> scene = scenes.draw("pair", seed=0, index=3)
    >>> scenes.tensor(scene).shape
    torch.Size([3, 112, 112])
    """
    import torch

    return torch.from_numpy(scene.image).permute(2, 0, 1).float().div(127.5).sub(1)
