"""Layers 07 to 09: everything about reaching a model, and nothing about who asked.

Some modules here also run inside the engine's own environment, next to the model, where only
the standard library, NumPy, tokenizers and the engine itself exist: `contract`, `generation`,
`detokenizer`, `grammar`, `meter`, `engines` and `server`. They import nothing else of ours.
"""
