"""Training of memory layers: crossbatch (Focused Transformer) and its baselines on one loop."""
