"""langchain-openai against the REST door: chat and completion models, streams, batches, asynchronous calls."""

import asyncio

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI

MESSAGES = [SystemMessage("Answer briefly."), HumanMessage("Hello!"), AIMessage("Hi."),
            HumanMessage("Name three colours.")]
AS_SENT = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "Hello!"},
           {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "Name three colours."}]


def settings(daemon, **more) -> dict:
    return {"base_url": daemon.url + "/v1", "api_key": "unused", "model": "smollm2", "temperature": 0,
            "max_tokens": 16, "max_retries": 0} | more


@pytest.fixture(autouse=True)
def no_tracing(monkeypatch):
    """Nothing of the tester's environment may send what is asked here elsewhere."""
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    monkeypatch.setenv("LANGCHAIN_TRACING_V2", "false")


@pytest.fixture(scope="module")
def plain_answer(client):
    """The same chat asked by the openai client."""
    return client.chat.completions.create(model="smollm2", messages=AS_SENT, temperature=0, max_tokens=16)


def test_chat_is_what_the_plain_client_gets(daemon, plain_answer):
    message = ChatOpenAI(**settings(daemon)).invoke(MESSAGES)
    assert message.content == plain_answer.choices[0].message.content
    assert message.response_metadata["finish_reason"] == plain_answer.choices[0].finish_reason
    assert message.usage_metadata["input_tokens"] == plain_answer.usage.prompt_tokens
    assert message.usage_metadata["output_tokens"] == plain_answer.usage.completion_tokens
    assert message.response_metadata["model_name"] == "smollm2"


def test_streamed_chat_adds_up_to_the_same(daemon, plain_answer):
    chunks = list(ChatOpenAI(**settings(daemon, stream_usage=True)).stream(MESSAGES))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert len(chunks) > 4 and whole.content == plain_answer.choices[0].message.content
    assert whole.response_metadata["finish_reason"] == plain_answer.choices[0].finish_reason
    assert whole.usage_metadata["total_tokens"] == plain_answer.usage.total_tokens


def test_asynchronous_chat_is_the_same(daemon, plain_answer):
    async def ask():
        model = ChatOpenAI(**settings(daemon))
        message = await model.ainvoke(MESSAGES)
        return message.content, "".join([chunk.content async for chunk in model.astream(MESSAGES)])

    expected = plain_answer.choices[0].message.content
    assert asyncio.run(ask()) == (expected, expected)


def test_batch_answers_as_one_after_the_other(daemon):
    model = ChatOpenAI(**settings(daemon, seed=4, temperature=0.8))
    questions = ["Name a city.", "What is 2 and 2?", "Say hello.", "Name an animal."]
    assert [m.content for m in model.batch(questions)] == [model.invoke(q).content for q in questions]


def test_chat_logprobs_and_stop(daemon):
    message = ChatOpenAI(**settings(daemon, logprobs=True, top_logprobs=2)).invoke(MESSAGES)
    entries = message.response_metadata["logprobs"]["content"]
    assert len(entries) == message.usage_metadata["output_tokens"]
    assert all(len(e["top_logprobs"]) == 2 and e["logprob"] <= 0 for e in entries)
    middle = message.content[len(message.content) // 2]
    cut = ChatOpenAI(**settings(daemon)).invoke(MESSAGES, stop=[middle])
    assert cut.content == message.content[:message.content.index(middle)]
    assert cut.response_metadata["finish_reason"] == "stop"


def test_completions(daemon, client):
    model = OpenAI(**settings(daemon, n=2, seed=6, temperature=0.8))
    given = ["Once upon a time", "The sea is"]
    result = model.generate(given)
    expected = client.completions.create(model="smollm2", prompt=given, n=2, seed=6, temperature=0.8, max_tokens=16)
    assert [g.text for choices in result.generations for g in choices] == [c.text for c in expected.choices]
    assert result.llm_output["token_usage"]["total_tokens"] == expected.usage.total_tokens
    single = OpenAI(**settings(daemon))
    assert "".join(single.stream(given[0])) == single.invoke(given[0])


def test_errors_come_through(daemon):
    with pytest.raises(openai.NotFoundError, match="gpt-17"):
        ChatOpenAI(**settings(daemon, model="gpt-17")).invoke("x")
    with pytest.raises(openai.BadRequestError):
        ChatOpenAI(**settings(daemon)).invoke("x", temperature=7)
