"""Batches: many requests in a file, each made once by the fast lane.

surface     what a line says and how it is answered: the API's knowledge, given from outside
validation  every line looked at and filed, or what is wrong with them, by number
verdicts    what becomes of a line whose call failed: over, or tried again
slices      some seconds of one engine slot
results     the files of a batch that begins nothing more
"""
