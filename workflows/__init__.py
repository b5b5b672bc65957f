"""Layer 04: deterministic workflows, and the contracts that cross their border."""
