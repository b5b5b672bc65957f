"""Layers 02, 03, 05, 06 and the model and tool calls: one module a layer."""
