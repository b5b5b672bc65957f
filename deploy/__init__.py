"""Where Overline runs: the embedded stack, containers, and the entry points of its processes."""
