"""What LangChain's and LlamaIndex's OpenAI classes get, with only the base URL changed.

    python frameworks.py BASE_URL KEY     prints one JSON object

Runs in an environment of its own (requirements/frameworks.txt): both want an older `openai` than
the one the other tests use, so this is also that package's test.
"""

from __future__ import annotations

import json
import sys

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from llama_index.core.llms import ChatMessage
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


@tool
def weather(city: str) -> str:
    """Today's weather."""
    return f"sunny in {city}"


class Number(BaseModel):
    """A number."""

    n: int


CALL = '[[call text="{\\"tool\\": \\"weather\\", \\"arguments\\": {\\"city\\": \\"Ulm\\"}}"]]'


def langchain(url: str, key: str) -> dict[str, object]:
    """Ask through LangChain."""
    said = {"base_url": url, "api_key": key, "max_retries": 0}
    mock = ChatOpenAI(model="mock", **said)
    whole = mock.invoke("hi")
    streamed = "".join(str(chunk.content) for chunk in mock.stream("hi"))
    ours = ChatOpenAI(model="scripted", temperature=0, **said)
    called = ours.bind_tools([weather]).invoke(f"The weather? {CALL}")
    formed = ours.with_structured_output(Number, method="json_schema").invoke("A number, please.")
    responses = ChatOpenAI(model="mock", use_responses_api=True, **said).invoke("hi")
    # These two need a word more than the base URL: docs/rest.md.
    gone_on = OpenAI(
        model="smollm2-135m-instruct", temperature=0, max_tokens=4, batch_size=1, **said
    ).generate(["Once upon a", "One and one is"])
    vectors = OpenAIEmbeddings(
        model="all-minilm-l6-v2",
        base_url=url,
        api_key=key,
        check_embedding_ctx_length=False,
    ).embed_documents(["a", "b"])
    return {
        "whole": whole.content,
        "usage": whole.usage_metadata["output_tokens"],
        "streamed": streamed,
        "calls": [[call["name"], call["args"]] for call in called.tool_calls],
        "formed": formed.n,
        "responses": responses.text if isinstance(responses.text, str) else responses.text(),
        "gone_on": [bool(made.text) for (made,) in gone_on.generations],
        "vectors": [len(vector) for vector in vectors],
    }


def llama_index(url: str, key: str) -> dict[str, object]:
    """Ask through LlamaIndex."""
    said = {"api_base": url, "api_key": key, "max_retries": 0}
    mock = OpenAILike(model="mock", is_chat_model=True, context_window=16_000, **said)
    message = [ChatMessage(role="user", content="hi")]
    streamed = "".join(part.delta or "" for part in mock.stream_chat(message))
    vectors = OpenAIEmbedding(
        model_name="all-minilm-l6-v2", embed_batch_size=2, **said
    ).get_text_embedding_batch(["a", "b"])
    return {
        "whole": mock.chat(message).message.content,
        "streamed": streamed,
        "vectors": [len(vector) for vector in vectors],
    }


if __name__ == "__main__":
    told = {ask.__name__: ask(sys.argv[1], sys.argv[2]) for ask in (langchain, llama_index)}
    sys.stdout.write(json.dumps(told) + "\n")
