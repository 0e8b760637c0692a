"""Speed of recording: `python benchmarks/recording.py` (one thread, a minute or two).

Compares, interleaved in one process, recording a text with the plain model's forward pass with
logits under no_grad; the least of several repeats of each: surprisal and all keys; all that
`record` measures by default (entropy, Bayesian surprise, ...) and all keys; every measure. Then,
in fresh processes: peak memory of each and of 6,000 tokens, second load of the embedded model,
and import time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

N_TOKENS = 2000
N_LONG = 6000

# Peak memory above what the loaded model takes, of one way of reading, in a process of its own
# (Linux; getrusage would hand down the parent's peak).
_MEMORY = """
import sys
sys.path.insert(0, {here!r})
from recording import peak_kib, prepare, readers
lm, story, ids = prepare({n})
read = readers(lm, story, ids)[{name!r}]
open("/proc/self/clear_refs", "w").write("5")
before = peak_kib()
read()
print(peak_kib() - before)
"""

_LOAD = """
import time
import torch
torch.set_num_threads(1)
import workbench as wb
wb.load_model()
print(time.process_time())
"""

_IMPORT = """
import time
start = time.process_time()
import workbench, sys
print(time.process_time() - start)
assert "torch" not in sys.modules
"""


def prepare(n: int) -> tuple[Any, Any, Any]:
    """The embedded model, a story of n tokens, and its token ids (with the start token)."""
    import torch

    import workbench as wb
    from workbench.core.story import Story
    from workbench.recording.tokens import tokenize
    from workbench.stories.alignment import untimed_words

    torch.set_num_threads(1)
    lm = wb.load_model()
    rng = np.random.default_rng(0)
    names = ["river", "light", "a", "the", "of", "walked", "door", "old", "and", "she", "away."]
    text = " ".join(rng.choice(names, size=n + 200))
    ends = tokenize(lm.tokenizer, text).char_end
    text = text[: int(ends[n - 1])]
    ids = tokenize(lm.tokenizer, text).ids
    story = Story("benchmark", text, untimed_words(text))
    return lm, story, torch.from_numpy(np.concatenate([[0], ids]))[None]


def readers(lm: Any, story: Any, ids: Any) -> dict[str, Callable[[], object]]:
    """The ways of reading that are compared."""
    import torch

    import workbench as wb

    def plain() -> object:
        with torch.no_grad():
            return lm.model(ids).logits

    return {
        "model(ids)": plain,
        "record": lambda: wb.record(story, lm),
        "record, surprisal": lambda: wb.record(story, lm, measures="surprisal"),
        "record, all measures": lambda: wb.record(story, lm, measures="all"),
        "record, keys=False": lambda: wb.record(story, lm, keys=False),
    }


def seconds(function: Callable[[], object]) -> float:
    """Processor time of one call: with one thread it is its wall time on an idle machine."""
    start = time.process_time()
    function()
    return time.process_time() - start


def peak_kib() -> int:
    """Most resident memory of this process so far, in KiB."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def fresh(code: str, repeats: int = 1) -> float:
    """Least number that a program prints, each time in a process of its own."""
    command = [sys.executable, "-c", code]
    runs = [
        subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for _ in range(repeats)
    ]
    return min(float(run.stdout.split()[-1]) for run in runs)


def main() -> None:
    """Measure and print."""
    from pathlib import Path

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=N_TOKENS)
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
    here = str(Path(__file__).parent)
    memory = {
        name: fresh(_MEMORY.format(here=here, n=options.tokens, name=name)) / 1024 for name in ways
    }
    long = fresh(_MEMORY.format(here=here, n=N_LONG, name="record, all measures")) / 1024
    result = {
        "tokens": options.tokens,
        "seconds": least,
        "ratio": least["record"] / least["model(ids)"],
        "peak_mib_above_model": memory,
        "long_tokens": N_LONG,
        "long_peak_mib_above_model": long,
        "second_load_s": fresh(_LOAD, 2),
        "import_s": fresh(_IMPORT, 3),
    }
    if options.json:
        print(json.dumps(result))
        return
    print(
        f"{options.tokens} tokens, one thread, processor time, least of {options.repeats} "
        "interleaved repeats"
    )
    for name in ways:
        ratio = least[name] / least["model(ids)"]
        print(f"{name:20} {least[name]:7.2f} s   ratio {ratio:5.3f}   +{memory[name]:6.0f} MiB")
    print(f"{'bound':20} ratio of `record` at most 1.35: {result['ratio'] <= 1.35}")
    print(
        f"{f'{N_LONG} tokens':20} every measure, layer and head: +{long:.0f} MiB   "
        f"(under 6 GiB: {long < 6144})"
    )
    print(f"{'second load':20} {result['second_load_s']:7.2f} s   (at most 8)")
    print(f"{'import workbench':20} {result['import_s']:7.2f} s   (at most 0.5)")


if __name__ == "__main__":
    main()
