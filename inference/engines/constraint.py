"""A request's JSON schema or grammar as the GBNF that holds from where the text stands."""

from __future__ import annotations

from functools import lru_cache

from inference.engines.base import EngineRefusal
from inference.grammar import Grammar, GrammarError, NoContinuation
from inference.grammar_reader import read_grammar
from inference.json_grammar import SchemaError, schema_grammar
from inference.prompt import Prompt


def constraint(prompt: Prompt, generated: bytes) -> str | None:
    """The GBNF for what may come next, or None when anything may.

    Args:
        prompt: The request.
        generated: Bytes of everything generated so far.

    Raises:
        EngineRefusal: bad_schema, bad_grammar, or cannot_resume when the text so far ends
            inside a character or is not what the constraint allows.
    """
    text = _gbnf(prompt.json_schema, prompt.grammar)
    if text is None:
        return None
    grammar = _read(text)
    if not generated:
        return text
    try:
        return grammar.rest_after(generated.decode())
    except (UnicodeDecodeError, NoContinuation, GrammarError) as error:
        raise EngineRefusal(
            "cannot_resume", "the text so far cannot be continued under this constraint"
        ) from error


def _gbnf(json_schema: str | None, grammar: str | None) -> str | None:
    if json_schema is not None:
        try:
            return schema_grammar(json_schema)
        except SchemaError as error:
            raise EngineRefusal("bad_schema", str(error)) from error
    return grammar


# A conversation asks under the same few schemas again and again.
@lru_cache(maxsize=64)
def _read(text: str) -> Grammar:
    try:
        return read_grammar(text)
    except (GrammarError, RecursionError) as error:
        raise EngineRefusal("bad_grammar", str(error) or "nested too deeply") from error
