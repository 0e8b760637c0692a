"""Time of a crossbatch step against a plain step: `python benchmarks/crossbatch.py` (one thread).

For the small decoder and a small Llama: processor time of forward and backward at several d, as a
ratio to the plain step in the same run, beside the ratio that the matrix operations predict
(`workbench.training.cost`). Least of several interleaved repeats; prints a table in Markdown.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import time
from typing import Any

import numpy as np
import torch

from workbench.training.cost import Shape, step_cost
from workbench.training.crossbatch import Crossbatch, Memory
from workbench.training.decoder import Decoder, DecoderConfig
from workbench.training.losses import token_loss
from workbench.training.pretrained import PretrainedDecoder
from workbench.training.rows import Batch, Paper

BOUND = 1.3


def batch_of(rows: int, window: int, vocabulary: int) -> Batch:
    """Random documents: one previous and one current window each."""
    ids = torch.randint(vocabulary, (2 * rows, window), generator=torch.Generator().manual_seed(0))
    number = np.arange(rows)
    return Batch(
        ids,
        torch.ones_like(ids, dtype=torch.bool),
        ids.roll(-1, dims=1),
        np.concatenate((number, number)),
        np.repeat([0, 1], rows),
        suppliers=rows,
    )


def seconds(decoder: Any, memory: Memory) -> float:
    """Processor seconds of one forward and backward pass."""
    begin = time.process_time()
    loss = token_loss(decoder(memory), memory.batch.targets[memory.batch.current])
    (loss.total / loss.tokens).backward()
    took = time.process_time() - begin
    decoder.zero_grad()
    return took


def measure(name: str, decoder: Any, shape: Shape, args: argparse.Namespace) -> None:
    """One table row per d."""
    batch = batch_of(args.rows, args.window, shape.vocabulary)
    rng = np.random.default_rng(0)
    memories: dict[int, Memory] = {0: Memory(batch.alone())}
    for d in args.d:
        memories[d] = Crossbatch(batch, Paper(d), rng)
    times: dict[int, list[float]] = {d: [] for d in memories}
    for _ in range(args.repeats):
        for d, memory in memories.items():
            times[d].append(seconds(decoder, memory))
    plain = min(times[0])
    for d in args.d:
        ratio = min(times[d]) / plain
        predicted = step_cost(shape, rows=args.rows, window=args.window, d=d).ratio
        print(
            f"| {name} | {d} | {plain * 1e3:.0f} | {ratio:.2f} | {predicted:.2f} | "
            f"{ratio / predicted:.2f} | {'yes' if ratio / predicted <= BOUND else 'no'} |"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--d", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{args.rows} documents, windows of {args.window} tokens, one thread")
    print(
        "| decoder | d | plain step, ms | step ÷ plain | predicted | measured ÷ predicted | ≤ 1.3 |"
    )
    print("|---|---|---|---|---|---|---|")
    config = DecoderConfig(vocabulary=64)
    measure("small (2 layers, 128)", Decoder(config), Shape.of_decoder(config), args)
    wide = DecoderConfig(
        vocabulary=1000,
        layers=6,
        dim=384,
        heads=6,
        head_dim=64,
        feed_forward=1536,
        memory_layers=(4,),
        positions="rope",
    )
    measure("6 layers, 384, rotary", Decoder(wide), Shape.of_decoder(wide), args)

    from transformers import LlamaConfig, LlamaForCausalLM

    llama = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=1000,
            hidden_size=384,
            intermediate_size=1024,
            num_hidden_layers=6,
            num_attention_heads=6,
            num_key_value_heads=3,
        )
    )
    decoder = PretrainedDecoder(llama, (4,))
    with decoder.attached():
        measure("Llama, 6 layers, 384", decoder, Shape.of_pretrained(llama, (4,)), args)


if __name__ == "__main__":
    main()
