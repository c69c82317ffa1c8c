"""Time and memory of proportional sampling, compared with a plain `torch.topk` over all keys.

    python -m benchmarks.sampling                 # 1e6, 1e7 and 1e8 scores
    python -m benchmarks.sampling 1e6 --share 0.1

Each measurement runs in its own process. Memory is the peak resident size beyond scores and candidates.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import torch

from pathgrow.masks import Masks
from pathgrow.masks.sampling import sample_proportional, top_k, uniform

CANDIDATE_SHARE = 0.9
WAYS = ("sample_proportional", "torch.topk on all keys", "top_k", "uniform")


def topk_on_all_keys(scores: torch.Tensor, candidates: torch.Tensor, count: int, generator: torch.Generator) -> None:
    keys = torch.empty_like(scores).exponential_(generator=generator).div_(scores)
    keys.masked_fill_(~candidates, torch.inf)
    picks = torch.zeros_like(candidates)
    picks[torch.topk(keys, count, largest=False, sorted=False).indices] = True


def measure(way: str, num: int, share: float) -> dict[str, float]:
    """Sample once in this process. Inputs are filled in small pieces, to avoid a memory peak before the measurement."""
    torch.set_num_threads(2)
    generator = torch.Generator().manual_seed(0)
    scores, flags = torch.empty(num), torch.empty(num, dtype=torch.bool)
    for part, chosen in zip(torch.split(scores, 1 << 18), torch.split(flags, 1 << 18), strict=True):
        part.log_normal_(generator=generator)
        chosen.copy_(torch.rand(chosen.numel(), generator=generator) < CANDIDATE_SHARE)
    candidates = Masks.select({"weight": flags})
    count = int(share * num)
    calls = {
        "sample_proportional": lambda: sample_proportional({"weight": scores}, candidates, count, generator),
        "torch.topk on all keys": lambda: topk_on_all_keys(scores, flags, count, generator),
        "top_k": lambda: top_k({"weight": scores}, candidates, count, generator),
        "uniform": lambda: uniform(candidates, count, generator),
    }
    before = _peak_bytes()
    start, start_cpu = time.perf_counter(), time.process_time()
    calls[way]()
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - start_cpu,
        "megabytes": (_peak_bytes() - before) / 1e6,
    }


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def measure_apart(way: str, num: int, share: float) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.sampling", "--one", way, "--share", str(share), str(num)]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    result: dict[str, float] = json.loads(printed)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=float, default=[1e6, 1e7, 1e8], help="numbers of float32 scores")
    parser.add_argument("--share", type=float, default=0.05, help="fraction of the positions to sample")
    parser.add_argument("--one", choices=WAYS, help="measure one function in this process and print JSON")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, int(arguments.sizes[0]), arguments.share)))
        return

    print(f"float32 scores, {CANDIDATE_SHARE:.0%} candidates, {arguments.share:.0%} sampled; x: relative to torch.topk")
    print(f"{'scores':>8}  {'':24}{'seconds':>9}{'x':>7}{'CPU s':>8}{'MB':>8}{'x':>7}")
    for num in map(int, arguments.sizes):
        results = {way: measure_apart(way, num, arguments.share) for way in WAYS}
        plain = results["torch.topk on all keys"]
        for way, result in results.items():
            time_ratio, memory_ratio = (result[key] / plain[key] for key in ("seconds", "megabytes"))
            print(
                f"{num:8.0e}  {way:24}{result['seconds']:9.2f}{time_ratio:7.2f}{result['cpu_seconds']:8.2f}"
                f"{result['megabytes']:8.0f}{memory_ratio:7.2f}"
            )


if __name__ == "__main__":
    main()
