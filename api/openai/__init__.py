"""The OpenAI-compatible surface: its requests, its answers, its streams and its errors.

protocol    what OpenAI's documents say: no database, no model, no route
    errors        one shape for everything that can go wrong
    chat, completions, embeddings, responses    what may be asked
    chat_answers, completion_answers, response_answers, response_stream    what is answered
routes      api/routes/openai_*: who asks, what is done, how it is sent
"""
