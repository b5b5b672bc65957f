"""The fast lane: a call made by the API process itself, durable in Postgres all the same.

options     which models may answer, and the most a call can cost
asking      what each engine is asked
runs        one attempt at an engine, read in pieces
journal     what was made, written down while it is made
live        one call from its first piece to its end
lane        opens calls: the door that the API is given
recovery    the activities of a call whose process died
"""
