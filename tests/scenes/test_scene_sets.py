"""Scenes: images, masks, evidence and labels."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from vitreous.core.errors import SpecError
from vitreous.scenes import (
    CLASSES,
    KINDS,
    MEAN,
    PATCH,
    SIZE,
    STD,
    Scenes,
    draw,
    paired_class,
    plan,
    render,
    render_image,
    tensor,
)
from vitreous.scenes.drawings import CODES

PAIRED_CLASSES = [label for label in range(len(CLASSES)) if paired_class(label) is not None]
PINNED = {
    "single": "55b052611863c5d7",
    "pair": "3cb99e2e65257c1b",
    "part": "f6cbe9b642ac9f78",
    "shortcut": "df81ef1eef459fab",
}
A_FEW = range(12)


def differing(first, second):
    return (first != second).any(axis=-1)


def grown(mask, pixels):
    """Every pixel within this many of the mask."""
    for _ in range(pixels):
        padded = np.pad(mask, 1)
        mask = padded[1:-1, 1:-1] | padded[:-2, 1:-1] | padded[2:, 1:-1] | padded[1:-1, :-2] | padded[1:-1, 2:]
    return mask


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_draws_the_same_bytes_everywhere(kind):
    drawn = b"".join(draw(kind, 7, index).image.tobytes() for index in range(8))

    assert hashlib.sha256(drawn).hexdigest()[:16] == PINNED[kind]


def test_every_seed_index_and_kind_gives_another_image():
    pictures = {draw(kind, seed, index).image.tobytes() for kind in KINDS for seed in (1, 2) for index in (0, 1)}

    assert len(pictures) == len(KINDS) * 4


@pytest.mark.parametrize("kind", KINDS)
def test_images_contain_the_objects_of_their_kind(kind):
    for index in A_FEW:
        scene = draw(kind, 11, index)

        assert scene.image.shape == (SIZE, SIZE, 3)
        assert scene.image.dtype == np.uint8
        assert scene.target == scene.objects[0].label
        assert len({thing.label for thing in scene.objects}) == (2 if kind == "pair" else 1)
        assert all(thing.name == CLASSES[thing.label] for thing in scene.objects)
        assert (scene.spurious is not None) == (kind == "shortcut")
        if kind == "part":
            assert scene.target in PAIRED_CLASSES


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_changes_only_the_pixels_of_its_mask_and_shadow(kind):
    for index in A_FEW:
        chosen = replace(plan(kind, 5, index), front=())
        scene = render(chosen)
        for place, thing in enumerate(scene.objects):
            others = chosen.things[:place] + chosen.things[place + 1 :]
            without = render_image(replace(chosen, things=others))
            ground = ~grown(thing.mask, 3)  # past the soft rim

            assert differing(scene.image, without)[thing.mask].mean() > 0.98  # a few may have the colour of the ground
            assert (scene.image[ground] <= without[ground]).all()
            assert not differing(scene.image, without)[~grown(thing.mask, 18)].any()


def test_occluders_are_not_part_of_the_mask():
    for index in range(20):
        chosen = plan("single", 14, index)
        seen, bare = render(chosen), render(replace(chosen, front=()))
        hidden = bare.objects[0].mask & ~seen.objects[0].mask

        assert not (seen.objects[0].mask & ~bare.objects[0].mask).any()
        assert differing(seen.image, bare.image)[hidden].sum() >= 0.9 * hidden.sum()


@pytest.mark.parametrize("label", range(len(CLASSES)), ids=CLASSES)
def test_the_evidence_is_visible_and_inside_the_object(label):
    for index in range(3):
        (thing,) = draw("single", 3, index, label=label).objects

        assert thing.evidence.any()
        assert not (thing.evidence & ~thing.mask).any()
        if paired_class(label) is None:
            assert (thing.evidence == thing.mask).all()
        else:
            assert thing.evidence.sum() < 0.5 * thing.mask.sum()


@pytest.mark.parametrize("label", PAIRED_CLASSES, ids=[CLASSES[label] for label in PAIRED_CLASSES])
def test_the_mark_is_the_only_difference_between_paired_classes(label):
    for index in range(4):
        chosen = plan("part", 4, index, label=label)
        (thing,) = chosen.things
        partner = replace(chosen, things=(replace(thing, name=CLASSES[paired_class(label)]),))
        scene, other = render(chosen), render(partner)
        changed = differing(scene.image, other.image)

        assert changed.any()
        assert not changed[~scene.objects[0].evidence].any()
        assert (scene.objects[0].evidence == other.objects[0].evidence).all()


@pytest.mark.slow
def test_the_mark_of_a_paired_class_is_never_hidden():
    for kind in ("part", "pair"):
        for index in range(20):
            chosen = plan(kind, 8, index)
            hidden = zip(render(chosen).objects, render(replace(chosen, front=())).objects, strict=True)

            assert all(
                thing.evidence.sum() > 0.9 * bare.evidence.sum()
                for thing, bare in hidden
                if thing.label in PAIRED_CLASSES
            )


@pytest.mark.parametrize("kind", KINDS)
def test_boxes_are_tight(kind):
    for index in A_FEW:
        for thing in draw(kind, 12, index).objects:
            x0, y0, x1, y1 = thing.box
            inside = thing.mask[y0:y1, x0:x1]

            assert inside.sum() == thing.mask.sum()
            assert all(edge.any() for edge in (inside[0], inside[-1], inside[:, 0], inside[:, -1]))


def test_both_objects_of_a_pair_are_visible_and_disjoint():
    for index in range(20):
        first, second = draw("pair", 13, index).objects

        assert not (first.mask & second.mask).any()
        assert min(first.mask.sum(), second.mask.sum()) > 150


def test_the_three_shortcut_images_differ_only_in_the_stamp():
    for index in A_FEW:
        aligned, moved, absent = (draw("shortcut", 9, index, mark=mark) for mark in ("aligned", "moved", "absent"))

        assert aligned.mark == aligned.target == moved.target == absent.target
        assert moved.mark not in (None, moved.target)
        assert absent.mark is None
        assert not differing(aligned.image, absent.image)[~grown(aligned.spurious, 1)].any()
        assert not differing(aligned.image, moved.image)[~aligned.spurious].any()
        assert not (aligned.spurious & aligned.objects[0].mask).any()


def test_every_class_has_its_own_stamp():
    assert len(set(CODES)) >= len(CLASSES)


@pytest.mark.slow
def test_colour_is_no_evidence():
    """The mean colour of an object varies as much within a class as over all classes."""
    means = np.array(
        [
            [scene.image[scene.objects[0].mask].mean(axis=0) for scene in Scenes("single", 10, 2, label=label)]
            for label in range(12)
        ]
    )

    assert means.std(axis=1).mean() > 0.75 * means.reshape(-1, 3).std(axis=0).mean()


def test_an_album_is_a_sequence_of_images():
    album = Scenes("pair", count=5, seed=3)

    assert len(album) == 5
    assert (album[-1].image == draw("pair", 3, 4).image).all()
    assert [scene.index for scene in album[1:3]] == [1, 2]
    assert [scene.index for scene in album] == list(range(5))
    with pytest.raises(IndexError):
        album[5]


def test_a_tensor_is_the_image_normalised():
    scene = draw("single", 0, 0)
    image = tensor(scene)
    expected = (scene.image / 255 - np.array(MEAN)) / np.array(STD)

    assert image.shape == (3, SIZE, SIZE)
    assert SIZE % PATCH == 0
    np.testing.assert_allclose(image.permute(1, 2, 0).numpy(), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ({"kind": "triple"}, "known: single, pair, part, shortcut"),
        ({"kind": "single", "label": "unicorn"}, "known: fish"),
        ({"kind": "single", "label": len(CLASSES)}, "from 0 to"),
        ({"kind": "part", "label": "fish"}, "has no paired class"),
        ({"kind": "shortcut", "mark": "upside down"}, "aligned, moved, absent"),
    ],
)
def test_errors_list_valid_values(arguments, hint):
    with pytest.raises(SpecError, match=hint):
        draw(seed=0, index=0, **arguments)


def test_drawing_does_not_import_torch():
    code = "import sys; from vitreous.scenes import draw; draw('pair', 0, 0); assert 'torch' not in sys.modules"

    subprocess.run([sys.executable, "-c", code], check=True)
