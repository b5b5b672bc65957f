"""The embedded stack: real parts from wheels, started and supervised on one machine."""
