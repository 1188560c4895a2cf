"""The asynchronous openai client and the stream helper of the synchronous one: the same answers as the plain calls."""

import asyncio
import contextlib

import openai
import pytest

from daemon import eventually

MESSAGES = [{"role": "user", "content": "Name three colours."}]
KINDS = {
    "greedy": {"temperature": 0},
    "choices": {"temperature": 0.9, "seed": 11, "n": 3},
    "stop": {"temperature": 0, "stop": [",", "\n"]},
}


@contextlib.asynccontextmanager
async def connected(daemon):
    async with openai.AsyncOpenAI(base_url=daemon.url + "/v1", api_key="unused", max_retries=0, timeout=120) as made:
        yield made


async def chat_parts(stream) -> list[tuple]:
    """(text, finish reason) of each choice of a chat stream."""
    parts = {}
    async for chunk in stream:
        for piece in chunk.choices:
            text, _ = parts.get(piece.index, ("", None))
            parts[piece.index] = (text + (piece.delta.content or ""), piece.finish_reason)
    return [parts[i] for i in sorted(parts)]


async def completion_parts(stream) -> list[tuple]:
    parts = {}
    async for chunk in stream:
        for piece in chunk.choices:
            text, _ = parts.get(piece.index, ("", None))
            parts[piece.index] = (text + piece.text, piece.finish_reason)
    return [parts[i] for i in sorted(parts)]


@pytest.mark.parametrize("kind", KINDS)
def test_async_answers_equal_the_synchronous_ones(daemon, client, kind):
    fields = {"model": "smollm2", "max_tokens": 24} | KINDS[kind]

    async def ask():
        async with connected(daemon) as c:
            chat = await c.chat.completions.create(messages=MESSAGES, **fields)
            chat_stream = await chat_parts(await c.chat.completions.create(messages=MESSAGES, stream=True, **fields))
            plain = await c.completions.create(prompt="Once upon a time", **fields)
            plain_stream = await completion_parts(
                await c.completions.create(prompt="Once upon a time", stream=True, **fields))
            return ([(x.message.content, x.finish_reason) for x in chat.choices], chat_stream,
                    [(x.text, x.finish_reason) for x in plain.choices], plain_stream)

    chat, chat_stream, plain, plain_stream = asyncio.run(ask())
    expected = client.chat.completions.create(messages=MESSAGES, **fields)
    assert chat == chat_stream == [(x.message.content, x.finish_reason) for x in expected.choices]
    expected = client.completions.create(prompt="Once upon a time", **fields)
    assert plain == plain_stream == [(x.text, x.finish_reason) for x in expected.choices]
    assert len(chat) == len(plain) == fields.get("n", 1)
    if kind == "stop":
        assert plain[0][1] == "stop" and not any(s in plain[0][0] for s in KINDS["stop"]["stop"])


def test_many_at_once_answer_as_each_alone(daemon, client):
    prompts = [f"The {word} is" for word in ("sea", "sun", "house", "river", "city", "garden", "road", "king")]
    fields = {"model": "smollm2", "max_tokens": 12, "temperature": 0.7, "seed": 3}

    async def ask():
        async with connected(daemon) as c:
            whole = [c.completions.create(prompt=p, **fields) for p in prompts[:4]]
            streams = [c.completions.create(prompt=p, stream=True, **fields) for p in prompts[4:]]

            async def follow(stream):
                return (await completion_parts(await stream))[0][0]

            answers, texts = await asyncio.gather(asyncio.gather(*whole), asyncio.gather(*map(follow, streams)))
            return [a.choices[0].text for a in answers] + texts

    together = asyncio.run(ask())
    assert together == [client.completions.create(prompt=p, **fields).choices[0].text for p in prompts]


def test_a_cancelled_task_aborts_its_request(daemon):
    fields = {"model": "smollm2", "prompt": "Once", "max_tokens": 4000, "extra_body": {"ignore_eos": True}}
    before = daemon.status().cancelled_total.client_gone

    async def ask():
        async with connected(daemon) as c:
            stream = await c.completions.create(stream=True, **fields)
            await anext(stream)
            await stream.close()  # one leaves in the middle of a stream,
            whole = asyncio.create_task(c.completions.create(**fields))
            await asyncio.to_thread(eventually, lambda: daemon.status().running_sequences == 1, "it runs")
            whole.cancel()  # and one before the answer
            with pytest.raises(asyncio.CancelledError):
                await whole

    asyncio.run(ask())
    daemon.wait_idle()
    assert daemon.status().cancelled_total.client_gone == before + 2


def test_the_stream_helper_builds_the_same_completion(client):
    fields = {"model": "smollm2", "messages": MESSAGES, "temperature": 0, "logprobs": True, "top_logprobs": 2,
              "stop": [" ", "\n"], "max_tokens": 40}
    events = []
    with client.chat.completions.stream(**fields, stream_options={"include_usage": True}) as stream:
        events += [event.type for event in stream]
        built = stream.get_final_completion()
    whole = client.chat.completions.create(**fields)
    assert built.choices[0].message.content == whole.choices[0].message.content
    assert built.choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    assert built.choices[0].logprobs.content == whole.choices[0].logprobs.content
    assert built.usage.completion_tokens == whole.usage.completion_tokens
    assert {"chunk", "content.delta", "content.done", "logprobs.content.delta", "logprobs.content.done"} == set(events)
    parsed = client.chat.completions.parse(**fields)
    assert parsed.choices[0].message.content == whole.choices[0].message.content


def test_the_stream_helper_tells_an_answer_that_was_cut(client):
    with client.chat.completions.stream(model="smollm2", messages=MESSAGES, max_tokens=3, temperature=0) as stream:
        with pytest.raises(openai.LengthFinishReasonError):
            stream.get_final_completion()
