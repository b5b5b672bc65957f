"""What the processes tell about themselves: traces, metrics, logs, and the names they use.

Every room may import this package; it imports only ``settings`` and third parties. Code that must
not know Temporal (``inference``, ``store``) imports ``spans`` and ``metrics``; only a process's
entry point imports ``tracing``, which does.

Nothing here is a source of truth: money and tokens are counted in the database, so that a lost
span or a full metrics disk never changes a bill.
"""
