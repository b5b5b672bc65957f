"""Conversations as each model was taught to read them.

The model's own chat template decides. What callers wrote can never become a control token: a
name of one inside a message is encoded as the plain text it is.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NoReturn

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inference.errors import RequestRefused
from inference.tokenizers import ModelTokenizer

Role = Literal["system", "user", "assistant", "tool"]
ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True)
class ChatMessage:
    """One message.

    Attributes:
        role: system, user, assistant, or tool for a tool's result.
        content: The text.
        name: Of the tool, for its result.
    """

    role: str
    content: str
    name: str | None = None


def render(
    tokenizer: ModelTokenizer, messages: Sequence[ChatMessage], add_generation_prompt: bool = True
) -> str:
    """The text the model reads.

    Args:
        tokenizer: The model's.
        messages: The conversation, oldest first.
        add_generation_prompt: Whether the model's turn is opened at the end.

    Raises:
        RequestRefused: A role does not exist, or the template refuses the conversation.
    """
    template = tokenizer.chat_template
    knows_tools = "tool" in template
    spoken = [_spoken(message, knows_tools=knows_tools) for message in messages]
    try:
        return _compiled(template).render(
            messages=spoken,
            add_generation_prompt=add_generation_prompt,
            # The id is put in front by `encode_chat`; the text would be a second one.
            bos_token="",
            eos_token="",
        )
    except TemplateError as error:
        raise RequestRefused(f"the model's template refuses this conversation: {error}") from error


def encode_chat(
    tokenizer: ModelTokenizer, messages: Sequence[ChatMessage], add_generation_prompt: bool = True
) -> list[int]:
    """The token ids of a conversation, beginning with the model's start token if it has one.

    Raises:
        RequestRefused: As `render`.
    """
    masked, originals, mark = _masked(tokenizer, messages)
    text = render(tokenizer, masked, add_generation_prompt)
    ids = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    for number, piece in enumerate(text.split(mark)):
        # Pieces between two marks alternate: template and text, number of a masked name.
        if number % 2:
            ids += tokenizer.encode(originals[int(piece)], special=False)
        elif piece:
            ids += tokenizer.encode(piece, special=True)
    return ids


def plain(message: ChatMessage) -> dict[str, str]:
    """The message as any chat model understands it: a tool's result is told by the user.

    Raises:
        RequestRefused: The role does not exist.
    """
    return _spoken(message, knows_tools=False)


def _masked(
    tokenizer: ModelTokenizer, messages: Sequence[ChatMessage]
) -> tuple[list[ChatMessage], list[str], str]:
    """The messages with every control token's name replaced by a numbered mark."""
    names = tokenizer.control_tokens
    mark = f"\ue000{secrets.token_hex(8)}\ue000"
    masked: list[ChatMessage] = []
    found: list[str] = []
    for message in messages:
        content = message.content
        for name in names:
            if name in content:
                content = content.replace(name, f"{mark}{len(found)}{mark}")
                found.append(name)
        masked.append(ChatMessage(message.role, content, message.name))
    return masked, found, mark


def _spoken(message: ChatMessage, *, knows_tools: bool) -> dict[str, str]:
    if message.role not in ROLES:
        raise RequestRefused(f"there is no role {message.role!r}; there are {', '.join(ROLES)}")
    if message.role == "tool" and not knows_tools:
        said_by = f" of {message.name}" if message.name else ""
        return {"role": "user", "content": f"Result{said_by}: {message.content}"}
    spoken = {"role": message.role, "content": message.content}
    return {**spoken, "name": message.name} if message.name else spoken


@lru_cache(maxsize=32)
def _compiled(template: str) -> Template:
    # Templates come with the weights, from strangers: sandboxed.
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _refuse
    return environment.from_string(template)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
