"""Doors: what Triton loads as `model.py`, one folder a contract."""
