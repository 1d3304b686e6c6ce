"""Noise depends on the source of each image only, not on blocks and threads; subsets are sorted by size."""

from __future__ import annotations

import os

import pytest
import torch

from vitreous.capture.packed import Sizes
from vitreous.capture.threads import thread_pool
from vitreous.methods import masks, random_control
from vitreous.methods.path_methods import draw_gaussians
from vitreous.metrics import pixel_fills

PICTURES = torch.randn(3, 3, 8, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture(params=["one thread", "several threads, blocks of two"])
def at_work(request, monkeypatch):
    if request.param != "one thread":
        monkeypatch.setattr(random_control, "BYTES_AT_ONCE", 2 * PICTURES[0].nbytes)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # as where a GPU waits


def sources(row: list[int], subset: list[int]) -> list[int]:
    return [random_control.content_seeds(PICTURES[r : r + 1], 7)[0] + s for r, s in zip(row, subset, strict=True)]


def test_noise_of_a_pair_is_one_draw_of_its_source(at_work):
    row, subset = [2, 0, 0, 1, 2], [5, 0, 1, 3, 4]

    found = masks.seeded_noise(PICTURES, 7, PICTURES.device)(torch.tensor(row), torch.tensor(subset))

    for one, source in zip(found, sources(row, subset), strict=True):
        assert torch.equal(one, torch.randn(3, 8, 6, generator=torch.Generator().manual_seed(source)))


def splitmix64(seed: int, count: int) -> list[int]:
    """As published by Steele, Lea and Flood (2014)."""
    found, whole = [], 2**64
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) % whole
        z = (seed ^ seed >> 30) * 0xBF58476D1CE4E5B9 % whole
        z = (z ^ z >> 27) * 0x94D049BB133111EB % whole
        found.append(z ^ z >> 31)
    return found


def test_splitmix64_is_as_published():
    assert splitmix64(1234567, 3) == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("shape", [(3, 8, 6), (3, 5, 5)])
def test_uniform_noise_is_splitmix64_of_its_source_four_numbers_a_word(shape):
    seeds = [0, 1, 2**63 - 1, -(2**63) + 5, *sources([1, 1], [3, 4])]
    size = torch.Size(shape).numel()

    found = random_control.draw_uniform(torch.tensor(seeds), shape)

    assert found.dtype == torch.float32
    for one, seed in zip(found, seeds, strict=True):
        quarters = [
            word >> shift & 0xFFFF for word in splitmix64(seed % 2**64, -(-size // 4)) for shift in (0, 16, 32, 48)
        ]
        expected = [(quarter + 2**15) % 2**16 for quarter in quarters[:size]]  # read as a signed number, then lifted
        assert torch.equal(one.flatten(), torch.tensor(expected) / 2**16)


def test_uniform_noise_is_uniform_and_its_neighbours_are_strangers():
    found = random_control.draw_uniform(torch.arange(100), (3, 40, 40)).flatten(1).double()

    spread = torch.histc(found, 16, 0, 1) / found.numel()
    torch.testing.assert_close(spread, torch.full((16,), 1 / 16).double(), rtol=0, atol=2e-3)
    together = torch.corrcoef(found) - torch.eye(100).double()
    assert together.abs().max() < 0.08  # of 4800 numbers each: 5.5 standard deviations


def test_the_thread_pool_is_reused_within_a_process():
    assert thread_pool(os.getpid()) is thread_pool(os.getpid())
    assert thread_pool(os.getpid()) is not thread_pool(os.getppid())


def test_draws_of_one_source_follow_each_other(at_work):
    found = draw_gaussians(PICTURES.shape[1:], random_control.generators(PICTURES, 1), 4, PICTURES.device)

    for places, source in zip(found, random_control.generators(PICTURES, 1), strict=True):
        assert all(torch.equal(place, torch.randn(3, 8, 6, generator=source)) for place in places)


def test_the_seed_of_an_image_does_not_depend_on_strides_or_batch(at_work):
    seeds = random_control.content_seeds(PICTURES, 3)

    assert len(set(seeds)) == len(PICTURES)
    assert random_control.content_seeds(PICTURES.to(memory_format=torch.channels_last).flip(0), 3) == seeds[::-1]
    assert random_control.content_seeds(PICTURES.repeat_interleave(2, 0)[::2], 3) == seeds


def test_images_of_a_batch_are_drawn_as_single_images(at_work, monkeypatch):
    pytest.importorskip("scipy")
    visible = torch.rand(3, 8, 6, generator=torch.Generator().manual_seed(1)) > 0.5
    alone = [pixel_fills.solve_pixels(*pair) for pair in zip(PICTURES.split(1), visible.split(1), strict=True)]
    monkeypatch.setattr(pixel_fills, "PIXELS_AT_ONCE", 1)

    assert torch.equal(pixel_fills.impute_pixels(PICTURES, visible), torch.cat(alone))


def test_subsets_of_one_size_come_together_in_their_order():
    keep = torch.rand(4, 9, 5, generator=torch.Generator().manual_seed(2)) > 0.4
    counts = keep.sum(-1).flatten().tolist()

    found = {count: same.tolist() for count, same in Sizes.of(keep)}

    assert list(found) == sorted(set(counts))
    assert found == {size: [i for i, count in enumerate(counts) if count == size] for size in found}
