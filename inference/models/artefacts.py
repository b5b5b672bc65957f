"""A model's tokenizer and template as files, made once from what its weights carry.

    <models>/<name>/tokenizer.json     in the format of the `tokenizers` library
                    model.json         spelling, special ids, window, identity
                    chat_template.jinja
                    <weights>          only where the package ships them in parts

The same folder is read by the harness and by the engine, so both spell text alike.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from inference.models import byte_tokenizer
from inference.models.registry import Model

FORMAT = 2
"""Raised whenever the same weights give other files, so that old folders are made again."""


@dataclass(frozen=True)
class Spelling:
    """What an artefact folder says about a tokenizer.

    Attributes:
        tokenizer: Text of tokenizer.json.
        spelling: "byte_level", "byte_fallback" or "wordpiece"; see `inference.vocabulary`.
        eos_ids: Ids that end a text.
        bos_id: Id that must begin a prompt, or None.
        chat_template: Jinja text.
        source: SHA-256 of the file it was made from.
        stops: Strings a generation under that template must stop at.
    """

    tokenizer: str
    spelling: str
    eos_ids: tuple[int, ...]
    bos_id: int | None
    chat_template: str
    source: str
    stops: tuple[str, ...] = ()


def scripted_spelling() -> Spelling:
    """The scripted engine's."""
    text = byte_tokenizer.tokenizer_json()
    return Spelling(
        tokenizer=text,
        spelling="byte_level",
        eos_ids=(byte_tokenizer.EOS_ID,),
        bos_id=None,
        chat_template=byte_tokenizer.CHAT_TEMPLATE,
        source=hashlib.sha256(text.encode()).hexdigest(),
    )


def wordpiece_spelling(path: Path) -> Spelling:
    """That of an embedding model, from its own tokenizer.json; for counting, not for generating."""
    raw = path.read_text("utf-8")
    tokenizer = json.loads(raw)
    # The file cuts and pads to 128 tokens by itself, and then every count would be 128.
    tokenizer["truncation"] = tokenizer["padding"] = None
    return Spelling(
        tokenizer=json.dumps(tokenizer),
        spelling="wordpiece",
        eos_ids=(),
        bos_id=None,
        chat_template="",
        source=hashlib.sha256(raw.encode()).hexdigest(),
    )


def write_artefacts(folder: Path, model: Model, spelling: Spelling) -> None:
    """Writes a model's folder; each file appears whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    # The template decides which ids a conversation becomes, so it is part of the identity.
    version = hashlib.sha256((spelling.tokenizer + spelling.chat_template).encode()).hexdigest()
    about = {
        "name": model.name,
        "tokenizer_version": version,
        "spelling": spelling.spelling,
        "context_window": model.context_window,
        "eos_ids": sorted(spelling.eos_ids),
        "bos_id": spelling.bos_id,
        "stops": list(spelling.stops),
        "source": spelling.source,
        "format": FORMAT,
    }
    _write(folder / "tokenizer.json", spelling.tokenizer)
    _write(folder / "chat_template.jinja", spelling.chat_template)
    # Last: its presence says that the folder is complete.
    _write(folder / "model.json", json.dumps(about, indent=1) + "\n")


def made_from(folder: Path, source: str, model: Model) -> bool:
    """Whether the folder is complete and was made from that file for that window."""
    try:
        about = json.loads((folder / "model.json").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    wanted = {"source": source, "context_window": model.context_window, "format": FORMAT}
    return all(about.get(key) == value for key, value in wanted.items())


def _write(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as file:
        file.write(text)
    scratch = Path(file.name)
    scratch.chmod(0o644)
    scratch.replace(path)
