"""The scripted engine's tokenizer: one token a byte, and four control tokens.

0..255  bytes      256 <|im_start|>      257 <|im_end|>      258 <|end|>      259 <|pad|>
"""

from __future__ import annotations

import json

from inference.vocabulary import byte_alphabet

CONTROL = {"<|im_start|>": 256, "<|im_end|>": 257, "<|end|>": 258, "<|pad|>": 259}
EOS_ID = CONTROL["<|im_end|>"]

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def tokenizer_json() -> str:
    """The tokenizer in the format of the `tokenizers` library."""
    vocab = {char: byte for byte, char in sorted(byte_alphabet().items())}
    added = [
        {
            "id": i,
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for content, i in CONTROL.items()
    ]
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": False,
            },
            "post_processor": None,
            "decoder": {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": False,
            },
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": {**vocab, **CONTROL},
                "merges": [],
            },
        },
        ensure_ascii=False,
    )
