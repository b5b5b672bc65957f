"""A GGUF file's tokenizer, rebuilt for the `tokenizers` library.

How text is cut before merging is only named in the file, so every name is mapped by hand and an
unknown one is refused: a nearly right tokenizer is worse than none.
"""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from inference.errors import ArtefactError
from inference.models.artefacts import Spelling

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_META = "tokenizer.ggml"
_END_WORDS = frozenset(
    [
        *("<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|end|>", "<|eot_id|>", "<|eom_id|>"),
        *("<end_of_turn>", "<end_of_utterance>", "<eos>", "</s>", "< EOT >", "_<EOT>", "<EOT>"),
    ]
)

COMPLETION_TEMPLATE = """\
{#- This model was taught to continue text, not to converse. A conversation is written as a page
    with plain labels, and an answer ends where the next label would begin. -#}
{%- set labels = {'system': 'Instructions', 'user': 'Question', 'assistant': 'Answer',
                  'tool': 'Result'} -%}
{%- for message in messages -%}
{{ labels[message['role']] ~ ': ' ~ (message['content'] | trim) ~ '\\n\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ labels['assistant'] ~ ':' }}
{%- endif -%}
"""
"""Used where the file has no chat template of its own."""

COMPLETION_STOPS = ("\nInstructions:", "\nQuestion:", "\nAnswer:", "\nResult:")
"""What a generation under that template must stop at."""


def spelling_of(metadata: dict[str, Any], source: str) -> Spelling:
    """Everything about a GGUF file's tokenizer.

    Args:
        metadata: What `read_metadata` gave.
        source: SHA-256 of the file.

    Raises:
        ArtefactError: The file's tokenizer is of a kind that is not mapped here.
    """
    kind = metadata[f"{_META}.model"]
    cut = metadata.get(f"{_META}.pre")
    if kind == "gpt2" and cut == "smollm":
        tokenizer, spelling = _byte_level(metadata), "byte_level"
    elif kind == "llama" and f"{_META}.scores" in metadata:
        if metadata.get(f"{_META}.add_space_prefix", True):
            raise ArtefactError("a tokenizer that puts a space before every text is not mapped")
        tokenizer, spelling = _byte_fallback(metadata), "byte_fallback"
    else:
        raise ArtefactError(f"tokenizer {kind!r} with pre-tokenizer {cut!r} is not mapped")
    template = metadata.get("tokenizer.chat_template")
    begins = bool(metadata.get(f"{_META}.add_bos_token", False))
    return Spelling(
        tokenizer=tokenizer.to_str(),
        spelling=spelling,
        eos_ids=_ends(metadata),
        bos_id=int(metadata[f"{_META}.bos_token_id"]) if begins else None,
        chat_template=template or COMPLETION_TEMPLATE,
        stops=() if template else COMPLETION_STOPS,
        source=source,
    )


def _ends(metadata: dict[str, Any]) -> tuple[int, ...]:
    """Ids that llama.cpp, too, takes for an end: those named, and the known words for it."""
    names = ("eos_token_id", "eot_token_id", "eom_token_id")
    ends = {int(metadata[key]) for name in names if (key := f"{_META}.{name}") in metadata}
    pieces = zip(metadata[f"{_META}.tokens"], _kinds(metadata), strict=True)
    ends |= {
        n for n, (piece, kind) in enumerate(pieces) if kind == _CONTROL and piece in _END_WORDS
    }
    return tuple(sorted(ends))


def _kinds(metadata: dict[str, Any]) -> list[int]:
    """Kinds of the tokens, corrected as llama.cpp corrects them when it loads the file.

    What is called like an end is one, whatever the file says: Gemma's file has the HTML tag </s>
    as plain text, and llama.cpp takes it for a control token.
    """
    pieces = zip(metadata[f"{_META}.tokens"], metadata[f"{_META}.token_type"], strict=True)
    return [
        _CONTROL if kind == _USER_DEFINED and piece in _END_WORDS else kind
        for piece, kind in pieces
    ]


def _byte_level(metadata: dict[str, Any]) -> Tokenizer:
    merges = [tuple(merge.split(" ", 1)) for merge in metadata[f"{_META}.merges"]]
    vocabulary = {piece: n for n, piece in enumerate(metadata[f"{_META}.tokens"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    _add_special(tokenizer, metadata)
    return tokenizer


def _byte_fallback(metadata: dict[str, Any]) -> Tokenizer:
    """SentencePiece scores as merges: of two that are possible, the better result goes first."""
    pieces: list[str] = metadata[f"{_META}.tokens"]
    kinds = _kinds(metadata)
    scores: list[float] = metadata[f"{_META}.scores"]
    ids = {piece: n for n, piece in enumerate(pieces)}
    ranked: list[tuple[float, int, str, str]] = []
    for n, piece in enumerate(pieces):
        if kinds[n] != _NORMAL:
            continue
        splits = [
            (piece[:at], piece[at:])
            for at in range(1, len(piece))
            if piece[:at] in ids and piece[at:] in ids
        ]
        splits.sort(key=lambda split: (ids[split[0]], ids[split[1]]))
        ranked += [(-scores[n], n, left, right) for left, right in splits]
    ranked.sort(key=lambda entry: (entry[0], entry[1]))
    unknown = pieces[metadata[f"{_META}.unknown_token_id"]]
    tokenizer = Tokenizer(
        models.BPE(
            vocab=ids,
            merges=[(left, right) for _, _, left, right in ranked],
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    _add_special(tokenizer, metadata)
    return tokenizer


def _add_special(tokenizer: Tokenizer, metadata: dict[str, Any]) -> None:
    kinds = _kinds(metadata)
    tokenizer.add_tokens(
        [
            AddedToken(piece, special=kind == _CONTROL, normalized=False)
            for piece, kind in zip(metadata[f"{_META}.tokens"], kinds, strict=True)
            if kind in (_CONTROL, _USER_DEFINED)
        ]
    )
