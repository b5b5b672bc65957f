"""The agent task end to end: through the public API, on the whole stack."""
