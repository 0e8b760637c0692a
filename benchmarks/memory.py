"""Speed and memory of the memory systems: `python benchmarks/memory.py` (one thread).

Every number is a ratio of things measured interleaved in one process (processor time, the least
of several repeats), or a count of bytes. Parts, chosen by --parts:

reading    tokens a second of EM-LLM (S) at n_local 512, n_mem 512, chunk 512, against the plain
           model with a band mask as wide as what the memory sees (transformers' own sliding-window
           mask, sdpa, all tokens at once, so that it holds the keys of the whole text); against
           the same band read in chunks; and against `SlidingWindow` of as many tokens. All of them
           measure every token with `recording.distributions.score`. SM and SC against S.
length     time per token against length: least-squares slope over the range, relative to the mean.
footprint  bytes in memory and on disk by length.
store      one layer's retrieval among the units of a synthetic text of 1,000,000 tokens.
decode     tokens a second of generation with retrieval at every 1, 2, 4, 8 tokens, against the
           plain model's `generate` after a prompt as long as what the memory sees.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

N_INIT, N_LOCAL, N_MEM, CHUNK = 128, 512, 512, 512
PARTS = ("reading", "length", "footprint", "store", "decode")
_WORDS = "river light a the of walked door old and she away. He said it was late, but nobody came."


def make_text(lm: Any, n: int, seed: int = 0) -> str:
    """A text of about n tokens: sentences drawn at random, so that surprise comes and goes."""
    rng = np.random.default_rng(seed)
    words = rng.choice(_WORDS.split(), size=2 * n).tolist()
    ids = lm.tokenizer(" ".join(words))["input_ids"][:n]
    return str(lm.tokenizer.decode(ids))


def seconds(function: Callable[[], object]) -> float:
    """Processor time of one call."""
    start = time.process_time()
    function()
    return time.process_time() - start


def least(ways: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Least time of each way, interleaved."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            times[name].append(seconds(way))
    return {name: min(values) for name, values in times.items()}


def system(lm: Any, name: str, **options: Any) -> Any:
    """A memory system of the size that is measured."""
    from workbench.memory import make_system

    given = {"n_init": N_INIT, "n_local": N_LOCAL, "n_mem": N_MEM, "chunk": CHUNK, **options}
    return make_system(name, lm, **given)


def banded(lm: Any, ids: Any, width: int, chunk: int | None) -> Any:
    """Final states of the plain model whose tokens see the `width` newest ones (sdpa).

    chunk : tokens read at once after a cache of the `width` - 1 before them; None: all at once.
    """
    import torch
    from transformers import DynamicCache

    from workbench.recording import adapter

    name = adapter.cache_argument(lm.model)
    decoder = lm.model.get_decoder()
    n = ids.shape[1]
    states, cache = [], DynamicCache()
    for start in range(0, n, chunk or n):
        stop = min(start + (chunk or n), n)
        kept = cache.get_seq_length()
        rows = torch.arange(start, stop)[:, None]
        columns = torch.arange(start - kept, stop)[None]
        seen = ((columns <= rows) & (columns > rows - width))[None, None]
        output = decoder(
            input_ids=ids[:, start:stop],
            attention_mask=seen,
            position_ids=rows.T,
            use_cache=True,
            **{name: cache},
        )
        states.append(output[0][0])
        for layer in cache.layers if chunk else ():
            layer.keys = layer.keys[:, :, -(width - 1) :].clone()
            layer.values = layer.values[:, :, -(width - 1) :].clone()
    return torch.cat(states)


def reading(lm: Any, n: int, repeats: int) -> dict[str, Any]:
    """Tokens a second of reading, and ratios to the plain model with a sliding window."""
    import torch

    from workbench.recording.distributions import score

    text = make_text(lm, n)
    ids = torch.tensor([[0, *lm.tokenizer(text)["input_ids"]]])
    width = N_INIT + N_LOCAL + N_MEM
    measures = ("surprisal", "entropy")

    def plain(chunk: int | None) -> Callable[[], object]:
        def read() -> object:
            with torch.inference_mode():
                hidden = banded(lm, ids, width, chunk)
                return score(lm.model, hidden[:-1], ids[0, 1:], measures=measures)

        return read

    def memory(name: str, **options: Any) -> Callable[[], object]:
        return lambda: system(lm, name, **options).read(text)

    ways = {
        "plain, band mask": plain(None),
        "plain, band, chunks": plain(CHUNK),
        "window": lambda: make_window(lm, width).read(text),
        **{f"emllm-{code}": memory(f"emllm-{code}") for code in ("S", "SM", "SC")},
    }
    times = least(ways, repeats)
    return {
        "tokens": n,
        "tokens_per_s": {name: n / value for name, value in times.items()},
        "S_against_plain": times["plain, band mask"] / times["emllm-S"],
        "S_against_plain_chunks": times["plain, band, chunks"] / times["emllm-S"],
        "S_against_window": times["window"] / times["emllm-S"],
        "SM_over_S": times["emllm-SM"] / times["emllm-S"],
        "SC_over_S": times["emllm-SC"] / times["emllm-S"],
    }


def make_window(lm: Any, width: int) -> Any:
    """Our own sliding window that sees `width` tokens."""
    from workbench.memory import make_system

    return make_system("window", lm, n_init=N_INIT, n_local=width - N_INIT, chunk=CHUNK)


def length(lm: Any, n: int) -> dict[str, Any]:
    """Time per token while a text of n tokens is read, every 2,048 tokens, from 4,096 on."""
    memory = system(lm, "emllm-S")
    step = 2048
    places, rates, bytes_ = [], [], []
    for start in range(0, n, step):
        text = make_text(lm, step, seed=start)
        before = memory.n_tokens
        time_ = seconds(lambda text=text: memory.read(text))
        rates.append(time_ / (memory.n_tokens - before))
        places.append(memory.n_tokens)
        bytes_.append(memory.footprint())
    late = np.array(places) > 4096
    x, y = np.array(places, dtype=float)[late], np.array(rates)[late]
    slope, level = np.polyfit(x, y, 1) if len(x) > 1 else (0.0, float(y.mean()))
    rest = y - (slope * x + level)
    spread = np.sqrt((rest**2).sum() / max(1, len(x) - 2) / ((x - x.mean()) ** 2).sum())
    over = (x[-1] - x[0]) / y.mean()
    return {
        "tokens": places[-1],
        "ms_per_token": [1000 * rate for rate in rates],
        "rise_over_range": float(slope * over),
        "rise_standard_error": float(spread * over),
        "footprint": bytes_,
        "places": places,
    }


def footprint(lm: Any, n: int) -> dict[str, Any]:
    """Bytes by length, stored in host memory and on disk."""
    found: dict[str, Any] = {}
    for store in ("host", "disk"):
        with tempfile.TemporaryDirectory() as folder:
            memory = system(lm, "emllm-S", store=store, folder=folder)
            rows = []
            for start in range(0, n, n // 4):
                memory.read(make_text(lm, n // 4, seed=start))
                rows.append({"tokens": memory.n_tokens, **memory.footprint()})
            found[store] = rows
    return found


def store(n_tokens: int, repeats: int) -> dict[str, Any]:
    """Milliseconds of one layer's retrieval: similarities and the choice of units."""
    import torch

    from workbench.memory.ann import ApproximateIndex, synthetic_store
    from workbench.memory.representatives import similarities
    from workbench.memory.select import recall_units

    n = n_tokens // 40
    units, queries = synthetic_store(n, repeats)
    sizes = [40] * n

    def chosen(values: Any, queue: list[int]) -> object:
        weights = np.array(sizes, dtype=np.int64)
        return recall_units(values, weights, tokens=N_MEM, share=0.3, queue=queue)

    def exact(i: int) -> object:
        return chosen(similarities(queries[i], units).numpy(), [])

    index = ApproximateIndex(256)
    index.candidates(units, queries[0], N_MEM)

    def approximate(i: int) -> object:
        row = np.full(n, -np.inf, dtype=np.float32)
        found = index.candidates(units, queries[i], N_MEM)
        row[found] = similarities(queries[i], units[torch.from_numpy(found)]).numpy()
        return chosen(row, [])

    times: dict[str, list[float]] = {"exact": [], "faiss": []}
    for i in range(repeats):
        times["exact"].append(1000 * seconds(lambda i=i: exact(i)))
        times["faiss"].append(1000 * seconds(lambda i=i: approximate(i)))
    return {
        "units": n,
        **{
            name: {"median_ms": float(np.median(v)), "most_ms": max(v), "least_ms": min(v)}
            for name, v in times.items()
        },
    }


def decode(lm: Any, n_read: int, n_new: int, repeats: int) -> dict[str, Any]:
    """Tokens a second of generating n_new tokens after n_read."""
    import torch

    text = make_text(lm, n_read)
    width = N_INIT + N_LOCAL + N_MEM
    prompt = torch.tensor([lm.tokenizer(text)["input_ids"][-width:]])
    forced = {"min_new_tokens": n_new, "max_new_tokens": n_new}

    def plain(new: int) -> Callable[[], object]:
        def run() -> object:
            with torch.inference_mode():
                return lm.model.generate(
                    prompt,
                    attention_mask=torch.ones_like(prompt),
                    do_sample=False,
                    min_new_tokens=new,
                    max_new_tokens=new,
                )

        return run

    ways: dict[str, Callable[[], object]] = {"prefill": plain(1), "plain": plain(n_new)}
    for every in (1, 2, 4, 8):
        memory = system(lm, "emllm-S", every=every).read(text)
        ways[f"every={every}"] = lambda memory=memory: memory.generate(" The", keep=False, **forced)
    times = least(ways, repeats)
    # The memory reads the prompt's token, and the last new one for itself: n_new + 1 steps.
    rate = {"plain": (n_new - 1) / (times["plain"] - times["prefill"])}
    rate |= {name: (n_new + 1) / times[name] for name in ways if name.startswith("every")}
    return {
        "tokens_read": n_read,
        "tokens_per_s": rate,
        "against_plain": {name: value / rate["plain"] for name, value in rate.items()},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--tokens", type=int, default=4096, help="of the parts reading and decode")
    parser.add_argument("--longest", type=int, default=16384, help="of the part length (to 65536)")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()

    import torch

    import workbench as wb

    torch.set_num_threads(1)
    lm = wb.load_model()
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "reading": lambda: reading(lm, options.tokens, options.repeats),
        "length": lambda: length(lm, options.longest),
        "footprint": lambda: footprint(lm, options.tokens),
        "store": lambda: store(1_000_000, 20),
        "decode": lambda: decode(lm, options.tokens, 32, options.repeats),
    }
    for name in options.parts.split(","):
        if name not in parts:
            parser.error(f"--parts {name}: known are {', '.join(PARTS)}")
        print(json.dumps({name: parts[name]()}, indent=1), flush=True)


if __name__ == "__main__":
    main()
