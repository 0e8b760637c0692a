"""Speed and memory of attention statistics: `python benchmarks/attention.py` (one thread).

Compares, interleaved in one process, the plain model's forward pass with logits under no_grad,
recording surprisal and keys, the same with the attention statistics of every head (entropy,
distance, lag, first tokens), and the model's eager attention with output_attentions=True. Least
processor time of several repeats. Peak memory above the loaded model in processes of their own,
also for a longer text.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recording import fresh, prepare, seconds

N_TOKENS = 2000
LONG = 6000
BOUND = 1.8
STATISTICS = ("lag", "entropy", "distance", "first")

# As in recording.py: getrusage would hand down the parent's peak.
_MEMORY = """
import sys
sys.path.insert(0, {here!r})
from attention import readers
from recording import peak_kib, prepare
lm, story, ids = prepare({n})
read = readers(lm, story, ids)[{name!r}]
open("/proc/self/clear_refs", "w").write("5")
before = peak_kib()
read()
print(peak_kib() - before)
"""


def readers(lm: Any, story: Any, ids: Any) -> dict[str, Callable[[], object]]:
    """The ways of reading that are compared."""
    import torch

    import workbench as wb

    def plain() -> object:
        with torch.no_grad():
            return lm.model(ids).logits

    def eager() -> object:
        own = lm.model.config._attn_implementation
        lm.model.set_attn_implementation("eager")
        try:
            with torch.no_grad():
                output = lm.model(ids, output_attentions=True)
        finally:
            lm.model.set_attn_implementation(own)
        if len(output.attentions) != lm.model.config.num_hidden_layers:
            raise RuntimeError("output_attentions gave no attentions")
        return output

    return {
        "model(ids)": plain,
        "record": lambda: wb.record(story, lm),
        "record, attention": lambda: wb.record(story, lm, attention=STATISTICS),
        "eager, attentions": eager,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=N_TOKENS)
    parser.add_argument("--long", type=int, default=LONG, help="tokens of the memory run")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    options = parser.parse_args()

    lm, story, ids = prepare(options.tokens)
    ways = readers(lm, story, ids)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.repeats):
        for name, read in ways.items():
            times[name].append(seconds(read))
    least = {name: min(values) for name, values in times.items()}
    ratio = {name: value / least["model(ids)"] for name, value in least.items()}
    if not options.json:
        print(
            f"{options.tokens} tokens, one thread, processor time, "
            f"least of {options.repeats} interleaved repeats"
        )
        for name in ways:
            print(f"{name:20} {least[name]:7.2f} s   ratio {ratio[name]:5.2f}", flush=True)
        met = ratio["record, attention"] <= BOUND
        print(f"ratio of `record, attention` at most {BOUND}: {met}", flush=True)
    here = str(Path(__file__).parent)

    def memory(name: str, n: int) -> float:
        return fresh(_MEMORY.format(here=here, n=n, name=name)) / 1024

    mib = {name: memory(name, options.tokens) for name in ways}
    long = memory("record, attention", options.long)
    if options.json:
        result = {
            "tokens": options.tokens,
            "seconds": least,
            "ratio": ratio,
            "peak_mib_above_model": mib,
            "long_tokens": options.long,
            "long_mib_above_model": long,
        }
        print(json.dumps(result))
        return
    print("peak memory above the loaded model")
    for name in ways:
        print(f"{name:20} +{mib[name]:6.0f} MiB")
    print(f"{options.long} tokens, every layer and head: +{long:.0f} MiB (at most 6144)")


if __name__ == "__main__":
    main()
