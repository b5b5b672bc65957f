"""Recorded histories of every kind of task, replayed against today's workflow code."""
