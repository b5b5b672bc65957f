"""An engine that plays given words at a given pace, for tests and benchmarks.

It stands behind the same Triton model, contract and meter as the real ones. A token is one
byte, so any text can be said and a character can span tokens.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator
from pathlib import Path

from inference.engines.base import EngineRefusal, Step
from inference.engines.script import Script, read_script
from inference.prompt import Prompt
from inference.vocabulary import Vocabulary

_READY_TOGETHER = 32


class ScriptedEngine:
    """See `inference.engines.script` for what a prompt can ask."""

    def __init__(self, vocabulary: Vocabulary, state_folder: Path) -> None:
        """Prepares the engine.

        Args:
            vocabulary: The byte vocabulary.
            state_folder: Where it is remembered that a fault has happened once.
        """
        self._spelled = list(vocabulary.pieces)
        # Control tokens carry no text, but turns are counted by this one.
        self._spelled[_IM_START] = b"<|im_start|>"
        self._state_folder = state_folder
        (self._end,) = vocabulary.eos_ids
        self._last_prompt: list[int] = []

    async def start(self) -> None:
        """Nothing to load."""

    async def close(self) -> None:
        """Nothing to free."""

    async def generate(self, prompt: Prompt) -> AsyncGenerator[Step, None]:
        """Plays the prompt's script from where earlier attempts left it."""
        if prompt.lora_name is not None:
            raise EngineRefusal("unknown_lora", f"no adapter is called {prompt.lora_name!r}")
        if prompt.sampling.biased_ids:
            raise EngineRefusal("bad_sampling", "what is said is written: no token is biased")
        raw = b"".join(map(self._spelled.__getitem__, prompt.input_ids))
        text = raw.decode("utf-8", "replace")
        try:
            script = read_script(text, prompt.json_schema, prompt.grammar)
        except ValueError as error:
            raise EngineRefusal("bad_request", str(error)) from error
        if script.faulty and script.once and not self._first_time(script.once):
            script = script.healthy()
        taken = prompt.input_ids + prompt.generated_ids
        cached = _common(self._last_prompt, taken)
        self._last_prompt = taken
        output = script.output()
        said = len(prompt.generated_ids)
        if script.first_ms:
            await asyncio.sleep(script.first_ms / 1000)
        while said < len(output):
            self._fault(script, said)
            if script.freeze is not None and said >= script.freeze:
                await asyncio.Event().wait()
            until = self._until(script, said, len(output))
            yield Step(list(output[said:until]), len(taken), cached)
            said = until
            # Also without a pace: others must get their turn between two batches.
            await asyncio.sleep(script.pace_ms / 1000)
        self._fault(script, said)
        if script.hang_end or (script.freeze is not None and said >= script.freeze):
            await asyncio.Event().wait()
        yield Step([self._end], len(taken), cached, ended="stop")

    def _until(self, script: Script, said: int, length: int) -> int:
        """How far the next step goes: never past the point of a fault."""
        if script.pace_ms:
            return said + 1
        until = min(length, said + _READY_TOGETHER)
        faults = (script.die, script.freeze, script.freeze_process, script.fail)
        return min([until, *(fault for fault in faults if fault is not None and fault > said)])

    def _fault(self, script: Script, said: int) -> None:
        if script.die is not None and said >= script.die:
            os._exit(9)
        if script.freeze_process is not None and said >= script.freeze_process:
            os.kill(os.getpid(), signal.SIGSTOP)
            # The other threads stop a moment later; nothing more must leave until then.
            time.sleep(0.2)
        if script.fail is not None and said >= script.fail:
            raise RuntimeError("the script says that the engine breaks here")

    def _first_time(self, name: str) -> bool:
        marker = self._state_folder / f"once-{name.encode().hex()[:120]}"
        try:
            marker.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


_IM_START = 256
"""Id of the token that opens a turn; see `inference.models.byte_tokenizer`."""


def _common(a: list[int], b: list[int]) -> int:
    """Length of the common start, short of the last token, as a prefix cache would find it."""
    low, high = 0, min(len(a), len(b) - 1)
    # Halving over slices compares in C; a loop would cost more than the whole request.
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
