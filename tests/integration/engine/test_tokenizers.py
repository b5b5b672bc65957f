"""The harness tokenizes exactly as the engine does, on odd strings too."""

from __future__ import annotations

import json
import random
import subprocess
import time
from pathlib import Path

import pytest

from deploy.local.engine_env import site_packages
from deploy.local.triton import build_repository
from inference.client import TritonClient
from inference.models.weights import weights_path
from inference.prompt import Sampling
from inference.templates import ChatMessage, encode_chat
from inference.tokenizers import load_tokenizer
from tests.integration.engine.running import RunningEngine, tell

# Runs in the engine's environment: llama.cpp's own tokenizer over its own listener.
ASK = """
import json, sys, urllib.request, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx, params.n_parallel, params.warmup, params.verbosity = 256, 1, False, 0
params.hostnames, params.port = ["127.0.0.1"], 0
server = xllamacpp.Server(params)
answers = []
for text, special in json.load(sys.stdin):
    body = json.dumps({"content": text, "add_special": False, "parse_special": special}).encode()
    asked = urllib.request.Request(server.listening_address + "/tokenize", body)
    answers.append(json.load(urllib.request.urlopen(asked))["tokens"])
print(json.dumps(answers))
"""

ODD = [
    *("", " ", "  ", "   a", "\n", "\n\n\n", "\t", "\r\n", "a  b   c", "trailing ", "1234567890"),
    *("3.14159", "12,345.67", "v1.2.3-rc4", "don't won't I'LL we'VE", "é", "e\u0301", "ﬁ", "İ"),
    *("naïve café", "漢字かな交じり文", "한국어 텍스트", "עברית", "العربية"),
    *("ไทยไม่มีช่องว่าง", "🦙", "👩\u200d👩\u200d👧", "🇫🇷🇩🇪", "ß", "\u00a0x\u3000y"),
    *("\u200b\u200d\ufeff", "\x01\x1f\x7f", "\U0010ffff", "<|im_end|>", "a" * 200, "ab" * 100),
    *("<|im_start|>user\nhi", "<bos><eos>", "<end_of_turn>", "</s>", "<0x41>", "▁▁under", "Ġ"),
    *("((((()))))", "!!??!!", "=====", "def f(x):\n    return x  # y", '{"a": [1, 2]}'),
    *("http://a.b/c?d=e&f=g#h", "C:\\path\\n", "$$x^2$$", "МОСКВА москва", "ΣΊΣΥΦΟΣ σίσυφος"),
]


def odd_strings() -> list[str]:
    """Hand-written ones, and mixes of them."""
    chance = random.Random(7)
    mixes = []
    for _ in range(170):
        parts = chance.sample(ODD, chance.randint(2, 4))
        mixes.append(chance.choice(["", " ", "\n", "1"]).join(parts))
    ranges = [(0x20, 0x7E), (0xA0, 0x24F), (0x370, 0x5FF), (0x900, 0xDFF), (0x4E00, 0x9FFF),
              (0x1F300, 0x1FAFF)]  # fmt: skip
    for _ in range(80):
        picked = [chance.choice(ranges) for _ in range(chance.randint(1, 12))]
        mixes.append("".join(chr(chance.randint(*each)) for each in picked))
    return ODD + mixes


@pytest.fixture(scope="module")
def gemma(engine_env: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artefacts of Gemma, whose tokenizer takes seconds to build."""
    folder = tmp_path_factory.mktemp("gemma")
    build_repository(folder / "triton", engine_env, ["gemma-3-270m"], folder / "models")
    return folder / "models" / "gemma-3-270m"


def compare(artefacts: Path, weights: Path, engine_env: Path) -> None:
    asked = [(text, special) for text in odd_strings() for special in (False, True)]
    done = subprocess.run(
        [str(engine_env / "bin/python"), "-c", ASK, str(weights)],
        input=json.dumps(asked), capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    tokenizer = load_tokenizer(artefacts)
    engine_ids = json.loads(done.stdout.splitlines()[-1])
    assert len(engine_ids) == len(asked) > 500
    for (text, special), expected in zip(asked, engine_ids, strict=True):
        ids = tokenizer.encode(text, special=special)
        assert ids == expected, (text, special)
        if not special:
            # SentencePiece writes a space as ▁, so that character comes back as a space.
            spelled = text.replace("▁", " ") if "gemma" in tokenizer.name else text
            assert tokenizer.decode(ids) == spelled, text


def test_smollm2(engine: RunningEngine, engine_env: Path) -> None:
    folder = engine.models_folder / "smollm2-135m-instruct"
    weights = weights_path("smollm2-135m-instruct", site_packages(engine_env), folder)
    compare(folder, weights, engine_env)


def test_gemma(gemma: Path, engine_env: Path) -> None:
    compare(gemma, gemma / "gemma-3-270m-q4_k_m.gguf", engine_env)


async def test_gemma_answers_and_resumes(gemma: Path, engine_env: Path, tmp_path: Path) -> None:
    engine = RunningEngine(gemma.parents[1], engine_env, ["gemma-3-270m"])
    try:
        await engine.start()
        tokenizer = load_tokenizer(gemma)
        prompt = encode_chat(tokenizer, [ChatMessage("user", "What is the capital of France?")])
        assert prompt[0] == tokenizer.bos_id
        sampling = Sampling(max_tokens=16, stop=tokenizer.stops)
        async with TritonClient(engine.url) as client:
            whole = await tell(client, "gemma-3-270m", prompt, sampling=sampling)
            assert "Paris" in whole.text
            assert "Question" not in whole.text
            rest = await tell(
                client, "gemma-3-270m", prompt, sampling=sampling,
                generated_ids=whole.token_ids[:2],
            )  # fmt: skip
            assert whole.token_ids[:2] + rest.token_ids == whole.token_ids
    finally:
        engine.stop()


def test_artefacts_are_made_once(engine: RunningEngine) -> None:
    started = time.perf_counter()
    engine.part.prepare(lambda line: pytest.fail(line))
    assert time.perf_counter() - started < 10
