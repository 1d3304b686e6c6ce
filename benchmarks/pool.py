"""Two workers on two cores against one: images per second on the scenes plan, printed as ratios.

python benchmarks/pool.py --rounds 3

Every setting uses the same executor, the settings alternate, and the time until every worker has returned a result
(imports, loading the model) is not counted. Values are medians of the rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

SETTINGS = {"one worker, one thread": (1, 1), "one worker, two threads": (1, 2), "two workers, one thread each": (2, 1)}
METHODS = ["genatt", "decompx+skipplus", "gradcam", "random"]
METRICS = ["deletion_aopc", "insertion_aopc", "pointing_game", "sparseness"]


def measure_throughput(workers: int, threads: int, pictures: int, cut: int) -> float:
    """Images per second after all workers have started."""
    from vitreous.bench.plan_parser import plan_from_flags
    from vitreous.bench.pool import processes
    from vitreous.bench.work_cells import PlanJob, split_plan

    plan = plan_from_flags(
        models=["scenes"],
        datasets=[f"scenes:single?count={pictures}"],
        methods=METHODS,
        metrics=METRICS,
        slice=cut,
        device="cpu",
    )
    moments = []
    for outcome in processes(workers, threads)(PlanJob(plan), split_plan(plan)):
        assert not outcome.failed, outcome.failed
        moments.append((time.perf_counter(), outcome.image_count))
    warm = 2 * workers - 1
    start = moments[warm][0]
    return sum(count for _, count in moments[warm + 1 :]) / (moments[-1][0] - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pictures", type=int, default=96)
    parser.add_argument("--slice", type=int, default=4)
    options = parser.parse_args()
    os.environ.pop("OMP_NUM_THREADS", None)
    os.environ.pop("MKL_NUM_THREADS", None)
    rates_by_setting: dict[str, list[float]] = {name: [] for name in SETTINGS}
    for _ in range(options.rounds):
        for name, (workers, threads) in SETTINGS.items():
            rates_by_setting[name].append(measure_throughput(workers, threads, options.pictures, options.slice))
    print(
        f"{len(METHODS)} methods × {len(METRICS)} metrics, {options.pictures} scenes, median of {options.rounds} rounds"
    )
    for name, rates in rates_by_setting.items():
        print(f"{name:30} {statistics.median(rates):6.2f} images/s  ({', '.join(f'{rate:.2f}' for rate in rates)})")
    alone, both, two = rates_by_setting.values()
    for name, base, expected in (("one single-threaded worker", alone, 1.5), ("one worker on both cores", both, 1.1)):
        ratio = statistics.median(rate / base_rate for rate, base_rate in zip(two, base, strict=True))
        print(f"two workers / {name:28} {ratio:.2f}  (target: at least {expected})")


if __name__ == "__main__":
    main()
