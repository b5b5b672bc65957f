"""The REST surface: one module of routes per resource."""
