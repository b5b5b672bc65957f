"""The same parts as containers: what their images run besides our ordinary processes."""
