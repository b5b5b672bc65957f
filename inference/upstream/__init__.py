"""Engines that speak OpenAI's protocol: text goes in and comes out, no token ids."""
