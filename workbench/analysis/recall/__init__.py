"""Recall: order and contiguity of what is recalled, by people, attention heads, models, memories.

Every measure takes *recall sequences* (`sequences.RecallSequences`, or the usual free-recall table
that `as_sequences` reads): which studied positions came out, in which order. Who recalled does not
matter: a person recalling words, a person retelling events, a model of memory, or a memory system
retrieving events.
"""
