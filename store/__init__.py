"""Postgres: what is kept, who may see it, and what it costs.

Every function here takes the organisation it acts for and binds it to the transaction, so that
row-level security has the last word even if a query forgets to name the tenant. The hot path
(admit, look up, stage, begin, append, finish, settle) is one network round trip per call: the
logic lives in PL/pgSQL functions beside the rows they lock.
"""
