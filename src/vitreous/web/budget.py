"""Sample counts that fit the time limit of a request.

Methods that average over masks, samples or steps state their passes as a formula ("1 + masks"). The seconds of one forward
and one backward pass are measured once per model, and where the estimate for the requested count exceeds the budget, a
smaller count is used and reported. Smaller counts of the same spec serve as previews while the last one is computed, so that
every map that is shown is the library's own result for a spec that is shown with it.

Other methods take a number of passes that the model determines (one per patch, region or channel). They are computed as
they are, or refused before they start, with the estimated time and a spec that fits. What cannot be estimated beforehand
is stopped by `web.worker` once its progress shows that it cannot finish in time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vitreous.core.defaults import DEFAULT_METHOD
from vitreous.core.errors import SpecError
from vitreous.methods.pass_counts import ModelSizes, evaluate_passes
from vitreous.web.schemas import SamplingPlan

if TYPE_CHECKING:
    from vitreous.methods.method import Method
    from vitreous.models.vit import ViT

LIMIT_SHARE = 0.5  # of a request's time limit that an explanation may be estimated to take; the rest is for the queue
PREVIEW_FROM = 3.0  # estimated seconds from which on previews are computed
PREVIEW_RATIOS = (16, 4)  # a preview uses this fraction of the samples
MIN_SAMPLES = 16  # fewer samples show nothing but noise
ROWS = 2  # classes that a request may name; gradients are computed for each


@dataclass(frozen=True, slots=True)
class PassCost:
    """Seconds of one forward and of one backward pass, per image, in a batch."""

    forward: float | int
    backward: float | int

    def estimate(self, passes: tuple[float, float]) -> float:
        """Seconds of so many forward passes, and of so many backward passes for each class of a request."""
        forwards, backwards = passes
        return forwards * self.forward + ROWS * backwards * self.backward


MeasureCost = Callable[["ViT"], PassCost]


def measure_cost(vit: ViT) -> PassCost:
    """Time the model on this machine, on a small batch."""
    from vitreous.bench.cost import calibrate

    return PassCost(*calibrate(vit, batch=8, budget=0.5))


def find_sample_option(method: Method) -> str:
    """Return the option whose value the method's number of passes is proportional to, or an empty string."""
    values = method.settings
    for name in re.findall(r"[a-z_]+", f"{method.facts.forwards} {method.facts.backwards}"):
        if isinstance(values.get(name), int) and not isinstance(values[name], bool):
            return name
    return ""


def plan_samples(
    method: Method, sizes: Callable[[], ModelSizes], cost: Callable[[], PassCost], limit: float | int
) -> SamplingPlan:
    """Choose how many samples of a method to compute.

    Parameters
    ----------
    method : Method
        The requested method.
    sizes : callable
        Returns the model's numbers that cost formulas may name (patches, channels, layers).
    cost : callable
        Returns the measured cost of one pass; called only for methods that take samples.
    limit : float
        Seconds that a request may take.

    Raises
    ------
    SpecError
        If the method has no samples to reduce and its estimated time exceeds the limit.
    """
    option = find_sample_option(method)
    if not option:
        return plan_fixed(method, sizes, cost, limit)
    model_sizes, requested = sizes(), int(method.settings[option])

    def passes_of(samples: int) -> tuple[float, float]:
        return evaluate_passes(replace(method, options={**method.options, option: samples}), model_sizes) or (0.0, 0.0)

    plan = SamplingPlan(method=method.spec, spec=method.spec, option=option, asked=requested, used=requested)
    if sum(passes_of(requested)) <= 2 * MIN_SAMPLES:  # too little work for a measurement
        return plan
    measured = cost()

    def estimate(samples: int) -> float:
        return measured.estimate(passes_of(samples))

    def with_samples(samples: int) -> str:
        return method.with_options(**{option: samples}).spec

    plan.seconds, budget = estimate(requested), LIMIT_SHARE * limit
    if plan.seconds > budget:
        fixed, per_sample = estimate(0), estimate(1) - estimate(0)
        plan.used = min(requested, max(MIN_SAMPLES, round_down((budget - fixed) / per_sample)))
    if plan.used < requested:
        plan.spec = with_samples(plan.used)
    if estimate(plan.used) > PREVIEW_FROM:
        counts = [round_down(plan.used / ratio) for ratio in PREVIEW_RATIOS]
        plan.previews = tuple(with_samples(count) for count in counts if MIN_SAMPLES <= count < plan.used)
    return plan


def plan_fixed(
    method: Method, sizes: Callable[[], ModelSizes], cost: Callable[[], PassCost], limit: float | int
) -> SamplingPlan:
    """Plan a method that has no sample count: as it is, or refused if it cannot finish in time."""
    plan = SamplingPlan(method=method.spec, spec=method.spec)
    facts = method.facts
    if facts.counts is None and isinstance(facts.forwards, int) and isinstance(facts.backwards, int):  # a few passes
        return plan
    passes = evaluate_passes(method, sizes())
    if passes is None or sum(passes) <= 2 * MIN_SAMPLES:
        return plan
    measured = cost()
    plan.seconds = measured.estimate(passes)
    if plan.seconds > limit:
        fitting = find_coarser(method, sizes(), LIMIT_SHARE * limit / measured.forward)
        raise SpecError(
            f"{method.spec!r} takes {sum(passes):,.0f} passes of this model, about {plan.seconds:.0f} s here, and a request may "
            f"take {limit:g} s; {fitting or DEFAULT_METHOD!r} fits, vitreous.explain(vit, image, target, {method.spec!r}) has no "
            f"limit, and `vitreous serve --seconds {math.ceil(1.5 * plan.seconds)}` allows it here"
        )
    return plan


def find_coarser(method: Method, sizes: ModelSizes, passes: float) -> str:
    """Return the finest spec that the method offers with at most so many passes; an empty string if there is none."""
    for options in method.facts.coarser(method, sizes) if method.facts.coarser else ():
        candidate = method.with_options(**options)
        needed = evaluate_passes(candidate, sizes)
        if needed is not None and sum(needed) <= passes:
            return candidate.spec
    return ""


def round_down(count: float | int) -> int:
    """Round down to two digits, so that small changes of a measured time do not change the count."""
    if count < 100:
        return max(int(count), 0)
    unit = 10 ** (int(math.log10(count)) - 1)
    return int(count // unit * unit)
