"""Memory systems: what a model keeps of a text it has left behind, and how it recalls it."""

from workbench.memory.focused import FOT, LongLLaMA, MemorizingTransformer
from workbench.memory.named import (
    EMLLM,
    SYSTEMS,
    FullContext,
    InfLLM,
    MemorySystem,
    SlidingWindow,
    make_system,
)
from workbench.memory.saving import load_memory, save_memory

__all__ = [
    "EMLLM",
    "FOT",
    "SYSTEMS",
    "FullContext",
    "InfLLM",
    "LongLLaMA",
    "MemorizingTransformer",
    "MemorySystem",
    "SlidingWindow",
    "load_memory",
    "make_system",
    "save_memory",
]
