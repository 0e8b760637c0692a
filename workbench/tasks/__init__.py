"""Tasks that memory systems are tested on: passkey, key-value retrieval, needles, perplexity."""
